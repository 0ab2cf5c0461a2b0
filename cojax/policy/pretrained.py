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

from cojax.durable import open_regular_file, replacing, sync_folder
from cojax.policy import logprobs, transformer
from cojax.policy.config import MAX_HEADER_BYTES, DamagedFile, ModelConfig, read_object
from cojax.policy.parameters import (
    TIED_HEAD,
    Parameter,
    get_leaf,
    jit_policy,
    parameters,
    raise_faults,
    to_hf,
    with_leaf,
)
from cojax.policy.sharding import ROWS, batch_sharding, check_divides, count_devices, partition
from cojax.policy.sharding import place as put
from cojax.policy.transformer import Params

_DTYPE_BY_CODE: Mapping[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F16": np.dtype(np.float16),
}
_CODE_BY_DTYPE = {dtype: code for code, dtype in _DTYPE_BY_CODE.items()}
# Tensors to be written: name → the format's code of the dtype, and the shape.
Outlines = dict[str, tuple[str, tuple[int, ...]]]
_MAX_AXES = 8  # axes of a tensor
_MAX_NAME_LENGTH = 200  # characters of a tensor's name


def _count_tensor_bytes(dtype_code: str, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * _DTYPE_BY_CODE[dtype_code].itemsize


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies: bytes `start` to `end` of the file. `dtype` is the format's code, e.g. BF16."""

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    def damage(self, file_size: int) -> str:
        """Says what is wrong with the tensor in a file of `file_size` bytes; "" if nothing is."""
        if self.end > file_size:
            return f"{self.name} in {self.path} ends at byte {self.end}, but the file has {file_size}: it is truncated"
        if self.dtype not in _DTYPE_BY_CODE:
            return ""  # its size is unknown, which `read_params` reports
        expected_size = _count_tensor_bytes(self.dtype, self.shape)
        if self.end - self.start != expected_size:
            return (
                f"{self.name} in {self.path} takes {self.end - self.start} bytes, expected {expected_size} for "
                f"{self.dtype}{list(self.shape)}"
            )
        return ""

    def read(self) -> np.ndarray:
        """The tensor. Raises DamagedFile when the file ends early."""
        array = np.empty(math.prod(self.shape), _DTYPE_BY_CODE[self.dtype])
        with open(self.path, "rb", buffering=0, opener=open_regular_file) as file:
            file.seek(self.start)
            unread_bytes = memoryview(array.view(np.uint8).data)
            while unread_bytes and (read_count := file.readinto(unread_bytes)):
                unread_bytes = unread_bytes[read_count:]
        if unread_bytes:
            raise DamagedFile(f"{self.name}: {self.path} ended {len(unread_bytes)} bytes before the end of the tensor")
        return array.reshape(self.shape)


def find_code(dtype_name: str) -> str:
    """The format's code of "float32", "bfloat16" or "float16". Raises ValueError for another."""
    code_by_name = {dtype.name: code for code, dtype in _DTYPE_BY_CODE.items()}
    if dtype_name not in code_by_name:
        raise ValueError(f"dtype {dtype_name!r} is not supported; available: {', '.join(code_by_name)}")
    return code_by_name[dtype_name]


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Name → entry of every tensor in a file. Raises DamagedFile unless it is safetensors, OSError for a pipe."""
    size = path.stat().st_size
    with open(path, "rb", opener=open_regular_file) as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
            raise DamagedFile(f"{path} cannot be read: found {size} bytes, expected a header of {length} and tensors")
        header_json = file.read(length)
    try:
        header = json.loads(header_json)
        header.pop("__metadata__", None)
        return {tensor_name: _read_entry(path, tensor_name, entry, 8 + length) for tensor_name, entry in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedFile(f"{path} cannot be read: its header is damaged: {error}. Copy or make it again.") from error


def _read_entry(path: Path, name: str, record: Any, data_start: int) -> StoredTensor:
    if len(name) > _MAX_NAME_LENGTH or not name.isprintable():
        raise ValueError(f"{name[:_MAX_NAME_LENGTH]!r} is not a tensor's name")
    (start, end), shape = record["data_offsets"], record["shape"]
    if len(shape) > _MAX_AXES or not all(type(n) is int and 0 <= n < 2**63 for n in (start, end, *shape)):
        raise ValueError(f"{name} has sizes or offsets that are negative, too large or not whole numbers")
    return StoredTensor(path, name, str(record["dtype"]), tuple(shape), data_start + start, data_start + end)


def write_tensors(path: Path, specs: Outlines, arrays: Iterator[tuple[str, np.ndarray]]) -> None:
    """Writes one file, taking exactly the arrays of these specs in their order and dropping each once it is written.

    The file appears whole or not at all. Raises ValueError for an array that differs from its spec, OSError that
    says what to do.
    """
    with _explain_write_errors(path), replacing(path) as file:
        _write_tensors(file, specs, arrays)


def _write_tensors(file: BinaryIO, specs: Outlines, arrays: Iterator[tuple[str, np.ndarray]]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for array_name, (dtype, shape) in specs.items():
        offsets = [offset, offset := offset + _count_tensor_bytes(dtype, shape)]
        header[array_name] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
    header_json = json.dumps(header, separators=(",", ":")).encode()
    header_json += b" " * (-len(header_json) % 8)
    file.write(len(header_json).to_bytes(8, "little") + header_json)
    for tensor_name, (dtype, shape) in specs.items():
        array_name, array = next(arrays)
        actual = array_name, _CODE_BY_DTYPE.get(array.dtype), array.shape
        if actual != (tensor_name, dtype, shape):
            raise ValueError(f"{file.name}: found {actual}, expected {(tensor_name, dtype, shape)}")
        file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    file.flush()  # a full disk shows before any file of a folder gets its name
    os.fsync(file.fileno())


@contextlib.contextmanager
def _explain_write_errors(path: Path) -> Iterator[None]:
    """Adds advice to an OSError."""
    try:
        yield
    except OSError as error:
        raise OSError(
            error.errno, f"cannot write {path}: {error.strerror or error}. Free space, or choose another folder."
        ) from error


def split_files(specs: Outlines, max_bytes: int) -> list[Outlines]:
    """Splits the specs, in order, into files of `max_bytes` at most; a larger tensor has a file of its own."""
    file_specs: list[Outlines] = [{}]
    file_size = 0
    for tensor_name, spec in specs.items():
        if file_specs[-1] and file_size + _count_tensor_bytes(*spec) > max_bytes:
            file_specs.append({})
            file_size = 0
        file_specs[-1][tensor_name] = spec
        file_size += _count_tensor_bytes(*spec)
    return file_specs


ONE_FILE, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
MAX_FILE_BYTES = 5_000_000_000  # bytes of tensors in one file


def read_params(folder: Path, config: ModelConfig, mesh: Mesh | None = None) -> Params:
    """Reads the parameters in `folder` as `config.param_dtype`, laid out over the mesh if there is one.

    All names, shapes and dtypes are checked first. Then tensors are read one by one into leaves that are filled in
    place, which takes the memory of the parameters and about two tensors. Every tensor must have the dtype that the
    folder's config.json declares, if it declares one. Raises FileNotFoundError if there are no weights, DamagedFile for
    a file that cannot be read, ValueError that names every tensor that does not fit.
    """
    if mesh is not None:
        check_divides(config, mesh)
    tensors = _list_tensors(folder)
    if config.tie_word_embeddings:
        tensors.pop(TIED_HEAD, None)
    config_json = read_config_json(folder) if (folder / CONFIG).exists() else {}
    _check_tensors(tensors, config, config_json.get("dtype") or config_json.get("torch_dtype"))
    params: Params = {}
    for parameter in parameters(config):
        params = with_leaf(params, parameter, _read_leaf(parameter, config, tensors, mesh))
    return params


def write_model(folder: Path, config: ModelConfig, params: Params, max_file_bytes: int = MAX_FILE_BYTES) -> None:
    """Writes config.json and the weights, in files of at most `max_file_bytes` bytes; `transformers` loads the folder.

    A new folder appears whole or not at all. In an existing one each file is replaced atomically, config.json last, and
    weights of a former model are removed. Raises ValueError for parameters that do not fit `config`, OSError, with
    what to do about it, if the files cannot be written.
    """
    _check_params(config, params)
    if folder.exists():
        write_arrays(folder, config, to_hf(config, params), max_file_bytes)
        return
    partial_folder = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        partial_folder.mkdir(parents=True)
        write_arrays(partial_folder, config, to_hf(config, params), max_file_bytes)
        partial_folder.rename(folder)
        sync_folder(folder.absolute().parent)
    finally:
        shutil.rmtree(partial_folder, ignore_errors=True)


def write_arrays(
    folder: Path, config: ModelConfig, arrays: Iterator[tuple[str, np.ndarray]], max_file_bytes: int = MAX_FILE_BYTES
) -> None:
    """Writes config.json and (HF name, array) pairs, in the order of `to_hf`, to an existing folder.

    Memory holds one array at a time. Each file is replaced atomically, config.json last; weights of a former model are
    removed. Raises ValueError for an array that is not the model's, OSError, with what to do about it, if the files
    cannot be written.
    """
    dtype = find_code(config.param_dtype)
    specs = {name: (dtype, row.hf_shape(config)) for row in parameters(config) for _, name in row.hf_names(config)}
    shards = split_files(specs, max_file_bytes)
    count = len(shards)
    names = [ONE_FILE] if count == 1 else [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]
    with _explain_write_errors(folder):
        with contextlib.ExitStack() as stack:  # the files get their names together, once all are written
            for file_name, contents in zip(names, shards, strict=True):
                _write_tensors(stack.enter_context(replacing(folder / file_name)), contents, arrays)
        if count > 1:
            file_by_tensor = {tensor: name for name, contents in zip(names, shards, strict=True) for tensor in contents}
            metadata = {"total_size": sum(_count_tensor_bytes(*spec) for spec in specs.values())}
            _write_json(folder / INDEX, {"metadata": metadata, "weight_map": file_by_tensor})
        new_names = {*names, *([INDEX] if count > 1 else [])}
        for old_file in (*folder.glob("model*.safetensors"), folder / INDEX):
            if old_file.name not in new_names:  # of another model: a reader would take it for ours
                old_file.unlink(missing_ok=True)
        _write_json(folder / CONFIG, config.to_hf())


def _list_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Lists every tensor of the folder. Raises for missing or damaged files and for an index that contradicts them."""
    faults: list[str] = []
    if (folder / ONE_FILE).exists():
        tensors = read_header(folder / ONE_FILE)
    elif (folder / INDEX).exists():
        tensors, faults = _read_indexed_tensors(folder)
    else:
        raise FileNotFoundError(f"no {ONE_FILE} in {folder}, and no {INDEX}; expected a model folder in HF format")
    file_sizes = {tensor.path: tensor.path.stat().st_size for tensor in tensors.values()}
    damage_reports = [fault for tensor in tensors.values() if (fault := tensor.damage(file_sizes[tensor.path]))]
    if faults or damage_reports:
        problems = [*faults, *damage_reports]
        suffix = f"; and {len(problems) - 20} more" if len(problems) > 20 else ""
        raise DamagedFile(f"{folder} cannot be read: {'; '.join(problems[:20])}{suffix}. Copy or make it again.")
    return tensors


def _read_indexed_tensors(folder: Path) -> tuple[dict[str, StoredTensor], list[str]]:
    """The tensors of a folder with an index, and the faults where index and files disagree."""
    file_of = read_weight_map(folder)
    files = sorted(set(file_of.values()))
    faults = [f"{INDEX} names {file}, which is not in the folder" for file in files if not (folder / file).exists()]
    headers = {file: read_header(folder / file) for file in files if (folder / file).exists()}
    tensors: dict[str, StoredTensor] = {}
    for tensor, file in file_of.items():
        if tensor in headers.get(file, {}):
            tensors[tensor] = headers[file][tensor]
        elif file in headers:
            holding_file = next((other_file for other_file, header in headers.items() if tensor in header), "no file")
            faults.append(f"{tensor} is in {holding_file}, expected in {file}, where {INDEX} places it")
    for file, header in headers.items():
        faults += [f"{tensor} is in {file}, but {INDEX} does not list it" for tensor in header if tensor not in file_of]
    return tensors, faults


def read_weight_map(folder: Path) -> dict[str, str]:
    """Tensor → name of its file, from the index. Raises DamagedFile if the index is damaged or leads outside."""
    path = folder / INDEX
    try:
        file_by_tensor = {tensor: str(file_name) for tensor, file_name in read_object(path)["weight_map"].items()}
    except (ValueError, KeyError, AttributeError) as error:
        raise DamagedFile(f"{path} cannot be read: {error}; expected a weight_map") from error
    if outside_names := [file_name for file_name in file_by_tensor.values() if Path(file_name).name != file_name]:
        raise DamagedFile(f"{path} names {outside_names[0]!r:.80}; expected files of its own folder")
    return file_by_tensor


def read_config_json(folder: Path) -> dict[str, Any]:
    """config.json as it stands. Raises FileNotFoundError if there is none, ValueError unless it is a JSON object."""
    if not (folder / CONFIG).exists():
        raise FileNotFoundError(f"no {CONFIG} in {folder}; expected a model folder in HF format")
    return read_object(folder / CONFIG)


def _check_tensors(tensors: Mapping[str, StoredTensor], config: ModelConfig, folder_dtype: str | None) -> None:
    """Raises ValueError that names every tensor that is missing, unexpected, or of another shape or dtype."""
    parameter_by_name = {name: parameter for parameter in parameters(config) for _, name in parameter.hf_names(config)}
    faults = [f"{name} is missing" for name in parameter_by_name if name not in tensors]
    for name, tensor in tensors.items():
        if name not in parameter_by_name:
            faults.append(f"{name} is not part of this model")
        elif tensor.shape != (shape := parameter_by_name[name].hf_shape(config)):
            faults.append(f"{name} has shape {tensor.shape}, expected {shape}")
        elif folder_dtype and tensor.dtype != find_code(folder_dtype):
            faults.append(f"{name} has dtype {tensor.dtype}, expected {find_code(folder_dtype)} as {CONFIG} declares")
        elif tensor.dtype not in _DTYPE_BY_CODE:
            faults.append(f"{name} has dtype {tensor.dtype}, expected one of {', '.join(_DTYPE_BY_CODE)}")
    raise_faults(faults)


def _read_leaf(
    parameter: Parameter, config: ModelConfig, tensors: Mapping[str, StoredTensor], mesh: Mesh | None
) -> jax.Array:
    """Fills one leaf tensor by tensor, waiting for each so that only one is under way."""
    dtype = jnp.dtype(config.param_dtype)
    sharding: Sharding = SingleDeviceSharding(jax.local_devices()[0])
    layer_sharding = sharding
    if mesh is not None:
        spec = partition(parameter)
        sharding = NamedSharding(mesh, spec)
        layer_sharding = NamedSharding(mesh, PartitionSpec(*spec[len(parameter.lead_axes) :]))
    leaf = None
    for stack_index, hf_name in parameter.hf_names(config):
        host_array = parameter.from_hf(tensors[hf_name].read(), config).astype(dtype, copy=False)
        layer_array = put(host_array, layer_sharding)
        if not parameter.lead_axes:
            return jax.block_until_ready(layer_array)
        if leaf is None:
            leaf = _make_zeros(parameter.shape(config), dtype, sharding)
        leaf = jax.block_until_ready(_fill_layer(leaf, layer_array, np.asarray(stack_index, np.int32), sharding))
    assert leaf is not None
    return leaf


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _make_zeros(shape: tuple[int, ...], dtype: np.dtype, sharding: Sharding) -> jax.Array:
    return jax.lax.with_sharding_constraint(jnp.zeros(shape, dtype), sharding)


@functools.partial(jax.jit, static_argnums=3, donate_argnums=0)
def _fill_layer(leaf: jax.Array, layer_array: jax.Array, stack_index: jax.Array, sharding: Sharding) -> jax.Array:
    """Writes one layer's array at `stack_index` of the leaf's stacked axes; the leaf's memory is reused."""
    starts = [stack_index[axis] for axis in range(stack_index.shape[0])] + [jnp.int32(0)] * layer_array.ndim
    block = layer_array.reshape((1,) * stack_index.shape[0] + layer_array.shape)
    # As plain bits: XLA for CPU would turn a whole bfloat16 leaf into float32 and back.
    bits_dtype = {2: jnp.uint16, 4: jnp.uint32}[leaf.dtype.itemsize]
    old_bits, new_bits = (jax.lax.bitcast_convert_type(x, bits_dtype) for x in (leaf, block))
    new_leaf = jax.lax.bitcast_convert_type(jax.lax.dynamic_update_slice(old_bits, new_bits, starts), leaf.dtype)
    return jax.lax.with_sharding_constraint(new_leaf, sharding)


def _check_params(config: ModelConfig, params: Params) -> None:
    """Raises ValueError that names every parameter whose dtype or shape is not the config's."""
    faults = []
    for parameter in parameters(config):
        leaf = get_leaf(params, parameter)
        actual, spec = (leaf.dtype.name, leaf.shape), (config.param_dtype, parameter.shape(config))
        if actual != spec:
            faults.append(f"{parameter.name} is {actual[0]}{list(actual[1])}, expected {spec[0]}{list(spec[1])}")
    raise_faults(faults)


def _write_json(path: Path, content: Any) -> None:
    with replacing(path) as file:
        file.write((json.dumps(content, indent=1) + "\n").encode())


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
        return self._compute_rows(_compute_logits, tokens)

    def logprobs(self, tokens: ArrayLike) -> jax.Array:
        """float32[B, T]: log π of each token given those before it, 0 for the first; no [B, T, V] array is made."""
        return self._compute_rows(_compute_logprobs, tokens)

    def save(self, folder: str | Path) -> None:
        """Writes the model in HF format, as `transformers` loads it; tokenizer files are the caller's to add."""
        write_model(Path(folder), self.config, self.params)

    def _compute_rows(self, compute: Callable[..., jax.Array], tokens: ArrayLike) -> jax.Array:
        ids = np.asarray(tokens)
        if ids.ndim != 2 or not ids.size or not np.issubdtype(ids.dtype, np.integer):
            raise ValueError(f"tokens are {ids.dtype}{list(ids.shape)}; expected int32[B, T]")
        if ids.min() < 0 or ids.max() >= self.config.vocab_size:
            raise ValueError(f"tokens span {ids.min()}–{ids.max()}; the vocabulary has 0–{self.config.vocab_size - 1}")
        row_count, length = ids.shape
        # Devices get equally many rows and tokens of a row, so padding may be needed.
        part_count = count_devices(self.mesh, "context")
        padding = -row_count % count_devices(self.mesh, *ROWS), -length % (2 * part_count if part_count > 1 else 1)
        padded_ids = np.pad(ids.astype(np.int32), [(0, count) for count in padding])
        positions = np.broadcast_to(np.arange(padded_ids.shape[1], dtype=np.int32), padded_ids.shape)
        batch = (padded_ids, positions, np.ones_like(padded_ids))
        if self.mesh is not None:
            batch = jax.device_put(batch, batch_sharding(self.mesh))
        return compute(self.config, self.params, *batch, mesh=self.mesh)[:row_count, :length]


def load(folder_or_hub_id: str | Path, mesh: Mesh | None = None, dtype: str | None = None) -> Policy:
    """The policy of a model folder in HF format, or of a hub id such as "Qwen/Qwen3-0.6B", which is downloaded once.

    With a `mesh` every tensor goes straight to its devices. `dtype` ("float32", "bfloat16", "float16") is that of
    parameters and computation; None means the model's own. No tokenizer is needed. Raises FileNotFoundError for a name
    that is neither a folder nor on the hub, ValueError for an unsupported config and for weights that do not fit it.
    """
    folder = find_model_folder(folder_or_hub_id)
    overrides = {} if dtype is None else {"dtype": jnp.dtype(dtype).name, "param_dtype": jnp.dtype(dtype).name}
    config = ModelConfig.from_hf(read_config_json(folder), **overrides)
    return Policy(config, read_params(folder, config, mesh), mesh)


def find_model_folder(folder_or_hub_id: str | Path) -> Path:
    """The local folder of a model; a hub id is downloaded. Raises FileNotFoundError."""
    folder = Path(folder_or_hub_id)
    if folder.is_dir():
        return folder
    hub_id = str(folder_or_hub_id)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", hub_id) or hub_id.startswith((".", "/")):
        raise FileNotFoundError(f"{hub_id!r} is not a folder; expected one in HF format, or a hub id OWNER/NAME")
    # Imported here: a local folder needs no network library.
    from huggingface_hub import snapshot_download

    try:
        patterns = ["config.json", "model*.safetensors", "model.safetensors.index.json"]
        return Path(snapshot_download(hub_id, allow_patterns=patterns))
    except Exception as error:
        raise FileNotFoundError(
            f"{hub_id!r} is not a folder, and the hub did not give it: {type(error).__name__}: {error}. "
            "Check the name and the network, or download the model elsewhere and give its folder."
        ) from error


@functools.partial(jit_policy, static_argnums=0, static_argnames="mesh")
def _compute_logits(config: ModelConfig, params: Params, *rows: jax.Array, mesh: Mesh | None) -> jax.Array:
    return transformer.compute_logits(config, params, transformer.compute_hidden(config, params, *rows, mesh=mesh))


_compute_logprobs = jit_policy(logprobs.token_logprobs, static_argnums=0, static_argnames="mesh")
