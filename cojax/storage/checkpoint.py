"""Checkpoints: arrays by Orbax, everything else as JSON; one directory per step, written atomically.

checkpoints/12/arrays/       Orbax
checkpoints/12/host.json     step, the caller's host state, size and CRC-32 of every file in arrays/, its own checksum
"""

import contextlib
import dataclasses
import errno
import functools
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from cojax.durable import crc32, sync_folder, sync_tree
from cojax.policy.saved_params import explain_damage, list_leaves, make_reader, read_arrays, read_outlines
from cojax.storage.checksums import add_checksum, has_valid_checksum
from cojax.storage.files import CheckpointError as CheckpointError
from cojax.storage.files import StorageError, explain, explain_reading, is_number, open_file, read_json, write_json

_LOG = logging.getLogger(__name__)
# Names of folders that are about to become a step, and of steps that are about to be removed.
_TEMPORARY_FOLDER_PATTERN = re.compile(r"\.\d+\.\d+(?:\.old)?\.tmp")


@functools.cache
def _make_checkpointer() -> ocp.Checkpointer:
    """Made only when needed: it starts JAX's backend, and processes must find each other or fork before that."""
    return ocp.Checkpointer(ocp.StandardCheckpointHandler())


def save_arrays(folder: Path, arrays: Any) -> None:
    """Writes a pytree of arrays as a new folder; the write is complete on return.

    If arrays are spread over several processes, all of them call it, and `restore_arrays` too.
    """
    _make_checkpointer().save(folder, args=ocp.args.StandardSave(arrays))


def restore_arrays(folder: Path, outline: Any) -> Any:
    """Reads the arrays into the structure, dtypes and shardings of `outline`, a pytree of outlines."""
    return _make_checkpointer().restore(folder, args=ocp.args.StandardRestore(outline))


# How the arrays of a checkpoint are saved and restored.
ArrayFiles = tuple[Callable[[Path, Any], None], Callable[[Path, Any], Any]]
ORBAX_FILES: ArrayFiles = (save_arrays, restore_arrays)


# A step whose files are all as written, its host state, and why later steps are not used.
SoundCheckpoint = tuple[int, dict[str, Any], tuple[str, ...]]


@dataclasses.dataclass(frozen=True, eq=False)
class Checkpointer:
    """Saves checkpoints in `folder` and restores them; the newest `keep` steps stay."""

    folder: Path
    keep: int = 3
    array_files: ArrayFiles = ORBAX_FILES

    def save(self, step: int, arrays: Any, host_state: Mapping[str, Any]) -> None:
        """Writes one step, then prunes. All is on disk on return: the arrays may be donated at once.

        arrays: a pytree of jax or NumPy arrays; host: JSON values. An existing step is replaced. Raises
        StorageError if the disk refuses; older checkpoints are then untouched.
        """
        folder = self.folder.absolute()
        temporary_folder, step_folder = folder / f".{step}.{os.getpid()}.tmp", folder / str(step)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._remove_temporary()
            temporary_folder.mkdir()
            save, _ = self.array_files
            save(temporary_folder / "arrays", arrays)
            sync_tree(temporary_folder)
            host_record = {"step": step, "host": host_state, "files": _list_files(temporary_folder / "arrays")}
            write_json(temporary_folder / "host.json", add_checksum(host_record))
            if step_folder.exists():
                # A directory cannot replace one that is not empty: the old one is renamed, and the sweep removes it.
                step_folder.rename(folder / f".{step}.{os.getpid()}.old.tmp")
            temporary_folder.rename(step_folder)
            sync_folder(folder)
            # A later step can only be one that was damaged and skipped: the run is writing it again.
            for old_step in set(self.steps()) - set(self.steps_to_keep(step)):
                shutil.rmtree(folder / str(old_step))
            self._remove_temporary()
        except Exception as error:
            shutil.rmtree(temporary_folder, ignore_errors=True)
            if (disk_failure := find_disk_error(error)) is not None:
                raise explain(disk_failure, step_folder) from error
            raise

    def find_newest(self) -> SoundCheckpoint | None:
        """The newest sound step, or None if nothing was ever saved. Writes nothing.

        Raises CheckpointError if steps exist but none is sound.
        """
        steps = self.steps()
        faults = []
        for step in reversed(steps):
            folder = self.folder.absolute() / str(step)
            try:
                host_state = _verify_host(folder)
            except PermissionError as error:
                raise explain_reading(error, folder) from error
            except _DAMAGE_ERRORS as error:
                faults.append(f"checkpoint {folder} is damaged and skipped: {_describe_reason(error)}")
                continue
            return step, host_state, tuple(faults)
        if steps:
            raise CheckpointError(
                f"no usable checkpoint in {self.folder}: all of {steps} are damaged, the newest: "
                f"{faults[0].partition(' skipped: ')[2]}. Restore the folder from a copy, or start in a new workdir."
            )
        return None

    def read_arrays(self, step: int, outline: Any) -> Any:
        """The arrays of a sound step. Raises CheckpointError if they do not fit `outline`."""
        folder = self.folder.absolute() / str(step)
        target_outlines = jax.tree.map(ocp.utils.to_shape_dtype_struct, outline)
        shapes, target = _list_shapes(read_outlines(make_reader(), folder / "arrays")), _list_shapes(target_outlines)
        if paths := sorted(path for path in shapes.keys() | target.keys() if shapes.get(path) != target.get(path)):
            path = paths[0]
            raise CheckpointError(
                f"checkpoint {folder} does not fit the model: {len(paths)} arrays differ, first {path}: "
                f"found {shapes.get(path, 'none')}, expected {target.get(path, 'none')}. "
                "Use the configuration it was saved with, or start in a new workdir."
            )
        with explain_damage(folder / "arrays"):
            _, restore = self.array_files
            return restore(folder / "arrays", target_outlines)

    def part(
        self, branch_name: str, step: int | None = None, check_shapes: Callable[[Any], None] = lambda tree: None
    ) -> tuple[int, Any, str]:
        """One branch of a checkpoint, such as the parameters without the optimiser's state: (step, arrays, content).

        The arrays are NumPy's; `content` identifies the content of the whole checkpoint. It is of `step`, or of the
        newest sound step. Writes nothing, so that it can be called while the run goes on.
        `check_shapes` raises for outlines that do not fit, before any array is read. Raises CheckpointError if the step
        is missing or damaged or has no such branch, or if no step is sound, and ValueError for arrays that are damaged.
        """
        steps = self.steps()
        if not steps:
            raise CheckpointError(f"no checkpoint in {self.folder}; let the run reach its first one")
        if step is not None and step not in steps:
            raise CheckpointError(f"no step {step} in {self.folder}; it has {', '.join(map(str, steps))}")
        faults = []
        for candidate_step in reversed(steps) if step is None else [step]:
            folder = self.folder.absolute() / str(candidate_step)
            try:
                _verify_host(folder)
                content_crc = _compute_crc32(folder / "host.json")
            except _DAMAGE_ERRORS as error:
                faults.append(f"checkpoint {folder} is damaged: {_describe_reason(error)}")
                _LOG.warning("%s", faults[-1])
                continue
            return candidate_step, self._read_branch(folder, branch_name, check_shapes), f"{content_crc:08x}"
        others = [str(other_step) for other_step in steps if other_step != step]
        fix = f"Choose another step ({', '.join(others)})" if step is not None and others else "Restore it from a copy"
        raise CheckpointError(f"{'; '.join(faults)}. {fix}.")

    def steps_to_keep(self, step: int) -> list[int]:
        """The steps that are kept once `step` is saved."""
        return sorted({*(earlier_step for earlier_step in self.steps() if earlier_step < step), step})[-self.keep :]

    def hosts(self, steps: Iterable[int]) -> list[dict[str, Any]]:
        """The host states of these steps, without those that are missing or cannot be read."""
        host_states = []
        for step in steps:
            with contextlib.suppress(*_DAMAGE_ERRORS):
                host_states.append(_read_record(self.folder / str(step))["host"])
        return host_states

    def steps(self) -> list[int]:
        """The steps saved, ascending. Whether they are sound is not checked."""
        if not self.folder.is_dir():
            return []
        folder_names = [path.name for path in self.folder.iterdir() if is_number(path.name)]
        return sorted(int(folder_name) for folder_name in folder_names if str(int(folder_name)) == folder_name)

    def _read_branch(self, folder: Path, name: str, check_shapes: Callable[[Any], None]) -> Any:
        reader = make_reader()
        tree = read_outlines(reader, folder / "arrays")
        if not isinstance(tree, Mapping) or name not in tree:
            raise CheckpointError(f"checkpoint {folder} holds no {name}; expected one of a run of this project")
        check_shapes(tree[name])
        branch_structs = {name: jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree[name])}
        return read_arrays(reader, folder / "arrays", branch_structs)[name]

    def _remove_temporary(self) -> None:
        """Removes what a killed save left behind."""
        for temporary_folder in self.folder.glob(".*.tmp"):
            if _TEMPORARY_FOLDER_PATTERN.fullmatch(temporary_folder.name):
                shutil.rmtree(temporary_folder, ignore_errors=True)


# What reading a damaged step may raise.
_DAMAGE_ERRORS = (OSError, ValueError, KeyError, TypeError, RecursionError)


def _verify_host(folder: Path) -> dict[str, Any]:
    """The host state of a step whose files are all as they were written. Raises one of _DAMAGE_ERRORS otherwise."""
    record = _read_record(folder)
    listing = record["files"]
    if (files_now := _list_files(folder / "arrays", listing)) != listing:
        paths = sorted(path for path in files_now.keys() | listing.keys() if files_now.get(path) != listing.get(path))
        raise ValueError(f"{', '.join(paths[:3])} missing or changed since it was written")
    host_state: dict[str, Any] = record["host"]
    return host_state


def _read_record(folder: Path) -> dict[str, Any]:
    """host.json of a step, as it was written. Raises one of _DAMAGE_ERRORS."""
    try:
        record = read_json(folder / "host.json")
        if not isinstance(record["host"], dict) or not isinstance(record["files"], dict):
            raise ValueError("expected an object with step, host and files")
        if record["step"] != int(folder.name):
            raise ValueError(f"it is of step {record['step']}")
        if not has_valid_checksum(record):
            raise ValueError("it carries no checksum of itself")
        return record
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"host.json: {_describe_reason(error)}") from error


def _describe_reason(error: BaseException) -> str:
    return f"no {error}" if isinstance(error, KeyError) else str(error)


def _list_files(folder: Path, stored_files: Mapping[str, Any] | None = None) -> dict[str, list[int]]:
    """File → [bytes, CRC-32], without the CRC-32 if the size is not the expected one.

    Raises OSError for a pipe or a device.
    """
    facts_by_file: dict[str, list[int]] = {}
    for file_path in sorted(folder.rglob("*")):
        if not file_path.is_dir():
            file_name, byte_count = str(file_path.relative_to(folder)), file_path.stat().st_size
            facts_by_file[file_name] = [byte_count]
            # A file of another size may have terabytes.
            if stored_files is None or stored_files.get(file_name, [])[:1] == [byte_count]:
                facts_by_file[file_name].append(_compute_crc32(file_path))
    return facts_by_file


def _compute_crc32(path: Path) -> int:
    with open_file(path) as file:
        return crc32(file)


def _list_shapes(tree: Any) -> dict[str, str]:
    """Path of each array → its dtype and shape as text."""
    return {"/".join(path): f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}" for path, leaf in list_leaves(tree)}


def find_disk_error(error: Exception) -> OSError | None:
    """The OSError that caused an exception, or None. Orbax's storage layer reports a full disk as text only."""
    if isinstance(error, StorageError):
        return None
    if isinstance(error, OSError):
        return error
    for error_number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS):
        if os.strerror(error_number) in str(error):
            return OSError(error_number, os.strerror(error_number))
    return None
