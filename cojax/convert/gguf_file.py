"""Reads the GGUF format (llama.cpp), version 2 and 3, little-endian: metadata, and tensors one at a time.

Files are untrusted. The package's own reader allocates whatever a header claims; here each count is compared with the
bytes left in the file before anything is read. Of the package only type names and dequantisation are used.
"""

import dataclasses
import functools
import math
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
from gguf.quants import dequantize

# Advice for a model whose file cannot be converted.
ADVICE = "give its folder in Hugging Face format to --config.model.path instead, if it has one"
_MAX_HEADER_BYTES = 2**25  # bytes; a vocabulary of 256,000 tokens takes about 10 MB
_MAX_NAME_CHARACTERS = 200  # characters of a key or of a tensor's name
_MAX_AXES = 4  # axes of a tensor in this format
_DEFAULT_ALIGNMENT = 32
# The format names its numbers as NumPy does.
_DTYPES: Mapping[GGUFValueType, np.dtype[Any]] = {
    kind: np.dtype(kind.name.lower()).newbyteorder("<")
    for kind in GGUFValueType
    if kind not in (GGUFValueType.STRING, GGUFValueType.ARRAY)
}


@dataclasses.dataclass(frozen=True)
class StoredArray:
    """Where a tensor lies, in `byte_count` bytes from byte `offset` of the file; `shape` is in NumPy's order."""

    name: str
    quantisation: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int
    byte_count: int


@dataclasses.dataclass(frozen=True)
class GgufFile:
    """The header of a file; all of its tensors lie within the file."""

    path: Path
    metadata: Mapping[str, Any]  # key → number, bool, str or list of one of these
    arrays: Mapping[str, StoredArray]

    def read_tensor(self, tensor_name: str) -> np.ndarray:
        """A tensor, dequantised to float32. Raises ValueError if a number is not finite or the file was cut."""
        array = self.arrays[tensor_name]
        with open(self.path, "rb") as file:
            file.seek(array.offset)
            content = file.read(array.byte_count)
        if len(content) != array.byte_count:
            raise ValueError(f"{self.path} ended within {tensor_name}; it was changed while it was read")
        stored_rows = np.frombuffer(content, np.uint8).reshape(*array.shape[:-1], -1)
        with np.errstate(all="ignore"):
            values = dequantize(stored_rows, array.quantisation).astype(np.float32, copy=False)
        if not np.isfinite(values).all():
            raise ValueError(f"{tensor_name} in {self.path} holds numbers that are not finite; the file is damaged")
        return values


def read_gguf(path: Path) -> GgufFile:
    """Reads the header of a file, but no tensor.

    Raises ValueError for a file that is not GGUF, is truncated, has a damaged header or an unknown quantisation,
    OSError for one that cannot be opened.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file; expected a GGUF file")
    with open(path, "rb") as file:
        file_size = os.fstat(file.fileno()).st_size
        header = _Header(file, path, file_size)
        if header.read_bytes(min(4, file_size)) != b"GGUF":
            raise ValueError(f"{path} is not a GGUF file: it does not begin with GGUF")
        version = header.read_number("<I")
        if version not in (2, 3):
            raise ValueError(f"{path} is GGUF version {version}, or big-endian; expected version 2 or 3, little-endian")
        tensor_count, entry_count = header.read_number("<Q"), header.read_number("<Q")
        metadata: dict[str, Any] = {}
        for _ in range(entry_count):
            metadata_key = header.read_name()
            if metadata_key in metadata:
                raise header.make_error(f"{metadata_key} appears twice")
            metadata[metadata_key] = header.read_value()
        tensor_entries = [_read_entry(header) for _ in range(tensor_count)]
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise header.make_error(f"general.alignment is {alignment!r:.80}, expected a power of 2")
        data_start = -(-header.position // alignment) * alignment
    if (file_count := metadata.get("split.count", 1)) not in (0, 1):
        raise ValueError(
            f"{path} is one of {file_count!r:.80} files of a model; merge them into one by llama.cpp's "
            "`llama-gguf-split --merge FIRST OUT`"
        )
    arrays: dict[str, StoredArray] = {}
    for tensor_entry in tensor_entries:
        if tensor_entry.name in arrays:
            raise header.make_error(f"tensor {tensor_entry.name} appears twice")
        arrays[tensor_entry.name] = array = dataclasses.replace(tensor_entry, offset=data_start + tensor_entry.offset)
        if array.offset + array.byte_count > file_size:
            raise ValueError(
                f"{path} is truncated: it has {file_size} bytes, and {tensor_entry.name} ends at byte "
                f"{array.offset + array.byte_count}; copy or download it again"
            )
    if (total_bytes := sum(array.byte_count for array in arrays.values())) > file_size:
        raise header.make_error(f"its tensors take {total_bytes} bytes in a file of {file_size}")
    return GgufFile(path, metadata, arrays)


class _Header:
    """Reads forward, never beyond the end of the file."""

    def __init__(self, file: BinaryIO, path: Path, size: int) -> None:
        self._file, self._path, self._size = file, path, size
        self.position = 0

    def make_error(self, fault: str) -> ValueError:
        return ValueError(f"{self._path} has a damaged header: {fault}; copy or download it again")

    def read_bytes(self, byte_count: int) -> bytes:
        if self.position + byte_count > self._size:
            raise ValueError(
                f"{self._path} is truncated or damaged: it has {self._size} bytes, but its header continues; "
                "copy or download it again"
            )
        if self.position + byte_count > _MAX_HEADER_BYTES:
            raise self.make_error(f"it is larger than {_MAX_HEADER_BYTES} bytes")
        self.position += byte_count
        return self._file.read(byte_count)

    def read_number(self, format_code: str) -> int:
        return struct.unpack(format_code, self.read_bytes(struct.calcsize(format_code)))[0]

    def text(self) -> str:
        content = self.read_bytes(self.read_number("<Q"))
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise self.make_error(f"a text at byte {self.position - len(content)} is not UTF-8") from error

    def read_name(self) -> str:
        """A short text of printable characters."""
        if len(name := self.text()) > _MAX_NAME_CHARACTERS or not name.isprintable():
            raise self.make_error(f"the text that ends at byte {self.position} is not a name")
        return name

    def read_value(self) -> Any:
        """A number, bool, str or a list of one of these; a single float32 becomes the shortest decimal for it."""
        kind = self._read_kind()
        if kind == GGUFValueType.FLOAT32:
            return float(str(np.float32(self._read_scalars(kind, 1)[0])))
        if kind != GGUFValueType.ARRAY:
            return self.text() if kind == GGUFValueType.STRING else self._read_scalars(kind, 1)[0]
        kind, count = self._read_kind(), self.read_number("<Q")
        if kind == GGUFValueType.ARRAY:
            raise self.make_error("it has a list of lists")
        # A text takes at least 8 bytes, so a forged count ends with the file.
        return [self.text() for _ in range(count)] if kind == GGUFValueType.STRING else self._read_scalars(kind, count)

    def _read_kind(self) -> GGUFValueType:
        code = self.read_number("<I")
        try:
            return GGUFValueType(code)
        except ValueError as error:
            raise self.make_error(f"it has a value of unknown type {code}") from error

    def _read_scalars(self, value_type: GGUFValueType, value_count: int) -> list[Any]:
        return np.frombuffer(self.read_bytes(value_count * _DTYPES[value_type].itemsize), _DTYPES[value_type]).tolist()


def _read_entry(header: _Header) -> StoredArray:
    """Reads a tensor's entry in the header; its `start` counts from where tensors begin."""
    tensor_name, axis_count = header.read_name(), header.read_number("<I")
    if not 1 <= axis_count <= _MAX_AXES:
        raise header.make_error(f"{tensor_name} has {axis_count} axes, expected 1 to {_MAX_AXES}")
    shape = tuple(reversed([header.read_number("<Q") for _ in range(axis_count)]))
    type_code, start = header.read_number("<I"), header.read_number("<Q")
    quantisation = _find_readable_type(type_code)
    if quantisation is None:
        raise ValueError(
            f"tensor {tensor_name} has quantisation {type_code}, which the package gguf cannot read; "
            "take a file with another quantisation, such as Q8_0 or F16"
        )
    block_length, block_bytes = GGML_QUANT_SIZES[quantisation]
    if not all(shape) or shape[-1] % block_length:
        raise header.make_error(f"{tensor_name} has shape {shape}, expected rows of whole blocks of {block_length}")
    return StoredArray(tensor_name, quantisation, shape, start, math.prod(shape) // block_length * block_bytes)


@functools.cache
def _find_readable_type(type_code: int) -> GGMLQuantizationType | None:
    """The type with that number, or None if the package cannot dequantise it; the package has no list of these."""
    try:
        quantisation = GGMLQuantizationType(type_code)
        dequantize(np.zeros((1, GGML_QUANT_SIZES[quantisation][1]), np.uint8), quantisation)
    except (ValueError, KeyError, NotImplementedError):
        return None
    return quantisation
