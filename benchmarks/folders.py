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
from benchmarks.results import Row, Spread, timed
from cojax.compile.programs import parameter_count
from cojax.policy.config import ModelConfig
from cojax.policy.parameters import parameters
from cojax.policy.pretrained import CONFIG, SINGLE, dtype_code, write_tensors

_LAYERS, _HEAD_DIM = 22, 64
_PIECE = 64 * 2**20  # bytes that the plain copies read or write at a time


def load(*, gigabytes: float = 0.5, dtype: str = "bfloat16", repeats: int = 3) -> list[Row]:
    """cojax.load of a random model of about `gigabytes` (10⁹ bytes); its files come from the page cache."""
    config = model_of(gigabytes, dtype)
    with temporary_folder(size_of(config)) as parent:
        folder = parent / "model"
        write_random(folder, config)
        before = machine.resident()
        _, seconds = timed(lambda: jax.block_until_ready(cojax.load(folder).params), repeats)
        peaks = machine.memory()
        _, plain = timed(lambda: read_plainly(folder / SINGLE), repeats)
    return [{**_compared(config, seconds, plain), **before, **peaks}]


def export(*, gigabytes: float = 0.5, dtype: str = "bfloat16", repeats: int = 3) -> list[Row]:
    """Policy.save of a random model of about `gigabytes` (10⁹ bytes), durable on disk, each time into a new folder."""
    config = model_of(gigabytes, dtype)
    with temporary_folder(3 * size_of(config)) as folder:
        source, model, copy = folder / "source", folder / "model", folder / "copy"
        write_random(source, config)
        # Loaded, because making it in memory would take more memory than saving it.
        policy = cojax.load(source)
        before = machine.resident()
        _, seconds = timed(lambda: policy.save(model), repeats, lambda: shutil.rmtree(model, ignore_errors=True))
        peaks = machine.memory()
        _, plain = timed(lambda: write_plainly(copy, size_of(config)), repeats, lambda: copy.unlink(missing_ok=True))
    return [{**_compared(config, seconds, plain), **before, **peaks}]


def _compared(config: ModelConfig, seconds: Spread, plain: Spread) -> Row:
    size = size_of(config) / 1e9
    return {
        "parameters": parameter_count(config),
        "dtype": config.dtype,
        "gigabytes": size,
        "seconds": seconds,
        "gb_per_second": seconds.map(lambda value: size / value),
        "plain_seconds": plain,
        "plain_gb_per_second": plain.map(lambda value: size / value),
        "times_plain": seconds.map(lambda value: value / plain.median),
    }


def model_of(gigabytes: float, dtype: str) -> ModelConfig:
    """A dense model of 22 layers, as wide as `gigabytes` allow in steps of 128.

    Width w, inner width 4·w, half as many key heads as heads and a vocabulary of 16·w make (16 + 22 · 15) · w² numbers.
    """
    numbers = gigabytes * 1e9 / jnp.dtype(dtype).itemsize
    step = 2 * _HEAD_DIM
    width = max(1, round(math.sqrt(numbers / (16 + _LAYERS * 15)) / step)) * step
    heads = width // _HEAD_DIM
    return ModelConfig(
        16 * width, width, 4 * width, _LAYERS, heads, heads // 2, _HEAD_DIM, dtype=dtype, param_dtype=dtype
    )


def size_of(config: ModelConfig) -> int:
    return parameter_count(config) * jnp.dtype(config.param_dtype).itemsize


@contextlib.contextmanager
def temporary_folder(needed: int, setting: str = "--gigabytes") -> Iterator[Path]:
    """A folder for the block. Raises ValueError if its disk has less than 1.1 · `needed` bytes free.

    The flag `setting` decides how many are needed.
    """
    with tempfile.TemporaryDirectory(prefix="cojax-bench-") as name:
        free = shutil.disk_usage(name).free
        if free < 1.1 * needed:
            raise ValueError(
                f"{tempfile.gettempdir()} has {free / 1e9:.1f} GB free, {1.1 * needed / 1e9:.1f} are needed; "
                f"lower {setting}, or set TMPDIR to a folder with more space"
            )
        yield Path(name)


def write_random(folder: Path, config: ModelConfig) -> None:
    """Writes a model folder of random numbers, one tensor in memory at a time."""
    code = dtype_code(config.param_dtype)
    outlines = {n: (code, row.hf_shape(config)) for row in parameters(config) for _, n in row.hf_names(config)}
    draw = np.random.default_rng(0)

    def arrays() -> Iterator[tuple[str, np.ndarray]]:
        for name, (_, shape) in outlines.items():
            values = draw.random(shape, dtype=np.float32) - np.float32(0.5)
            yield name, values.astype(jnp.dtype(config.param_dtype))

    folder.mkdir()
    write_tensors(folder / SINGLE, outlines, arrays())
    (folder / CONFIG).write_text(json.dumps(config.to_hf()))


def read_plainly(path: Path) -> None:
    """Reads the whole file into new memory, as loading must."""
    buffer = np.empty(path.stat().st_size, np.uint8).data
    with open(path, "rb", buffering=0) as file:
        start = 0
        while start < len(buffer) and (count := file.readinto(buffer[start : start + _PIECE])):
            start += count


def write_plainly(path: Path, size: int) -> None:
    """Writes `size` bytes into one file, durable on disk, as saving does."""
    piece = np.ones(_PIECE, np.uint8).data
    with open(path, "wb", buffering=0) as file:
        for start in range(0, size, _PIECE):
            file.write(piece[: min(_PIECE, size - start)])
        os.fsync(file.fileno())
