"""Copies a run directory as it was at one of its checkpoints, atomically; nothing is written to the original.

The original may be running: its logs only grow, and a checkpoint covers their beginnings. The copy is made in a hidden
folder beside its place, verified as a resumed run is, and then renamed.
"""

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cojax.durable import read_pieces, sync_folder, sync_tree
from cojax.storage import files
from cojax.storage.checksums import add_checksum
from cojax.storage.episodes import ZERO_SHOT_EPISODES
from cojax.storage.files import CheckpointError, StorageError, write_json
from cojax.storage.run_files import PAID_LOGS, RunFiles, verify_run

# Files and folders that the run wrote before its first checkpoint; it may lack some.
_OPENING_NAMES = (
    "initial.json", "held_out.json", "model.json", "engine.json", "zero_shot.json", ZERO_SHOT_EPISODES, "tokenizer",
    "base",
)  # fmt: skip


def copy_run(parent: Path, step: int, folder: Path, records: Mapping[str, Mapping[str, Any]]) -> None:
    """Makes `folder` a run directory that goes on from the checkpoint `step` of `parent`.

    `records` are JSON files of the copy by name, config.json among them. `folder` appears whole or not at all. What a
    killed copy left behind is removed by the next one to the same place. Raises StorageError, CheckpointError or
    RunDirectoryError, with what to do about it.
    """
    folder = folder.absolute()
    partial_folder = folder.with_name(f".{folder.name}.fork")
    copy_folder = partial_folder / "run"
    with contextlib.closing(files.lock_folder(partial_folder, "--workdir")):
        try:
            shutil.rmtree(copy_folder, ignore_errors=True)
            _fill(RunFiles(parent), step, RunFiles(copy_folder), records)
            verify_run(copy_folder)
            sync_tree(copy_folder)
            # This replaces an empty folder. The system refuses to replace one that was filled in the meantime.
            copy_folder.rename(folder)
            sync_folder(folder.parent)
        except (StorageError, CheckpointError) as error:
            # The damage is the original's, and its user knows only that folder.
            raise type(error)(str(error).replace(str(copy_folder), str(parent))) from error
        except OSError as error:
            is_reading = str(error.filename).startswith(str(parent))
            raise files.explain_reading(error, parent) if is_reading else files.explain(error, folder) from error
        finally:
            shutil.rmtree(partial_folder, ignore_errors=True)


def _fill(original: RunFiles, step: int, copy: RunFiles, records: Mapping[str, Mapping[str, Any]]) -> None:
    """Copies what the checkpoint covers, and makes its host.json cover `records` too."""
    checkpoint_name = f"checkpoints/{step}"
    record = files.read_json(original.folder / checkpoint_name / "host.json")
    host_state = record["host"]
    for log_name, (byte_count, *_) in host_state["logs"].items():
        _copy_file(
            original.folder, copy.folder, f"{log_name}.jsonl", sys.maxsize if log_name in PAID_LOGS else byte_count
        )
    episode_names = [f"episodes/{original.episodes.path(number).name}" for number in original.episodes.list_steps()]
    kept_names = [name for name in episode_names if int(Path(name).name.partition(".")[0]) <= step]
    waiting_names = [f"waiting/{original.waiting.path(step).name}"] if host_state.get("waiting") else []
    for name in (*_OPENING_NAMES, f"{checkpoint_name}/arrays", *kept_names, *waiting_names):
        for file_name in _list_files(original.folder, name):
            _copy_file(original.folder, copy.folder, file_name)
    # Retention may have dropped episodes since that no checkpoint of the original needs.
    later_hosts = original.checkpointer.hosts(original.checkpointer.steps())
    host_state["first_episodes"] = max(host.get("first_episodes", 0) for host in (host_state, *later_hosts))
    copy.checksums.verify(tuple(host_state["logs"]["checksums"]))
    for file_name, content in records.items():
        write_json(copy.folder / file_name, add_checksum(content))
        if file_name != "config.json":  # every start writes it anew
            copy.checksums.add_file(copy.folder / file_name)
    host_state["logs"]["checksums"] = list(copy.checksums.log.measure_extent())
    content = {key: value for key, value in record.items() if key != "checksum"}
    write_json(copy.folder / checkpoint_name / "host.json", add_checksum(content))


def _list_files(folder: Path, name: str) -> Iterator[str]:
    """The file of this name, or the files in the folder of this name, as paths within `folder`; none if it is missing.

    A link is listed first, and refused when it is opened.
    """
    path = folder / name
    if path.is_symlink() or path.is_file():
        yield name
    for parent, _, file_names in os.walk(path):
        yield from (str(Path(parent, file_name).relative_to(folder)) for file_name in file_names)


def _copy_file(source_folder: Path, target_folder: Path, name: str, byte_count: int = sys.maxsize) -> None:
    """Copies a file, or its first `byte_count` bytes; nothing where the original has no such log yet."""
    source, target = source_folder / name, target_folder / name
    if not byte_count or (name.endswith(".jsonl") and not source.exists()):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with files.open_file(source) as source_file, open(target, "xb") as target_file:
        for piece in read_pieces(source_file):
            target_file.write(piece[: max(0, byte_count - target_file.tell())])
