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
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_TABLES = tomllib.loads(Path(__file__).with_name("machine.toml").read_text("utf-8"))
_FLAGS = ("flags", "Features")
# Instructions by which products, sums and functions are computed.
_ARITHMETIC = re.compile(r"^(sse4|avx|fma|f16c|amx|asimd|sve|sme(\d|$)|bf16|i8mm)")
_KINDS = {"Data": "d", "Instruction": "i"}
_KIB = 1024
# Products [rows, inputs] × [inputs, outputs]: of one token and of many, with few and with many inputs, because
# libraries choose kernels and blocks by all three sizes.
_PRODUCTS = ((1, 128, 512), (256, 128, 512), (256, 512, 128), (128, 2048, 512))
# The gradient of a matrix is a product over rows, which another library computes: [rows, inputs, outputs].
_GRADIENT = (1024, 128, 512)
_DIGITS = 12
Pair = tuple[jax.Array, jax.Array]


def machine() -> dict[str, Any]:
    """Returns the machine's facts by name. A fact that the system does not report is missing."""
    fields = _first_processor()
    names = {name: field for name, possible in _TABLES["fields"].items() for field in possible if field in fields}
    flags = next((sorted(fields[name].split()) for name in _FLAGS if name in fields), [])
    variables = {name: os.environ[name] for name in _TABLES["variables"] if name in os.environ}
    return {
        "cpu": {
            **{name: fields[field] for name, field in names.items()},
            **({"instructions": [flag for flag in flags if _ARITHMETIC.search(flag)]} if flags else {}),
            **({"flags": _hash(" ".join(flags).encode())} if flags else {}),
        },
        "caches": dict(_caches()),
        "usable_cores": usable_cores(),
        "environment": variables,
        **({"arithmetic": arithmetic()} if jax.default_backend() == "cpu" else {}),
    }


def decides_bits() -> dict[str, Any]:
    """Returns the facts that distinguish machines and settings of XLA that give different bits for the same program.

    Runs with equal facts share a warm start.
    """
    return {name: fact for name, fact in machine().items() if name in ("environment", "arithmetic")}


@functools.cache
def arithmetic() -> str:
    """Returns a digest of the bits of products, sums and functions of fixed numbers; takes under a second.

    Two machines with different digests give different bits for some programs. With equal digests they probably give
    equal bits, but other shapes may differ.
    """
    numbers = np.random.Generator(np.random.PCG64(0))

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(numbers.standard_normal(shape, np.float32))

    pairs = [(normal(rows, inputs), normal(inputs, outputs)) for rows, inputs, outputs in _PRODUCTS]
    rows, inputs, outputs = _GRADIENT
    gradient, heads = (normal(rows, inputs), normal(rows, outputs)), (normal(4, 64, 96), normal(4, 96, 64))
    results = _compute(pairs, gradient, heads, normal(64, 520))
    return _hash(*(np.asarray(array).tobytes() for array in jax.tree.leaves(results)))


@jax.jit
def _compute(pairs: list[Pair], gradient: Pair, heads: Pair, x: jax.Array) -> Any:
    functions = (jax.nn.log_softmax(x), jax.nn.silu(x), jnp.sin(x), jax.lax.rsqrt(jnp.mean(x * x, axis=-1)))
    products = [jnp.matmul(lhs, rhs) for lhs, rhs in (*pairs, heads)]
    return products, jnp.matmul(gradient[0].T, gradient[1]), functions, x.sum(), x.sum(axis=0)


def processor_name() -> str:
    """The name that the processor gives itself; several models may share one."""
    return _first_processor().get("model name", "unknown")


def _first_processor() -> dict[str, str]:
    """Reads the fields of the first processor in /proc/cpuinfo; none if there is no such file."""
    try:
        lines = _CPUINFO.read_text().partition("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _caches() -> Iterator[tuple[str, int]]:
    """Yields the name and the bytes of each cache of the first core, such as L1d, L1i, L2, L3."""
    for index in sorted(_CACHES.glob("index*")):
        try:
            level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
            yield f"L{level}{_KINDS.get(kind, '')}", int(size.removesuffix("K")) * (_KIB if size.endswith("K") else 1)
        except (OSError, ValueError):
            continue


def _hash(*pieces: bytes) -> str:
    return hashlib.sha256(b"".join(pieces)).hexdigest()[:_DIGITS]


# The code of a checkout that a run executes.
_CODE = (":(top)cojax", ":(top)environments", ":(top)experiments", ":(top)setup.py")


def facts() -> dict[str, Any]:
    """Returns versions, commit and hardware, so that the run directory alone suffices as a bug report."""
    return {
        **versions_and_commit(),
        "hardware": {
            "machine": platform.machine(),
            "processor": processor_name(),
            "cores": os.cpu_count(),
            "devices": [str(device.device_kind) for device in jax.devices()],
            **machine(),
        },
    }


def versions_and_commit() -> dict[str, Any]:
    """Returns versions and commit, without the hardware."""
    names = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "transformers", "tokenizers", "numpy", "cojax")
    versions = {"python": platform.python_version()}
    for name in names:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return {"versions": versions, "commit": commit(__file__, _CODE)}


if __name__ == "__main__":
    print(json.dumps(machine(), indent=1))
