"""Accelerators for which programs compile without the hardware: their topologies and published figures.

This module loads JAX only to compile a program, because the command lists the targets before that.
"""

import contextlib
import dataclasses
import importlib.resources
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cojax.settings.base import choose

if TYPE_CHECKING:
    import jax

GIB = 2**30
# The variable for the share of a card's memory that JAX takes, and JAX's default.
_SHARE, _DEFAULT_MEMORY_SHARE = "XLA_PYTHON_CLIENT_MEM_FRACTION", 0.75


@dataclasses.dataclass(frozen=True)
class Chip:
    """One device; `kind` is JAX's name of it. `memory` is in bytes: all of a card's, or what a program can have.

    Published figures: `flops`, operations a second of dense bfloat16 products; `bandwidth`, bytes a second of the
    device's own memory; `interconnect`, bytes a second that a device can send to the others of its host or slice.
    Programs are compiled only for a chip of a target; of the others `memory` and `interconnect` may be 0, not known.
    """

    name: str
    kind: str
    platform: str
    flops: float
    bandwidth: float
    memory: int = 0
    interconnect: float = 0.0
    description: str = ""  # a file that tells XLA about a card, in place of the card's driver

    @property
    def limit(self) -> int:
        """Bytes that JAX gives a program: on a CUDA card its share XLA_PYTHON_CLIENT_MEM_FRACTION."""
        return self.memory if self.platform == "tpu" else int(self.memory * _read_memory_share())


@dataclasses.dataclass(frozen=True)
class Target:
    """`count` chips; `topology` says in the words of the chip's compiler how they are connected."""

    name: str
    chip: Chip
    topology: str
    count: int


TARGET_TABLES = tomllib.loads(Path(__file__).with_name("targets.toml").read_text("utf-8"))
CHIPS: Mapping[str, Chip] = {name: Chip(**chip) for name, chip in TARGET_TABLES["chips"].items()}
TARGETS: Mapping[str, Target] = {
    name: Target(name, CHIPS[chip], *topology) for name, (chip, *topology) in TARGET_TABLES["targets"].items()
}


def _read_memory_share() -> float:
    text = os.environ.get(_SHARE, "") or str(_DEFAULT_MEMORY_SHARE)
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share < float("inf"):  # above 1 with unified memory
        raise ValueError(f"{_SHARE} is {text!r}; expected the share of a card's memory, such as 0.9")
    return share


def find_target(target_name: str) -> Target:
    """The target of that name. Raises ValueError that lists the others."""
    return choose(TARGETS, target_name, "target")


def find_chip(devices: "Sequence[jax.Device]") -> Chip | None:
    """The chip of these devices; None if no target has it."""
    return next((target.chip for target in TARGETS.values() if target.chip.kind == devices[0].device_kind), None)


def make_devices(target: Target) -> "Sequence[jax.Device]":
    """The target's devices; programs can be compiled for them, but not run.

    Raises ModuleNotFoundError if the compiler's package is not installed, ValueError for a wrong share of memory.
    """
    from jax.experimental import topologies

    chip, card_options = target.chip, {}
    if chip.description:
        _read_memory_share()  # a wrong one would end the compiler
        description = importlib.resources.files("cojax.compile").joinpath(chip.description).read_text(encoding="utf-8")
        card_options = {"topology": target.topology, "target_config": description}
    try:
        with _silence_compilers():
            return topologies.get_topology_desc(target.topology, chip.platform, **card_options).devices
    except (RuntimeError, NotImplementedError) as error:
        missing_package = _find_missing_compiler(error, target.chip.platform)
        if missing_package is None:
            raise
        from cojax.warm_start import find_cache

        exe = find_cache() / "compilers/bin/python"
        advice = f"{exe} has it" if exe.exists() else "make compilers installs it into a virtual environment of its own"
        raise ModuleNotFoundError(
            f"target {target.name} needs {missing_package}, which is not installed here; {advice}, and pip install "
            "'cojax[compilers]' into this one"
        ) from error


@contextlib.contextmanager
def lowered_for(device: "jax.Device") -> Iterator[None]:
    """Within it, programs are lowered for that device, which need not be present.

    Kernels ask for which card they are: Triton's ask the abstract mesh, since JAX 0.11, tokamax's the default device.
    """
    if device.platform not in ("gpu", "cuda"):
        yield
        return
    import jax
    from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

    abstract_device = AbstractDevice(device_kind=device.device_kind, num_cores=None, platform="cuda")
    device_context = jax.default_device(device) if isinstance(device, jax.Device) else contextlib.nullcontext()
    with use_abstract_mesh(AbstractMesh((), (), abstract_device=abstract_device)), device_context:
        yield


@contextlib.contextmanager
def _silence_compilers() -> Iterator[None]:
    """Silences compilers that complain on standard error about missing hardware."""
    stderr, null_device = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_device, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(null_device)


def _find_missing_compiler(error: Exception, platform: str) -> str | None:
    """The compiler's package that the error reports as missing; None for another error."""
    message = str(error)
    if platform == "tpu" and "TPU support not installed" in message:
        return "libtpu, the compiler for TPUs"
    if platform == "cuda" and "not implemented" in message:
        return "jax-cuda12-plugin, the compiler for CUDA"
    return None
