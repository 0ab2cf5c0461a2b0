"""`load` and `Policy`: a model's config and parameters, from a model folder or the Hugging Face hub.

A folder in Hugging Face format is read straight into device arrays and written without a second copy: config.json, and
model.safetensors or model-00001-of-0000N.safetensors with model.safetensors.index.json.

A safetensors file is the header's length (8 bytes, little-endian), the header (JSON: name → dtype, shape, [start, end)
in what follows), and the tensors' bytes. It is read, not mapped: mapped pages would count as the process's memory.
"""

import contextlib
import dataclasses
import functools
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding
from jax.typing import ArrayLike

from cojax.durable import regular_file, replacing, sync_folder
from cojax.policy import logprobs, transformer
from cojax.policy.config import LARGEST_HEADER, DamagedFile, ModelConfig, read_object
from cojax.policy.parameters import TIED_HEAD, Parameter, Params, leaf_of, parameters, raise_faults, to_hf, with_leaf
from cojax.policy.sharding import ROWS, batch_sharding, check_divides, devices_along, partition
from cojax.policy.sharding import place as put

_DTYPES: Mapping[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F16": np.dtype(np.float16),
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
# Tensors to be written: name → the format's code of the dtype, and the shape.
Outlines = dict[str, tuple[str, tuple[int, ...]]]
_LARGEST_RANK = 8  # axes of a tensor
_LONGEST_NAME = 200  # characters of a tensor's name


def _bytes(code: str, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * _DTYPES[code].itemsize


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
        """Says what is wrong with the tensor in a file of `size` bytes; "" if nothing is."""
        if self.end > size:
            return f"{self.name} in {self.path} ends at byte {self.end}, but the file has {size}: it is truncated"
        if self.dtype not in _DTYPES:
            return ""  # its size is unknown, which `read_params` reports
        length = _bytes(self.dtype, self.shape)
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


def dtype_code(name: str) -> str:
    """The format's code of "float32", "bfloat16" or "float16". Raises ValueError for another."""
    codes = {dtype.name: code for code, dtype in _DTYPES.items()}
    if name not in codes:
        raise ValueError(f"dtype {name!r} is not supported; available: {', '.join(codes)}")
    return codes[name]


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Name → entry of every tensor in a file. Raises DamagedFile unless it is safetensors, OSError for a pipe."""
    size = path.stat().st_size
    with open(path, "rb", opener=regular_file) as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, LARGEST_HEADER):
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
        raise ValueError(f"{name[:_LONGEST_NAME]!r} is not a tensor's name")
    (start, end), shape = record["data_offsets"], record["shape"]
    if len(shape) > _LARGEST_RANK or not all(type(n) is int and 0 <= n < 2**63 for n in (start, end, *shape)):
        raise ValueError(f"{name} has sizes or offsets that are negative, too large or not whole numbers")
    return StoredTensor(path, name, str(record["dtype"]), tuple(shape), origin + start, origin + end)


def write_tensors(path: Path, outlines: Outlines, arrays: Iterator[tuple[str, np.ndarray]]) -> None:
    """Writes one file, taking exactly the outlined arrays in their order and dropping each once it is written.

    The file appears whole or not at all. Raises ValueError for an array that differs from its outline, OSError that
    says what to do.
    """
    with _explain_errors(path), replacing(path) as file:
        _write_tensors(file, outlines, arrays)


def _write_tensors(file: BinaryIO, outlines: Outlines, arrays: Iterator[tuple[str, np.ndarray]]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (code, shape) in outlines.items():
        place = [offset, offset := offset + _bytes(code, shape)]
        header[name] = {"dtype": code, "shape": list(shape), "data_offsets": place}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for tensor_name, (code, shape) in outlines.items():
        name, array = next(arrays)
        outline = name, _CODES.get(array.dtype), array.shape
        if outline != (tensor_name, code, shape):
            raise ValueError(f"{file.name}: found {outline}, expected {(tensor_name, code, shape)}")
        file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    file.flush()  # a full disk shows before any file of a folder gets its name
    os.fsync(file.fileno())


@contextlib.contextmanager
def _explain_errors(path: Path) -> Iterator[None]:
    """Adds advice to an OSError."""
    try:
        yield
    except OSError as error:
        raise OSError(
            error.errno, f"cannot write {path}: {error.strerror or error}. Free space, or choose another folder."
        ) from error


def split_files(outlines: Outlines, largest: int) -> list[Outlines]:
    """Splits the outlines, in order, into files of at most `largest` bytes; a larger tensor has a file of its own."""
    files: list[Outlines] = [{}]
    size = 0
    for name, outline in outlines.items():
        if files[-1] and size + _bytes(*outline) > largest:
            files.append({})
            size = 0
        files[-1][name] = outline
        size += _bytes(*outline)
    return files


SINGLE, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
LARGEST_FILE = 5_000_000_000  # bytes of tensors in one file


def read_params(folder: Path, config: ModelConfig, mesh: Mesh | None = None) -> Params:
    """Reads the parameters in `folder` as `config.param_dtype`, laid out over the mesh if there is one.

    All names, shapes and dtypes are checked first. Then tensors are read one by one into leaves that are filled in
    place, which takes the memory of the parameters and about two tensors. Every tensor must have the dtype that the
    folder's config.json declares, if it declares one. Raises FileNotFoundError if there are no weights, DamagedFile for
    a file that cannot be read, ValueError that names every tensor that does not fit.
    """
    if mesh is not None:
        check_divides(config, mesh)
    entries = _entries(folder)
    if config.tie_word_embeddings:
        entries.pop(TIED_HEAD, None)
    hf = read_config_json(folder) if (folder / CONFIG).exists() else {}
    _check(entries, config, hf.get("dtype") or hf.get("torch_dtype"))
    params: Params = {}
    for row in parameters(config):
        params = with_leaf(params, row, _leaf(row, config, entries, mesh))
    return params


def write_model(folder: Path, config: ModelConfig, params: Params, largest: int = LARGEST_FILE) -> None:
    """Writes config.json and the weights, in files of at most `largest` bytes; `transformers` loads the folder.

    A new folder appears whole or not at all. In an existing one each file is replaced atomically, config.json last, and
    weights of a former model are removed. Raises ValueError for parameters that do not fit `config`, OSError with the
    fix when the disk refuses.
    """
    _check_params(config, params)
    if folder.exists():
        write_arrays(folder, config, to_hf(config, params), largest)
        return
    part = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        part.mkdir(parents=True)
        write_arrays(part, config, to_hf(config, params), largest)
        part.rename(folder)
        sync_folder(folder.absolute().parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def write_arrays(
    folder: Path, config: ModelConfig, arrays: Iterator[tuple[str, np.ndarray]], largest: int = LARGEST_FILE
) -> None:
    """Writes config.json and (HF name, array) pairs, in the order of `to_hf`, to an existing folder.

    Memory holds one array at a time. Each file is replaced atomically, config.json last; weights of a former model are
    removed. Raises ValueError for an array that is not the model's, OSError with the fix when the disk refuses.
    """
    code = dtype_code(config.param_dtype)
    outlines = {name: (code, row.hf_shape(config)) for row in parameters(config) for _, name in row.pieces(config)}
    files = split_files(outlines, largest)
    count = len(files)
    names = [SINGLE] if count == 1 else [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]
    with _explain_errors(folder):
        with contextlib.ExitStack() as stack:  # the files get their names together, once all are written
            for name, contents in zip(names, files, strict=True):
                _write_tensors(stack.enter_context(replacing(folder / name)), contents, arrays)
        if count > 1:
            places = {tensor: name for name, contents in zip(names, files, strict=True) for tensor in contents}
            total = {"total_size": sum(_bytes(*outline) for outline in outlines.values())}
            _write_json(folder / INDEX, {"metadata": total, "weight_map": places})
        new_names = {*names, *([INDEX] if count > 1 else [])}
        for old in (*folder.glob("model*.safetensors"), folder / INDEX):
            if old.name not in new_names:  # of another model: a reader would take it for ours
                old.unlink(missing_ok=True)
        _write_json(folder / CONFIG, config.to_hf())


def _entries(folder: Path) -> dict[str, StoredTensor]:
    """Lists every tensor of the folder. Raises for missing or damaged files and for an index that contradicts them."""
    faults: list[str] = []
    if (folder / SINGLE).exists():
        entries = read_header(folder / SINGLE)
    elif (folder / INDEX).exists():
        entries, faults = _read_indexed(folder)
    else:
        raise FileNotFoundError(f"no {SINGLE} in {folder}, and no {INDEX}; expected a model folder in HF format")
    sizes = {entry.path: entry.path.stat().st_size for entry in entries.values()}
    damage = [fault for entry in entries.values() if (fault := entry.damage(sizes[entry.path]))]
    if faults or damage:
        problems = [*faults, *damage]
        more = f"; and {len(problems) - 20} more" if len(problems) > 20 else ""
        raise DamagedFile(f"{folder} cannot be read: {'; '.join(problems[:20])}{more}. Copy or make it again.")
    return entries


def _read_indexed(folder: Path) -> tuple[dict[str, StoredTensor], list[str]]:
    """The tensors of a folder with an index, and the faults where index and files disagree."""
    places = weight_map(folder)
    names = sorted(set(places.values()))
    faults = [f"{INDEX} names {name}, which is not in the folder" for name in names if not (folder / name).exists()]
    headers = {name: read_header(folder / name) for name in names if (folder / name).exists()}
    entries: dict[str, StoredTensor] = {}
    for tensor, name in places.items():
        if tensor in headers.get(name, {}):
            entries[tensor] = headers[name][tensor]
        elif name in headers:
            holder = next((other for other, header in headers.items() if tensor in header), "no file")
            faults.append(f"{tensor} is in {holder}, expected in {name}, where {INDEX} places it")
    for name, header in headers.items():
        faults += [f"{tensor} is in {name}, but {INDEX} does not list it" for tensor in header if tensor not in places]
    return entries, faults


def weight_map(folder: Path) -> dict[str, str]:
    """Tensor → name of its file, from the index. Raises DamagedFile if the index is damaged or leads outside."""
    path = folder / INDEX
    try:
        places = {tensor: str(name) for tensor, name in read_object(path)["weight_map"].items()}
    except (ValueError, KeyError, AttributeError) as error:
        raise DamagedFile(f"{path} cannot be read: {error}; expected a weight_map") from error
    if outside := [name for name in places.values() if Path(name).name != name]:
        raise DamagedFile(f"{path} names {outside[0]!r:.80}; expected files of its own folder")
    return places


def read_config_json(folder: Path) -> dict[str, Any]:
    """config.json as it stands. Raises FileNotFoundError if there is none, ValueError unless it is a JSON object."""
    if not (folder / CONFIG).exists():
        raise FileNotFoundError(f"no {CONFIG} in {folder}; expected a model folder in HF format")
    return read_object(folder / CONFIG)


def _check(entries: Mapping[str, StoredTensor], config: ModelConfig, dtype: str | None) -> None:
    """Raises ValueError that names every tensor that is missing, unexpected, or of another shape or dtype."""
    rows = {name: row for row in parameters(config) for _, name in row.pieces(config)}
    faults = [f"{name} is missing" for name in rows if name not in entries]
    for name, entry in entries.items():
        if name not in rows:
            faults.append(f"{name} is not part of this model")
        elif entry.shape != (shape := rows[name].hf_shape(config)):
            faults.append(f"{name} has shape {entry.shape}, expected {shape}")
        elif dtype and entry.dtype != dtype_code(dtype):
            faults.append(f"{name} has dtype {entry.dtype}, expected {dtype_code(dtype)} as {CONFIG} declares")
        elif entry.dtype not in _DTYPES:
            faults.append(f"{name} has dtype {entry.dtype}, expected one of {', '.join(_DTYPES)}")
    raise_faults(faults)


def _leaf(row: Parameter, config: ModelConfig, entries: Mapping[str, StoredTensor], mesh: Mesh | None) -> jax.Array:
    """Fills one leaf tensor by tensor, waiting for each so that only one is under way."""
    dtype = jnp.dtype(config.param_dtype)
    place: Sharding = SingleDeviceSharding(jax.local_devices()[0])
    piece_place = place
    if mesh is not None:
        spec = partition(row)
        place, piece_place = NamedSharding(mesh, spec), NamedSharding(mesh, PartitionSpec(*spec[len(row.lead_axes) :]))
    leaf = None
    for index, name in row.pieces(config):
        host = row.from_hf(entries[name].read(), config).astype(dtype, copy=False)
        piece = put(host, piece_place)
        if not row.lead_axes:
            return jax.block_until_ready(piece)
        if leaf is None:
            leaf = _empty(row.shape(config), dtype, place)
        leaf = jax.block_until_ready(_fill(leaf, piece, np.asarray(index, np.int32), place))
    assert leaf is not None
    return leaf


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _empty(shape: tuple[int, ...], dtype: np.dtype, place: Sharding) -> jax.Array:
    return jax.lax.with_sharding_constraint(jnp.zeros(shape, dtype), place)


@functools.partial(jax.jit, static_argnums=3, donate_argnums=0)
def _fill(leaf: jax.Array, piece: jax.Array, index: jax.Array, place: Sharding) -> jax.Array:
    """Writes the piece at `index` of the leaf's stacked axes; the leaf's memory is reused."""
    starts = [index[axis] for axis in range(index.shape[0])] + [jnp.int32(0)] * piece.ndim
    update = piece.reshape((1,) * index.shape[0] + piece.shape)
    # As plain bits: XLA for CPU would turn a whole bfloat16 leaf into float32 and back.
    bits = {2: jnp.uint16, 4: jnp.uint32}[leaf.dtype.itemsize]
    old, new = (jax.lax.bitcast_convert_type(x, bits) for x in (leaf, update))
    result = jax.lax.bitcast_convert_type(jax.lax.dynamic_update_slice(old, new, starts), leaf.dtype)
    return jax.lax.with_sharding_constraint(result, place)


def _check_params(config: ModelConfig, params: Params) -> None:
    """Raises ValueError that names every parameter whose dtype or shape is not the config's."""
    faults = []
    for row in parameters(config):
        leaf = leaf_of(params, row)
        actual, outline = (leaf.dtype.name, leaf.shape), (config.param_dtype, row.shape(config))
        if actual != outline:
            faults.append(f"{row.name} is {actual[0]}{list(actual[1])}, expected {outline[0]}{list(outline[1])}")
    raise_faults(faults)


def _write_json(path: Path, value: Any) -> None:
    with replacing(path) as file:
        file.write((json.dumps(value, indent=1) + "\n").encode())


@dataclasses.dataclass(frozen=True, eq=False)
class Policy:
    """π_θ. `params` is the pytree that training and export use, laid out over `mesh`; None means one device."""

    config: ModelConfig
    params: Params = dataclasses.field(repr=False)
    mesh: Mesh | None = None

    def logits(self, tokens: ArrayLike) -> jax.Array:
        """float32[B, T, V]: scores of the token after each one, for rows int32[B, T] of one text each.

        Compiled once per shape. Raises ValueError for tokens of another shape or outside the vocabulary.
        """
        return self._rows(_logits, tokens)

    def logprobs(self, tokens: ArrayLike) -> jax.Array:
        """float32[B, T]: log π of each token given those before it, 0 for the first; no [B, T, V] array is made."""
        return self._rows(_logprobs, tokens)

    def save(self, folder: str | Path) -> None:
        """Writes the model in HF format, as `transformers` loads it; tokenizer files are the caller's to add."""
        write_model(Path(folder), self.config, self.params)

    def _rows(self, compute: Callable[..., jax.Array], tokens: ArrayLike) -> jax.Array:
        ids = np.asarray(tokens)
        if ids.ndim != 2 or not ids.size or not np.issubdtype(ids.dtype, np.integer):
            raise ValueError(f"tokens are {ids.dtype}{list(ids.shape)}; expected int32[B, T]")
        if ids.min() < 0 or ids.max() >= self.config.vocab_size:
            raise ValueError(f"tokens span {ids.min()}–{ids.max()}; the vocabulary has 0–{self.config.vocab_size - 1}")
        rows, length = ids.shape
        # Devices get equally many rows, so padding rows may be needed.
        parts = devices_along(self.mesh, *ROWS)
        padded_ids = np.pad(ids.astype(np.int32), ((0, -rows % parts), (0, 0)))
        positions = np.broadcast_to(np.arange(length, dtype=np.int32), padded_ids.shape)
        batch = (padded_ids, positions, np.ones_like(padded_ids))
        if self.mesh is not None:
            batch = jax.device_put(batch, batch_sharding(self.mesh))
        return compute(self.config, self.params, *batch, mesh=self.mesh)[:rows]


def load(folder_or_hub_id: str | Path, mesh: Mesh | None = None, dtype: str | None = None) -> Policy:
    """The policy of a model folder in HF format, or of a hub id such as "Qwen/Qwen3-0.6B", which is downloaded once.

    With a `mesh` every tensor goes straight to its devices. `dtype` ("float32", "bfloat16", "float16") is that of
    parameters and computation; None means the model's own. No tokenizer is needed. Raises FileNotFoundError for a name
    that is neither a folder nor on the hub, ValueError for an unsupported config and for weights that do not fit it.
    """
    folder = resolve(folder_or_hub_id)
    overrides = {} if dtype is None else {"dtype": jnp.dtype(dtype).name, "param_dtype": jnp.dtype(dtype).name}
    config = ModelConfig.from_hf(read_config_json(folder), **overrides)
    return Policy(config, read_params(folder, config, mesh), mesh)


def resolve(folder_or_hub_id: str | Path) -> Path:
    """The local folder of a model; a hub id is downloaded. Raises FileNotFoundError."""
    folder = Path(folder_or_hub_id)
    if folder.is_dir():
        return folder
    name = str(folder_or_hub_id)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name) or name.startswith((".", "/")):
        raise FileNotFoundError(f"{name!r} is not a folder; expected one in HF format, or a hub id OWNER/NAME")
    # Imported here: a local folder needs no network library.
    from huggingface_hub import snapshot_download

    try:
        patterns = ["config.json", "model*.safetensors", "model.safetensors.index.json"]
        return Path(snapshot_download(name, allow_patterns=patterns))
    except Exception as error:
        raise FileNotFoundError(
            f"{name!r} is not a folder, and the hub did not give it: {type(error).__name__}: {error}. "
            "Check the name and the network, or download the model elsewhere and give its folder."
        ) from error


@functools.partial(jax.jit, static_argnums=0, static_argnames="mesh")
def _logits(config: ModelConfig, params: Params, *rows: jax.Array, mesh: Mesh | None) -> jax.Array:
    return transformer.logits(config, params, transformer.hidden_states(config, params, *rows, mesh=mesh))


_logprobs = jax.jit(logprobs.token_logprobs, static_argnums=0, static_argnames="mesh")
