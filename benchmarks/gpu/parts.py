"""What is measured on a card, in this order. On a CPU the same parts have miniature shapes, to try them."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from benchmarks import machine, sampling
from benchmarks.gpu.numbers import compare_with_cpu
from benchmarks.results import Row
from benchmarks.update import update
from cojax.storage.files import read_json

EXPECTED_FILE, PREDICTED_FILE = "expected.npz", "predicted.json"


@dataclasses.dataclass(frozen=True)
class Part:
    """A measurement: `run` takes the folder of the kit. It may take `seconds`.

    Parts of a `section` share a process, one after another: it starts, finds the card and takes its memory once.
    """

    section: str
    timeout_s: int
    run: Callable[[Path], list[Row]]


def measure_ceilings(kit_folder: Path) -> list[Row]:
    """What the card is, and what it reaches: matrix products and copies."""
    device = jax.devices()[0]
    memory_stats = device.memory_stats() or {}
    return [
        {
            "kind": device.device_kind,
            "platform_version": getattr(device.client, "platform_version", "").split("\n")[0],
            "memory_gb": memory_stats.get("bytes_limit", 0) / 1e9,
            "matmul_tflops_per_second": machine.measure_matmul_rate("bfloat16") / 1e12,
            "matmul_tflops_per_second_float32": machine.measure_matmul_rate("float32") / 1e12,
            "bandwidth_gb_per_second": machine.measure_memory_bandwidth() / 1e9,
        }
    ]


def compare_numbers(kit_folder: Path) -> list[Row]:
    if not (expected_path := kit_folder / EXPECTED_FILE).exists():
        raise ValueError(f"{expected_path} is missing, the values of a CPU; make gpu-kit makes it")
    return compare_with_cpu(expected_path)


# The bench's settings of an update: eight rows of 8,192 tokens.
UPDATE_SETTINGS: Mapping[str, Any] = {
    "rows": 8,
    "row_length": 8192,
    "micro_rows": 1,
    "remat": "layers",
    "dtype": "bfloat16",
}
_MINIATURE_SHAPES: Mapping[str, str] = {"1.7b": "nano", "4b": "demo"}


def measure_update(shape: str, kit_folder: Path) -> list[Row]:
    """The update, and beside it the memory that was predicted for an H100, where the kit has that."""
    if jax.default_backend() == "cpu":
        return update(
            shape=_MINIATURE_SHAPES[shape], layers=1, **{**UPDATE_SETTINGS, "rows": 2, "row_length": 64}, repeats=1
        )
    [row] = update(shape=shape, **UPDATE_SETTINGS, repeats=2)
    prediction_by_shape = read_json(kit_folder / PREDICTED_FILE) if (kit_folder / PREDICTED_FILE).exists() else {}
    return [{**row, **prediction_by_shape.get(shape, {})}]


def measure_sampling(shape: str, batch: int, kit_folder: Path) -> list[Row]:
    if jax.default_backend() == "cpu":
        return sampling.measure_conversations(_MINIATURE_SHAPES[shape], 1, "bfloat16", batch // 16, 32, 8, 1)
    return sampling.measure_conversations(shape, None, "bfloat16", batch, 512, 128, 2)


PARTS: Mapping[str, Part] = {
    "ceilings": Part("numbers", 60, measure_ceilings),
    "numbers": Part("numbers", 120, compare_numbers),
    "update-1.7b": Part("update", 75, functools.partial(measure_update, "1.7b")),
    "update-4b": Part("update", 90, functools.partial(measure_update, "4b")),
    **{
        f"sample-{shape}-{batch}": Part("sample", 75, functools.partial(measure_sampling, shape, batch))
        for shape in _MINIATURE_SHAPES
        for batch in (64, 16, 256)
    },
}
