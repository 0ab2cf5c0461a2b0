"""What is measured on a card, in this order. On a CPU the same parts have miniature shapes, to try them."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from benchmarks import machine, sampling
from benchmarks.gpu.kernels import measure_kernels
from benchmarks.gpu.numbers import compare_with_cpu
from benchmarks.results import Row
from benchmarks.update import update
from cojax.storage.files import read_json

EXPECTED_FILE, PREDICTED_FILE = "expected.npz", "predicted.json"


@dataclasses.dataclass(frozen=True)
class Part:
    """A measurement: `run` takes the folder of the kit. It may take `seconds`.

    Neighbours of one `section` share a process: it starts, finds the card and takes its memory once. Peaks of memory
    are those of the process so far, so what takes more comes later.
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


def measure_attention(kit_folder: Path) -> list[Row]:
    if jax.default_backend() == "cpu":
        return measure_kernels(128, 16, (1, 2), 1)
    return measure_kernels(8192, 128, (1, 8), 10)


# The bench's settings of an update: eight rows of 8,192 tokens.
UPDATE_SETTINGS: Mapping[str, Any] = {
    "rows": 8,
    "row_length": 8192,
    "micro_rows": 1,
    "remat": "layers",
    "dtype": "bfloat16",
}
_MINIATURE_SHAPES: Mapping[str, str] = {"1.7b": "nano", "4b": "demo"}


def measure_update(shape: str, kit_folder: Path, **changes: Any) -> list[Row]:
    """The update with changed settings; without changes, also the memory predicted for an H100, if the kit has that."""
    settings = {**UPDATE_SETTINGS, **changes}
    if jax.default_backend() == "cpu":
        return update(shape=_MINIATURE_SHAPES[shape], layers=1, **{**settings, "rows": 4, "row_length": 64}, repeats=1)
    [row] = update(shape=shape, **settings, repeats=2)
    has_prediction = not changes and (kit_folder / PREDICTED_FILE).exists()
    prediction_by_shape = read_json(kit_folder / PREDICTED_FILE) if has_prediction else {}
    return [{**row, **prediction_by_shape.get(shape, {})}]


def measure_sampling(shape: str, batch: int, kit_folder: Path) -> list[Row]:
    if jax.default_backend() == "cpu":
        return sampling.measure_conversations(_MINIATURE_SHAPES[shape], 1, batch // 16, 32, 8, 1)
    return sampling.measure_conversations(shape, None, batch, 512, 128, 2)


def measure_decode(reserved: int, kit_folder: Path) -> list[Row]:
    """Decoding of 64 conversations, of 192 tokens on average, with a cache of `reserved` positions each."""
    if jax.default_backend() == "cpu":
        return sampling.measure_conversations("demo", 1, 4, 32, 8, 1, reserved // 4)[1:]
    return sampling.measure_conversations("4b", None, 64, 128, 127, 2, reserved)[1:]


# What says most comes first: all of it takes longer than the suite's minutes.
PARTS: Mapping[str, Part] = {
    "ceilings": Part("numbers", 60, measure_ceilings),
    "attention": Part("numbers", 90, measure_attention),
    "numbers": Part("numbers", 120, compare_numbers),
    "update-1.7b": Part("update", 75, functools.partial(measure_update, "1.7b")),
    "update-1.7b-dots": Part("update", 75, functools.partial(measure_update, "1.7b", remat="dots")),
    "sample-4b-64": Part("sample", 75, functools.partial(measure_sampling, "4b", 64)),
    "sample-4b-64-of-256": Part("sample", 75, functools.partial(measure_decode, 256)),
    "sample-4b-64-of-2048": Part("sample", 75, functools.partial(measure_decode, 2048)),
    "update-1.7b-4-rows": Part("more updates", 75, functools.partial(measure_update, "1.7b", micro_rows=4)),
    "update-1.7b-dots-4-rows": Part(
        "more updates", 75, functools.partial(measure_update, "1.7b", remat="dots", micro_rows=4)
    ),
    "update-4b": Part("more updates", 90, functools.partial(measure_update, "4b")),
    **{
        f"sample-{shape}-{batch}": Part("more sampling", 75, functools.partial(measure_sampling, shape, batch))
        for shape, batch in (("1.7b", 64), ("4b", 16), ("1.7b", 16), ("4b", 256), ("1.7b", 256))
    },
}
