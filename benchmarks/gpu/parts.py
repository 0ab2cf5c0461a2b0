"""What is measured on a card, in this order. On a CPU the same parts have miniature shapes, to try them."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from benchmarks import machine, sampling
from benchmarks.gpu.numbers import numbers
from benchmarks.results import Row
from benchmarks.update import update
from cojax.storage.files import read_json

EXPECTED, PREDICTED = "expected.npz", "predicted.json"


@dataclasses.dataclass(frozen=True)
class Part:
    """A measurement: `run` takes the folder of the kit. It may take `seconds`.

    Parts of a `section` share a process, one after another: it starts, finds the card and takes its memory once.
    """

    section: str
    seconds: int
    run: Callable[[Path], list[Row]]


def ceilings(kit: Path) -> list[Row]:
    """What the card is, and what it reaches: matrix products and copies."""
    device = jax.devices()[0]
    memory = device.memory_stats() or {}
    return [
        {
            "kind": device.device_kind,
            "platform_version": getattr(device.client, "platform_version", "").split("\n")[0],
            "memory_gb": memory.get("bytes_limit", 0) / 1e9,
            "matmul_tflops_per_second": machine.matmul_rate("bfloat16") / 1e12,
            "matmul_tflops_per_second_float32": machine.matmul_rate("float32") / 1e12,
            "bandwidth_gb_per_second": machine.memory_bandwidth() / 1e9,
        }
    ]


def against_the_cpu(kit: Path) -> list[Row]:
    if not (expected := kit / EXPECTED).exists():
        raise ValueError(f"{expected} is missing, the values of a CPU; make gpu-kit makes it")
    return numbers(expected)


# The bench's settings of an update: eight rows of 8,192 tokens.
UPDATE: Mapping[str, Any] = {"rows": 8, "row_length": 8192, "micro_rows": 1, "remat": "layers", "dtype": "bfloat16"}
_SMALL: Mapping[str, str] = {"1.7b": "nano", "4b": "demo"}


def learn(shape: str, kit: Path) -> list[Row]:
    """The update, and beside it the memory that was predicted for an H100, where the kit has that."""
    if jax.default_backend() == "cpu":
        return update(shape=_SMALL[shape], layers=1, **{**UPDATE, "rows": 2, "row_length": 64}, repeats=1)
    [row] = update(shape=shape, **UPDATE, repeats=2)
    predicted = read_json(kit / PREDICTED) if (kit / PREDICTED).exists() else {}
    return [{**row, **predicted.get(shape, {})}]


def sample(shape: str, batch: int, kit: Path) -> list[Row]:
    if jax.default_backend() == "cpu":
        return sampling.conversations_of(_SMALL[shape], 1, "bfloat16", batch // 16, 32, 8, 1)
    return sampling.conversations_of(shape, None, "bfloat16", batch, 512, 128, 2)


PARTS: Mapping[str, Part] = {
    "ceilings": Part("numbers", 60, ceilings),
    "numbers": Part("numbers", 120, against_the_cpu),
    "update-1.7b": Part("update", 75, functools.partial(learn, "1.7b")),
    "update-4b": Part("update", 90, functools.partial(learn, "4b")),
    **{
        f"sample-{shape}-{batch}": Part("sample", 75, functools.partial(sample, shape, batch))
        for shape in _SMALL
        for batch in (64, 16, 256)
    },
}
