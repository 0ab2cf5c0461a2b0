"""Describes what decides a run's bits on this machine: processor, caches, cores, variables of XLA, and arithmetic.

config.json holds it beside the settings, with versions and commit.

`python -m cojax.run.machine` prints the machine's part as JSON.
"""

import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cojax.host.processes import usable_cores
from cojax.registry.source import commit

_CPUINFO = Path("/proc/cpuinfo")
_CACHE_FOLDER = Path("/sys/devices/system/cpu/cpu0/cache")
_TABLES = tomllib.loads(Path(__file__).with_name("machine.toml").read_text("utf-8"))
_FLAG_FIELDS = ("flags", "Features")
# Instructions by which products, sums and functions are computed.
_ARITHMETIC_PATTERN = re.compile(r"^(sse4|avx|fma|f16c|amx|asimd|sve|sme(\d|$)|bf16|i8mm)")
_LETTERS = {"Data": "d", "Instruction": "i"}
_KIB = 1024
# Products [rows, inputs] × [inputs, outputs]: of one token and of many, with few and with many inputs, because
# libraries choose kernels and blocks by all three sizes.
_PRODUCT_SHAPES = ((1, 128, 512), (256, 128, 512), (256, 512, 128), (128, 2048, 512))
# The gradient of a matrix is a product over rows, which another library computes: [rows, inputs, outputs].
_GRADIENT_SHAPE = (1024, 128, 512)
_DIGEST_DIGITS = 12
ArrayPair = tuple[jax.Array, jax.Array]


def read_machine() -> dict[str, Any]:
    """Returns the machine's facts by name. A fact that the system does not report is missing."""
    fields = _read_processor()
    field_of = {name: field for name, aliases in _TABLES["fields"].items() for field in aliases if field in fields}
    cpu_flags = next((sorted(fields[name].split()) for name in _FLAG_FIELDS if name in fields), [])
    variable_values = {name: os.environ[name] for name in _TABLES["variables"] if name in os.environ}
    return {
        "cpu": {
            **{name: fields[field] for name, field in field_of.items()},
            **({"instructions": [flag for flag in cpu_flags if _ARITHMETIC_PATTERN.search(flag)]} if cpu_flags else {}),
            **({"flags": _hash(" ".join(cpu_flags).encode())} if cpu_flags else {}),
        },
        "caches": dict(_read_caches()),
        "usable_cores": usable_cores(),
        "environment": variable_values,
        **({"arithmetic": hash_arithmetic()} if jax.default_backend() == "cpu" else {}),
    }


def find_bit_facts() -> dict[str, Any]:
    """Returns the facts that distinguish machines and settings of XLA that give different bits for the same program.

    Runs with equal facts share a warm start.
    """
    return {name: fact for name, fact in read_machine().items() if name in ("environment", "arithmetic")}


@functools.cache
def hash_arithmetic() -> str:
    """Returns a digest of the bits of products, sums and functions of fixed numbers; takes under a second.

    Two machines with different digests give different bits for some programs. With equal digests they probably give
    equal bits, but other shapes may differ.
    """
    generator = np.random.Generator(np.random.PCG64(0))

    def draw(*shape: int) -> np.ndarray:
        return generator.standard_normal(shape, np.float32)

    factor_pairs = [(draw(rows, inputs), draw(inputs, outputs)) for rows, inputs, outputs in _PRODUCT_SHAPES]
    rows, inputs, outputs = _GRADIENT_SHAPE
    gradient_factors, head_factors = (draw(rows, inputs), draw(rows, outputs)), (draw(4, 64, 96), draw(4, 96, 64))
    results = _compute_samples(factor_pairs, gradient_factors, head_factors, draw(64, 520))
    return _hash(*(np.asarray(array).tobytes() for array in jax.tree.leaves(results)))


@jax.jit
def _compute_samples(pairs: list[ArrayPair], gradient: ArrayPair, heads: ArrayPair, x: jax.Array) -> Any:
    function_values = (jax.nn.log_softmax(x), jax.nn.silu(x), jnp.sin(x), jax.lax.rsqrt(jnp.mean(x * x, axis=-1)))
    product_values = [jnp.matmul(lhs, rhs) for lhs, rhs in (*pairs, heads)]
    return product_values, jnp.matmul(gradient[0].T, gradient[1]), function_values, x.sum(), x.sum(axis=0)


def read_processor_name() -> str:
    """The name that the processor gives itself; several models may share one."""
    return _read_processor().get("model name", "unknown")


def choose_compute_dtype() -> str:
    """The dtype in which this process computes fastest: bfloat16, or float32 on a CPU that would convert each product.

    JAX computes products of bfloat16 as such on CPUs from 0.11 on, with AMX or AVX-512.
    """
    if jax.default_backend() != "cpu":
        return "bfloat16"
    instructions = {flag for name in _FLAG_FIELDS for flag in _read_processor().get(name, "").split()}
    is_limited = "xla_cpu_max_isa" in os.environ.get("XLA_FLAGS", "")
    has_products = bool({"amx_bf16", "avx512_bf16"} & instructions) and not is_limited
    return "bfloat16" if has_products and jax.__version_info__ >= (0, 11) else "float32"


def _read_processor() -> dict[str, str]:
    """Reads the fields of the first processor in /proc/cpuinfo; none if there is no such file."""
    try:
        lines = _CPUINFO.read_text().partition("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _read_caches() -> Iterator[tuple[str, int]]:
    """Yields the name and the bytes of each cache of the first core, such as L1d, L1i, L2, L3."""
    for cache_folder in sorted(_CACHE_FOLDER.glob("index*")):
        try:
            level, kind, size = ((cache_folder / name).read_text().strip() for name in ("level", "type", "size"))
            yield f"L{level}{_LETTERS.get(kind, '')}", int(size.removesuffix("K")) * (_KIB if size.endswith("K") else 1)
        except (OSError, ValueError):
            continue


def _hash(*pieces: bytes) -> str:
    return hashlib.sha256(b"".join(pieces)).hexdigest()[:_DIGEST_DIGITS]


# The code of a checkout that a run executes.
_CODE_PATTERNS = (":(top)cojax", ":(top)environments", ":(top)experiments", ":(top)setup.py")


def read_facts() -> dict[str, Any]:
    """Returns versions, commit and hardware, so that the run directory alone suffices as a bug report."""
    return {
        **read_versions(),
        "hardware": {
            "machine": platform.machine(),
            "processor": read_processor_name(),
            "cores": os.cpu_count(),
            "devices": [str(device.device_kind) for device in jax.devices()],
            **read_machine(),
        },
    }


def read_versions() -> dict[str, Any]:
    """Returns versions and commit, without the hardware."""
    packages = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "transformers", "tokenizers", "numpy", "cojax")
    version_by_package = {"python": platform.python_version()}
    for package_name in packages:
        try:
            version_by_package[package_name] = importlib.metadata.version(package_name)
        except importlib.metadata.PackageNotFoundError:
            version_by_package[package_name] = "not installed"
    return {"versions": version_by_package, "commit": commit(__file__, _CODE_PATTERNS)}


if __name__ == "__main__":
    print(json.dumps(read_machine(), indent=1))
