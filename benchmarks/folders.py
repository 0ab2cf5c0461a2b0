"""Suites `load` and `export`: loading and saving a model folder, against reading and writing the same bytes."""

import contextlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import cojax
from benchmarks import machine
from benchmarks.results import Row, Spread, time_calls
from cojax.compile.programs import count_parameters
from cojax.policy.config import ModelConfig
from cojax.policy.parameters import parameters
from cojax.policy.pretrained import CONFIG, ONE_FILE, find_code, write_tensors

_LAYER_COUNT, _HEAD_SIZE = 22, 64
_PIECE_BYTES = 64 * 2**20  # bytes that the plain copies read or write at a time


def load(*, gigabytes: float = 0.5, dtype: str = "bfloat16", repeats: int = 3) -> list[Row]:
    """cojax.load of a random model of about `gigabytes` (10⁹ bytes); its files come from the page cache."""
    config = choose_config(gigabytes, dtype)
    with temporary_folder(count_bytes(config)) as parent:
        folder = parent / "model"
        write_random(folder, config)
        resident_before = machine.read_resident_memory()
        _, seconds = time_calls(lambda: jax.block_until_ready(cojax.load(folder).params), repeats)
        peak_bytes = machine.read_peak_memory()
        _, plain_seconds = time_calls(lambda: read_plainly(folder / ONE_FILE), repeats)
    return [{**_compare_with_plain(config, seconds, plain_seconds), **resident_before, **peak_bytes}]


def export(*, gigabytes: float = 0.5, dtype: str = "bfloat16", repeats: int = 3) -> list[Row]:
    """Policy.save of a random model of about `gigabytes` (10⁹ bytes), durable on disk, each time into a new folder."""
    config = choose_config(gigabytes, dtype)
    with temporary_folder(3 * count_bytes(config)) as folder:
        source, model, copy = folder / "source", folder / "model", folder / "copy"
        write_random(source, config)
        # Loaded, because making it in memory would take more memory than saving it.
        policy = cojax.load(source)
        resident_before = machine.read_resident_memory()
        _, seconds = time_calls(lambda: policy.save(model), repeats, lambda: shutil.rmtree(model, ignore_errors=True))
        peak_bytes = machine.read_peak_memory()
        _, plain_seconds = time_calls(
            lambda: write_plainly(copy, count_bytes(config)), repeats, lambda: copy.unlink(missing_ok=True)
        )
    return [{**_compare_with_plain(config, seconds, plain_seconds), **resident_before, **peak_bytes}]


def _compare_with_plain(config: ModelConfig, seconds: Spread, plain: Spread) -> Row:
    size = count_bytes(config) / 1e9
    return {
        "parameters": count_parameters(config),
        "dtype": config.dtype,
        "gigabytes": size,
        "seconds": seconds,
        "gb_per_second": seconds.map(lambda value: size / value),
        "plain_seconds": plain,
        "plain_gb_per_second": plain.map(lambda value: size / value),
        "times_plain": seconds.map(lambda value: value / plain.median),
    }


def choose_config(gigabytes: float, dtype: str) -> ModelConfig:
    """A dense model of 22 layers, as wide as `gigabytes` allow in steps of 128.

    Width w, inner width 4·w, half as many key heads as heads and a vocabulary of 16·w make (16 + 22 · 15) · w² numbers.
    """
    parameter_count = gigabytes * 1e9 / jnp.dtype(dtype).itemsize
    width_step = 2 * _HEAD_SIZE
    width = max(1, round(math.sqrt(parameter_count / (16 + _LAYER_COUNT * 15)) / width_step)) * width_step
    heads = width // _HEAD_SIZE
    return ModelConfig(
        16 * width, width, 4 * width, _LAYER_COUNT, heads, heads // 2, _HEAD_SIZE, dtype=dtype, param_dtype=dtype
    )


def count_bytes(config: ModelConfig) -> int:
    return count_parameters(config) * jnp.dtype(config.param_dtype).itemsize


@contextlib.contextmanager
def temporary_folder(needed_bytes: int, setting: str = "--gigabytes") -> Iterator[Path]:
    """A folder for the block. Raises ValueError if its disk has less than 1.1 · `needed_bytes` bytes free.

    The flag `setting` decides how many are needed.
    """
    with tempfile.TemporaryDirectory(prefix="cojax-bench-") as name:
        free_bytes = shutil.disk_usage(name).free
        if free_bytes < 1.1 * needed_bytes:
            raise ValueError(
                f"{tempfile.gettempdir()} has {free_bytes / 1e9:.1f} GB free, "
                f"{1.1 * needed_bytes / 1e9:.1f} are needed; "
                f"lower {setting}, or set TMPDIR to a folder with more space"
            )
        yield Path(name)


def write_random(folder: Path, config: ModelConfig) -> None:
    """Writes a model folder of random numbers, one tensor in memory at a time."""
    code = find_code(config.param_dtype)
    outlines = {
        tensor_name: (code, row.hf_shape(config))
        for row in parameters(config)
        for _, tensor_name in row.hf_names(config)
    }
    rng = np.random.default_rng(0)

    def arrays() -> Iterator[tuple[str, np.ndarray]]:
        for name, (_, shape) in outlines.items():
            values = rng.random(shape, dtype=np.float32) - np.float32(0.5)
            yield name, values.astype(jnp.dtype(config.param_dtype))

    folder.mkdir()
    write_tensors(folder / ONE_FILE, outlines, arrays())
    (folder / CONFIG).write_text(json.dumps(config.to_hf()))


def read_plainly(path: Path) -> None:
    """Reads the whole file into new memory, as loading must."""
    buffer = np.empty(path.stat().st_size, np.uint8).data
    with open(path, "rb", buffering=0) as file:
        start = 0
        while start < len(buffer) and (byte_count := file.readinto(buffer[start : start + _PIECE_BYTES])):
            start += byte_count


def write_plainly(path: Path, byte_count: int) -> None:
    """Writes `byte_count` bytes into one file, durable on disk, as saving does."""
    piece = np.ones(_PIECE_BYTES, np.uint8).data
    with open(path, "wb", buffering=0) as file:
        for start in range(0, byte_count, _PIECE_BYTES):
            file.write(piece[: min(_PIECE_BYTES, byte_count - start)])
        os.fsync(file.fileno())
