"""The safetensors format, read and written one tensor at a time.

A file is the header's length (8 bytes, little-endian), the header (JSON: name → dtype, shape, [start, end) in what
follows), and the tensors' bytes. It is read, never mapped: mapped pages would count as memory of the process.
"""

import contextlib
import dataclasses
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from cojax.durable import own_file, regular_file

_DTYPES: Mapping[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F16": np.dtype(np.float16),
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
_LARGEST_HEADER = 100_000_000  # bytes; more is a damaged length, not a header
_LARGEST_RANK = 8  # axes of a tensor
_LONGEST_NAME = 200  # characters of a tensor's name


class DamagedFile(ValueError):
    """A file is not what was once written, or not of this format."""


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies: bytes `start` to `end` of the file. `dtype` is the format's code, e.g. BF16."""

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    def damage(self, size: int) -> str:
        """What is wrong with it in a file of `size` bytes, or nothing."""
        if self.end > size:
            return f"{self.name} in {self.path} ends at byte {self.end}, but the file has {size}: it is truncated"
        if self.dtype not in _DTYPES:
            return ""  # its size is not known; whoever reads it says so
        length = math.prod(self.shape) * _DTYPES[self.dtype].itemsize
        if self.end - self.start != length:
            return (
                f"{self.name} in {self.path} takes {self.end - self.start} bytes, expected {length} for "
                f"{self.dtype}{list(self.shape)}"
            )
        return ""

    def read(self) -> np.ndarray:
        """The tensor. Raises DamagedFile when the file ends early."""
        array = np.empty(math.prod(self.shape), _DTYPES[self.dtype])
        with open(self.path, "rb", buffering=0, opener=regular_file) as file:
            file.seek(self.start)
            room = memoryview(array.view(np.uint8).data)
            while room and (count := file.readinto(room)):
                room = room[count:]
        if room:
            raise DamagedFile(f"{self.name}: {self.path} ended {len(room)} bytes before the end of the tensor")
        return array.reshape(self.shape)


FLOATS = tuple(_DTYPES)  # the codes that can be read


def dtype_code(name: str) -> str:
    """The format's code of "float32", "bfloat16" or "float16". Raises ValueError for another."""
    if (code := {dtype.name: code for code, dtype in _DTYPES.items()}.get(name)) is not None:
        return code
    raise ValueError(f"dtype {name!r} is not supported; available: float32, bfloat16, float16")


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Name → entry of every tensor in a file. Raises DamagedFile for no safetensors file, OSError for a pipe."""
    size = path.stat().st_size
    with open(path, "rb", opener=regular_file) as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _LARGEST_HEADER):
            raise DamagedFile(f"{path} cannot be read: found {size} bytes, expected a header of {length} and tensors")
        text = file.read(length)
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)
        return {name: _entry(path, name, record, 8 + length) for name, record in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedFile(f"{path} cannot be read: its header is damaged: {error}. Copy or make it again.") from error


def _entry(path: Path, name: str, record: Any, origin: int) -> StoredTensor:
    if len(name) > _LONGEST_NAME or not name.isprintable():
        raise ValueError(f"{name[:_LONGEST_NAME]!r} is no name of a tensor")
    (start, end), shape = record["data_offsets"], record["shape"]
    if len(shape) > _LARGEST_RANK or not all(type(n) is int and 0 <= n < 2**63 for n in (start, end, *shape)):
        raise ValueError(f"{name} has sizes or offsets that are no whole numbers, or negative, or too large")
    return StoredTensor(path, name, str(record["dtype"]), tuple(shape), origin + start, origin + end)


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a model folder. Raises DamagedFile for anything else, OSError for no file."""
    with open(path, "rb", opener=regular_file) as file:
        text = file.read(_LARGEST_HEADER + 1)
    try:
        if len(text) > _LARGEST_HEADER:
            raise ValueError(f"it has more than {_LARGEST_HEADER} bytes")
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"{path} cannot be read: {error}; expected a JSON object") from error
    if not isinstance(value, dict):
        raise DamagedFile(f"{path} holds {type(value).__name__}, expected an object")
    return value


@dataclasses.dataclass(frozen=True)
class Outline:
    """A tensor to be written."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * _DTYPES[self.dtype].itemsize


def write_tensors(path: Path, outlines: Sequence[Outline], arrays: Iterator[tuple[str, np.ndarray]]) -> None:
    """Writes one file, taking from `arrays` exactly the outlined ones, in their order, each dropped when written.

    The file is durable but not atomic: write it under a passing name. Raises ValueError for an array that is not as
    outlined.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for outline in outlines:
        place = [offset, offset := offset + outline.size]
        header[outline.name] = {"dtype": outline.dtype, "shape": list(outline.shape), "data_offsets": place}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with writing(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for outline in outlines:
            name, array = next(arrays)
            found = name, _CODES.get(array.dtype), array.shape
            if found != (outline.name, outline.dtype, outline.shape):
                raise ValueError(f"{path}: found {found}, expected {(outline.name, outline.dtype, outline.shape)}")
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[BinaryIO]:
    """A new file at `path`, on disk when the block ends and gone if it fails. Raises OSError that says what to do."""
    try:
        with open(path, "xb", opener=own_file) as file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
            except BaseException:
                path.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise OSError(
            error.errno, f"cannot write {path}: {error.strerror or error}. Free or choose another folder."
        ) from error


def divided(outlines: Iterable[Outline], largest: int) -> list[list[Outline]]:
    """The outlines in order, cut into files of at most `largest` bytes of tensors; a larger tensor has its own."""
    files: list[list[Outline]] = [[]]
    filled = 0
    for outline in outlines:
        if files[-1] and filled + outline.size > largest:
            files.append([])
            filled = 0
        files[-1].append(outline)
        filled += outline.size
    return files
