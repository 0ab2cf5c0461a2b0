"""Writes and reads model folders in Hugging Face format: with a tokenizer for users, without one for a server.

An item is a version of the weights that all processes of a trainer save together; a model folder is restored from it:

weights/12/params/       Orbax: the parameters of the policy, in the dtype that servers load
weights/12/config.json   the model's shape
weights/12/files.json    the size of every file in params/
weights/12/served.json   the label of the version
"""

import contextlib
import dataclasses
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jax.sharding import Mesh

from cojax.durable import sync_folder, sync_tree
from cojax.policy import pretrained
from cojax.policy.config import ModelConfig
from cojax.policy.parameters import Params, parameters
from cojax.policy.saved_params import list_saved_outlines, make_reader, read_array
from cojax.storage.checkpoint import find_disk_error
from cojax.storage.files import MAX_JSON_BYTES, explain, is_number, read_json, write_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# dtype → the integer type that holds a number's bits, and the bits of its exponent.
_EXPONENT_BITS: dict[str, tuple[Any, int]] = {
    "float32": (np.uint32, 0x7F80_0000),
    "bfloat16": (np.uint16, 0x7F80),
    "float16": (np.uint16, 0x7C00),
}
_LABEL = "served.json"
_TOKENIZER_SUFFIXES = (".json", ".txt", ".model", ".jinja")
# Names of folders that are about to become a version, and of versions that are about to be removed.
_TEMPORARY_PATTERN = re.compile(r"\..+\.\d+\.(?:new|old)\.tmp")
_PARAMS, _SIZES_FILE = "params", "files.json"
_DTYPE_FIELDS = ("dtype", "param_dtype")  # fields of a shape that do not change which arrays a model has
_SLICE_LENGTH = 1 << 18  # numbers checked at a time: they fit into the processor's cache


def save_model(folder: Path, config: ModelConfig, params: Params, tokenizer: "PreTrainedTokenizerBase") -> None:
    """Writes a model folder that `transformers` loads: config.json, weights, tokenizer files."""
    pretrained.write_model(folder, config, params)
    write_tokenizer(folder, tokenizer)


def write_tokenizer(folder: Path, tokenizer: "PreTrainedTokenizerBase") -> None:
    """Writes tokenizer and chat template. Raises OSError with the fix when the disk refuses."""
    try:
        tokenizer.save_pretrained(folder)
    except Exception as error:  # the package tokenizers raises no other type
        if (cause := find_disk_error(error)) is not None:
            raise explain(cause, folder) from error
        raise


def load_params(folder: Path, config: ModelConfig, mesh: Mesh | None = None) -> Params:
    """The parameters of a model folder, read one tensor at a time and sharded over the mesh if one is given.

    Raises FileNotFoundError if the folder holds no weights, ValueError if they are damaged or of another model.
    """
    try:
        return pretrained.read_params(folder, config, mesh)
    except pretrained.DamagedFile as error:
        raise pretrained.DamagedFile(f"{error} Delete {folder} and make it again.") from error


def load_tokenizer(folder: Path) -> "PreTrainedTokenizerBase":
    """The tokenizer and chat template of a model folder. No code of the folder runs, and nothing is fetched.

    Raises ValueError, of one line, for files that are missing or damaged, for a tokenizer that is code, and for a
    template whose name no file can have: the package writes each template to a file of its name.
    """
    # Imported only now, so that errors of a configuration come first: it imports torch if that is installed.
    from transformers import AutoTokenizer

    for path in folder.glob("*.*"):
        if path.suffix in _TOKENIZER_SUFFIXES and not (path.is_file() and path.stat().st_size <= MAX_JSON_BYTES):
            raise ValueError(f"{path} is no file of a tokenizer; expected one of at most {MAX_JSON_BYTES:,} bytes")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        for template_name in tokenizer.chat_template if isinstance(tokenizer.chat_template, dict) else ():
            if not template_name.isprintable() or os.sep in template_name:
                raise ValueError(f"a chat template has the name {template_name!r:.80}")
        return tokenizer
    except Exception as error:  # of any type: the package trusts its files
        reason = f"{type(error).__name__}: {error}".partition("\n")[0][:300]
        raise ValueError(f"{folder} holds no tokenizer that can be read: {reason}") from error


# --- weights for a server ---


def write_weights(
    folder: Path,
    config: ModelConfig,
    arrays: Iterable[tuple[str, np.ndarray]],
    dtype: str = "",
    max_file_bytes: int = pretrained.MAX_FILE_BYTES,
    label: str = "",
) -> None:
    """Writes (HF name, array) pairs, in the order of `to_hf`, as a model folder without a tokenizer.

    One array is in memory at a time. Each is cast to `dtype`; "" means `config.param_dtype`. `label` is the name under
    which a server reports these weights; `read_label` reads it. The folder is replaced atomically. Raises ValueError
    for arrays that do not fit the model or are not finite, OSError with the fix if writing fails; an older folder of
    that name then stays.
    """
    config = dataclasses.replace(config, param_dtype=dtype or config.param_dtype)
    with replace_folder(folder, label) as new_folder:
        pretrained.write_arrays(new_folder, config, _cast_finite(arrays, np.dtype(config.param_dtype)), max_file_bytes)


@contextlib.contextmanager
def replace_folder(folder: Path, label: str = "") -> Iterator[Path]:
    """A new folder to fill. When the block ends it becomes `folder`, under the label, and replaces an older one.

    If the block fails, an older folder stays. Raises OSError with the fix if writing fails.
    """
    folder = folder.absolute()
    new_folder, old_folder = (folder.with_name(f".{folder.name}.{os.getpid()}.{role}.tmp") for role in ("new", "old"))
    for path in folder.parent.glob(".*.tmp"):  # what a killed writer left behind
        if _TEMPORARY_PATTERN.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)
    try:
        new_folder.mkdir(parents=True)
        yield new_folder
        if label:
            write_json(new_folder / _LABEL, {"label": label})
        if folder.exists():
            # rename() cannot replace a folder that is not empty.
            folder.rename(old_folder)
        new_folder.rename(folder)
        sync_folder(folder.parent)
    except OSError as error:
        if old_folder.exists() and not folder.exists():
            old_folder.rename(folder)
        raise explain(OSError(error.errno, os.strerror(error.errno or 0)), folder) from error
    finally:
        shutil.rmtree(new_folder, ignore_errors=True)
        shutil.rmtree(old_folder, ignore_errors=True)


def check_weights(folder: Path) -> None:
    """Raises FileNotFoundError or DamagedFile if a server could not load all of `folder`. Reads only the headers."""
    if not (folder / pretrained.CONFIG).exists():
        raise FileNotFoundError(f"no {pretrained.CONFIG} in {folder}; expected a model folder in HF format")
    file_names = {pretrained.ONE_FILE}
    if (folder / pretrained.INDEX).exists():
        file_names = set(pretrained.read_weight_map(folder).values())
    for file_name in sorted(file_names):
        if not (folder / file_name).exists():
            raise FileNotFoundError(f"no {file_name} in {folder}; expected a whole model folder. Write it again.")
        file_bytes = (folder / file_name).stat().st_size
        for tensor in pretrained.read_header(folder / file_name).values():
            if damage := tensor.damage(file_bytes):
                raise pretrained.DamagedFile(f"{damage}. Write {folder} again.")


def read_label(folder: Path) -> str:
    """The label that `folder` was written with, "" if none. Raises DamagedFile for a label that cannot be read."""
    try:
        return str(pretrained.read_object(folder / _LABEL)["label"])
    except FileNotFoundError:
        return ""
    except (ValueError, KeyError) as error:
        raise pretrained.DamagedFile(f"{folder / _LABEL} holds no label: {error}. Write {folder} again.") from error


def prune_weights(folder: Path, kept_folders: Iterable[Path]) -> None:
    """Removes every version in `folder` except those to keep; a version is a subfolder whose name is a number."""
    kept_paths = {path.absolute() for path in kept_folders}
    for path in list(folder.absolute().iterdir()) if folder.is_dir() else []:
        if is_number(path.name) and path not in kept_paths:
            shutil.rmtree(path, ignore_errors=True)


def _cast_finite(arrays: Iterable[tuple[str, np.ndarray]], dtype: np.dtype) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the arrays cast to `dtype`. Raises ValueError for one that is not finite."""
    for hf_name, array in arrays:
        cast_array = array.astype(dtype, copy=False)
        if not _is_finite(cast_array):
            raise ValueError(f"{hf_name} is not finite in {dtype.name}; training has diverged, nothing was written")
        yield hf_name, cast_array


def _is_finite(array: np.ndarray) -> bool:
    """Whether all numbers are finite, that is, no exponent has all bits set. `np.isfinite` is slow for bfloat16."""
    bits_dtype, exponent_mask = _EXPONENT_BITS[array.dtype.name]
    bits_array = np.ascontiguousarray(array).reshape(-1).view(bits_dtype)
    bit_slices = (bits_array[start : start + _SLICE_LENGTH] for start in range(0, bits_array.size, _SLICE_LENGTH))
    return all(int((bit_slice & bits_dtype(exponent_mask)).max()) != exponent_mask for bit_slice in bit_slices)


def write_item(folder: Path, config: ModelConfig, save: Callable[[str, str], None], dtype: str, label: str) -> None:
    """Has `save` write the parameters as `dtype` ("": `config.param_dtype`); the folder is replaced atomically.

    Raises what `save` raises, and OSError with the fix if writing fails; an older folder of that name then stays.
    """
    config = dataclasses.replace(config, param_dtype=dtype or config.param_dtype)
    with replace_folder(folder, label) as new_folder:
        try:
            save(str(new_folder / _PARAMS), config.param_dtype)
        except Exception as error:
            if (cause := find_disk_error(error)) is not None:
                raise cause from error
            raise
        sync_tree(new_folder / _PARAMS)
        write_json(new_folder / pretrained.CONFIG, config.to_hf())
        write_json(new_folder / _SIZES_FILE, _list_file_sizes(new_folder / _PARAMS))


def is_item(folder: Path) -> bool:
    """Whether `write_item` wrote the version; otherwise it is a model folder."""
    return (folder / _SIZES_FILE).exists()


def check_item(folder: Path) -> None:
    """Raises FileNotFoundError or DamagedFile if the files are not those that were written. Reads no arrays."""
    sizes, recorded = _list_file_sizes(folder / _PARAMS), read_json(folder / _SIZES_FILE)
    if wrong_names := sorted(path for path in sizes.keys() | recorded.keys() if sizes.get(path) != recorded.get(path)):
        path = wrong_names[0]
        size, full_size = sizes.get(path, "no"), recorded.get(path, "no")
        raise pretrained.DamagedFile(
            f"{folder / _PARAMS / path} has {size} bytes, expected {full_size}; let the trainer write another version"
        )


def item_bytes(folder: Path) -> int:
    """The size of the parameters on disk."""
    return sum(_list_file_sizes(folder / _PARAMS).values())


def other_model(folder: Path, config: ModelConfig) -> str:
    """How the model of a version differs from the expected one; empty if only in its dtype."""
    fields, expected_fields = dataclasses.asdict(ModelConfig.from_hf(folder)), dataclasses.asdict(config)
    names = [name for name in expected_fields if name not in _DTYPE_FIELDS and fields[name] != expected_fields[name]]
    return ", ".join(f"{name} {fields[name]}, expected {expected_fields[name]}" for name in names)


def restore_item(orbax_folder: Path, folder: Path, label: str) -> None:
    """Writes the model folder that a trainer would have written, one array in memory at a time.

    Raises FileNotFoundError if a file is missing, ValueError for arrays that do not match config.json.
    """
    config = ModelConfig.from_hf(orbax_folder)
    specs = {parameter.path: (parameter.shape(config), config.param_dtype) for parameter in parameters(config)}
    outlines = list_saved_outlines(orbax_folder / _PARAMS)
    if wrong_paths := sorted(path for path in specs.keys() | outlines.keys() if specs.get(path) != outlines.get(path)):
        path = wrong_paths[0]
        raise pretrained.DamagedFile(
            f"{'/'.join(path)} in {orbax_folder / _PARAMS} is {outlines.get(path, 'missing')}, expected "
            f"{specs.get(path, 'nothing')} by its {pretrained.CONFIG}; let the trainer write another version"
        )
    write_weights(folder, config, _restore_arrays(config, orbax_folder / _PARAMS), label=label)


def _restore_arrays(config: ModelConfig, params_folder: Path) -> Iterator[tuple[str, np.ndarray]]:
    reader = make_reader()
    for parameter in parameters(config):
        stacked_array = read_array(reader, params_folder, parameter.path, parameter.shape(config), config.param_dtype)
        for layer_index, hf_name in parameter.hf_names(config):
            yield hf_name, parameter.to_hf(stacked_array[layer_index], config)


def _list_file_sizes(folder: Path) -> dict[str, int]:
    """File → bytes."""
    return {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
