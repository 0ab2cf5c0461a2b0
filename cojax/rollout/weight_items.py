"""A version of the weights as all processes of a trainer save it together, restored into a model folder for a server.

weights/12/params/       Orbax: the parameters of the policy, in the dtype that servers load
weights/12/config.json   the model's shape
weights/12/files.json    the size of every file in params/
weights/12/served.json   the label of the version
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from cojax.durable import sync_tree
from cojax.policy.config import ModelConfig
from cojax.policy.model_folder import CONFIG
from cojax.policy.parameters import parameters
from cojax.policy.tensor_files import DamagedFile
from cojax.rollout.export import replaced, write_weights
from cojax.storage.checkpoint import SavedParams, disk_error
from cojax.storage.files import read_json, write_json

_PARAMS, _FILES = "params", "files.json"
_DTYPES = ("dtype", "param_dtype")  # fields of a shape that do not change which arrays a model has


def write_item(folder: Path, config: ModelConfig, save: Callable[[str, str], None], dtype: str, label: str) -> None:
    """Has `save` write the parameters as `dtype` ("": `config.param_dtype`); the folder is replaced atomically.

    Raises what `save` raises, and OSError with the fix if writing fails; an older folder of that name then stays.
    """
    config = dataclasses.replace(config, param_dtype=dtype or config.param_dtype)
    with replaced(folder, label) as part:
        try:
            save(str(part / _PARAMS), config.param_dtype)
        except Exception as error:
            if (cause := disk_error(error)) is not None:
                raise cause from error
            raise
        sync_tree(part / _PARAMS)
        write_json(part / CONFIG, config.to_hf())
        write_json(part / _FILES, _sizes(part / _PARAMS))


def is_item(folder: Path) -> bool:
    """Whether the version is one that `write_item` wrote, and no model folder."""
    return (folder / _FILES).exists()


def check_item(folder: Path) -> None:
    """Raises FileNotFoundError or DamagedFile if the files are not those that were written. Reads no arrays."""
    found, expected = _sizes(folder / _PARAMS), read_json(folder / _FILES)
    if different := sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name)):
        name = different[0]
        one, other = found.get(name, "no"), expected.get(name, "no")
        raise DamagedFile(
            f"{folder / _PARAMS / name} has {one} bytes, expected {other}; let the trainer write another version"
        )


def item_bytes(folder: Path) -> int:
    """The size of the parameters on disk."""
    return sum(_sizes(folder / _PARAMS).values())


def shape_of(folder: Path) -> ModelConfig:
    """The shape of a version's model, whose dtypes are those of its arrays."""
    return ModelConfig.from_hf(folder)


def other_model(folder: Path, expected: ModelConfig) -> str:
    """How the model of a version differs from the expected one; empty if only in its dtype."""
    found, wanted = dataclasses.asdict(shape_of(folder)), dataclasses.asdict(expected)
    names = [name for name in wanted if name not in _DTYPES and found[name] != wanted[name]]
    return ", ".join(f"{name} {found[name]}, expected {wanted[name]}" for name in names)


def restore_item(item: Path, folder: Path, label: str) -> None:
    """Writes the model folder that a trainer would have written, one array in memory at a time.

    Raises FileNotFoundError where a file is missing, ValueError for arrays that are not those of config.json.
    """
    config, saved = shape_of(item), SavedParams(item / _PARAMS)
    wanted = {row.path: (row.shape(config), config.param_dtype) for row in parameters(config)}
    found = saved.outlines
    if different := sorted(path for path in wanted.keys() | found.keys() if wanted.get(path) != found.get(path)):
        path = different[0]
        raise DamagedFile(
            f"{'/'.join(path)} in {item / _PARAMS} is {found.get(path, 'missing')}, expected "
            f"{wanted.get(path, 'nothing')} by its {CONFIG}; let the trainer write another version"
        )
    write_weights(folder, config, _arrays(config, saved), label=label)


def _arrays(config: ModelConfig, saved: SavedParams) -> Iterator[tuple[str, np.ndarray]]:
    for row in parameters(config):
        leaf = saved.read(row.path)
        for index, name in row.pieces(config):
            yield name, row.to_hf(leaf[index], config)


def _sizes(folder: Path) -> dict[str, int]:
    """File → bytes."""
    return {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
