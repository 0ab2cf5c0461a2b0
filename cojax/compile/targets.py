"""Accelerators that a program can be compiled for without having them: their topologies and published figures.

It loads no JAX until a program is compiled: the command lists the targets before it.
"""

import contextlib
import dataclasses
import importlib.resources
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cojax.settings.base import choose

if TYPE_CHECKING:
    import jax

GIB = 2**30
# What JAX takes of a card's memory, and its own default.
_SHARE, _SHARE_OF_CARD = "XLA_PYTHON_CLIENT_MEM_FRACTION", 0.75


@dataclasses.dataclass(frozen=True)
class Chip:
    """One device; `kind` is JAX's name of it. `memory` is what a program can have of it, in bytes; of a card it is all.

    Published figures: `flops`, operations a second of dense bfloat16 products; `bandwidth`, bytes a second of the
    device's own memory; `interconnect`, bytes a second that a device can send to the others of its host or slice.
    """

    name: str
    kind: str
    platform: str
    memory: int
    flops: float
    bandwidth: float
    interconnect: float
    description: str = ""  # the file of what XLA has to know of a card in place of asking its driver

    @property
    def limit(self) -> int:
        """Bytes that JAX gives a program: on a CUDA card its share XLA_PYTHON_CLIENT_MEM_FRACTION."""
        if self.platform == "tpu":
            return self.memory
        given = os.environ.get(_SHARE, "") or str(_SHARE_OF_CARD)
        try:
            return int(self.memory * float(given))
        except ValueError:
            raise ValueError(f"{_SHARE} is {given!r}; expected the share of a card's memory, as 0.9") from None


@dataclasses.dataclass(frozen=True)
class Target:
    """`count` chips, connected as `topology` says in the words of the chip's compiler."""

    name: str
    chip: Chip
    topology: str
    count: int


FOUND = tomllib.loads(Path(__file__).with_name("targets.toml").read_text("utf-8"))
CHIPS: Mapping[str, Chip] = {name: Chip(**chip) for name, chip in FOUND["chips"].items()}
TARGETS: Mapping[str, Target] = {
    name: Target(name, CHIPS[chip], *connected) for name, (chip, *connected) in FOUND["targets"].items()
}


def find(name: str) -> Target:
    """The target of that name. Raises ValueError, which lists the others."""
    return choose(TARGETS, name, "target")


def attached(devices: "Sequence[jax.Device]") -> Chip | None:
    """The chip that these devices are, None where no target has it."""
    return next((target.chip for target in TARGETS.values() if target.chip.kind == devices[0].device_kind), None)


def devices(target: Target) -> "Sequence[jax.Device]":
    """The target's devices, which can be compiled for and nothing else.

    Raises ModuleNotFoundError where the compiler's package is not installed.
    """
    from jax.experimental import topologies

    chip, of_card = target.chip, {}
    if chip.description:
        text = importlib.resources.files("cojax.compile").joinpath(chip.description).read_text(encoding="utf-8")
        of_card = {"topology": target.topology, "target_config": text}
    try:
        with _silent():
            return topologies.get_topology_desc(target.topology, chip.platform, **of_card).devices
    except (RuntimeError, NotImplementedError) as error:
        missing = _missing(error, target.chip.platform)
        if missing is None:
            raise
        from cojax.warm_start import cache

        own = cache() / "compilers/bin/python"
        ways = f"{own} has it" if own.exists() else "make compilers installs it into a virtual environment of its own"
        raise ModuleNotFoundError(
            f"target {target.name} needs {missing}, which is not installed here; {ways}, and pip install "
            "'cojax[compilers]' into this one"
        ) from error


def lowered_for(device: "jax.Device") -> contextlib.AbstractContextManager[Any]:
    """Within it, programs are lowered for that device, which need not be here.

    Triton's kernels ask what card they are for; since JAX 0.11 they do not take it from the sharding of the arrays.
    """
    if device.platform not in ("gpu", "cuda"):
        return contextlib.nullcontext()
    from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

    kind = AbstractDevice(device_kind=device.device_kind, num_cores=None, platform="cuda")
    return use_abstract_mesh(AbstractMesh((), (), abstract_device=kind))


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Drops what compilers write to standard error of the hardware that they do not find."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _missing(error: Exception, platform: str) -> str | None:
    """The package of a compiler that an error says is missing."""
    said = str(error)
    if platform == "tpu" and "TPU support not installed" in said:
        return "libtpu, the compiler for TPUs"
    if platform == "cuda" and "not implemented" in said:
        return "jax-cuda12-plugin, the compiler for CUDA"
    return None
