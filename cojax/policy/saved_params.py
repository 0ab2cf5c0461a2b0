"""Saves arrays in folders by Orbax: parameters for servers, which read them one by one, and parts of checkpoints."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp


def make_reader() -> ocp.Checkpointer:
    return ocp.Checkpointer(ocp.PyTreeCheckpointHandler())


def list_leaves(tree: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(path, leaf) of each leaf."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        yield tuple(re.findall(r"\w+", jax.tree_util.keystr(path))), leaf


def save_params(params: Any, folder: str, dtype: str) -> None:
    """Writes a pytree of arrays to a new folder, cast to `dtype` as NumPy casts; it is complete on return.

    If arrays are spread over several processes, all of them call this, and each writes its own part.
    """
    # Parameters hardly compress, and servers wait for them.
    writer = ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_compression=False))
    save_args = jax.tree.map(lambda leaf: ocp.SaveArgs(dtype=np.dtype(dtype)), params)
    writer.save(Path(folder).absolute(), args=ocp.args.PyTreeSave(params, save_args=save_args))


def read_outlines(reader: ocp.Checkpointer, folder: Path) -> Any:
    """The pytree saved in a folder, without its numbers. Raises ValueError or OSError."""
    with explain_damage(folder):
        tree = reader.metadata(folder).item_metadata.tree
        for leaf in jax.tree.leaves(tree):
            chunk_shape = leaf.storage.chunk_shape if leaf.storage else None
            # A forged chunk shape alone would make the reader allocate memory.
            if any(chunk_size > max(1, size) for chunk_size, size in zip(chunk_shape or (), leaf.shape, strict=True)):
                raise ValueError(f"{leaf.name} of shape {leaf.shape} in pieces of {chunk_shape}")
    return tree


def read_arrays(reader: ocp.Checkpointer, folder: Path, abstract_tree: Any) -> Any:
    """Reads as NumPy arrays those arrays of a folder whose shapes are in `abstract_tree`."""
    restore_args = jax.tree.map(lambda leaf: ocp.RestoreArgs(restore_type=np.ndarray), abstract_tree)
    with explain_damage(folder):
        return reader.restore(
            folder, args=ocp.args.PyTreeRestore(item=abstract_tree, restore_args=restore_args, partial_restore=True)
        )


@contextlib.contextmanager
def explain_damage(folder: Path) -> Iterator[None]:
    """Turns whatever Orbax raises for damaged files into a ValueError of one line; an OSError passes."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ValueError(f"the arrays in {folder} cannot be read: {reason}. Restore them from a copy") from error


def list_saved_outlines(folder: Path) -> dict[tuple[str, ...], tuple[tuple[int, ...], str]]:
    """Path of each array that `save_params` wrote to `folder` → its shape and dtype. Raises as `read_array` does."""
    leaves = list_leaves(read_outlines(make_reader(), folder.absolute()))
    return {path: (tuple(leaf.shape), np.dtype(leaf.dtype).name) for path, leaf in leaves}


def read_array(
    reader: ocp.Checkpointer, folder: Path, path: Sequence[str], shape: tuple[int, ...], dtype: str
) -> np.ndarray:
    """The array at this path in a folder of `save_params`. Raises ValueError or OSError.

    Not for one process of several: Orbax waits for the others.
    """
    abstract_tree: Any = jax.ShapeDtypeStruct(shape, np.dtype(dtype))
    for key in reversed(path):
        abstract_tree = {key: abstract_tree}
    (array,) = jax.tree.leaves(read_arrays(reader, folder.absolute(), abstract_tree))
    return np.asarray(array)
