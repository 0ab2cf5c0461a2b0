"""Whether a run directory is what the run wrote: all of it is read, and nothing on disk is changed."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cojax.pool import TaskPool, task_from_record
from cojax.storage.checkpoint import CheckpointError, Sound
from cojax.storage.checksums import CheckedLog, Extent, stamp
from cojax.storage.files import Episodes, StorageError, explain_reading
from cojax.storage.run_files import COPY, DERIVED, DERIVED_FILES, FOLDERS, REMADE, RunFiles
from cojax.types import Group, Signal, Task, Trajectory, from_json

_FILES = ("config.json", "initial.json", "model.json", "zero_shot.json", *DERIVED_FILES)
# What making a record of damaged JSON may raise.
_FOREIGN = (ValueError, KeyError, TypeError, AttributeError)


@dataclasses.dataclass(frozen=True)
class Verified:
    """All that a checkpoint holds but its arrays, once every file has proved to be what the run wrote.

    `changes` are those of the detectors' memory, oldest first. `checked` is False where an older version wrote the
    checkpoint, which then carries no checksums.
    """

    step: int
    host: Mapping[str, Any]
    pool: TaskPool
    changes: tuple[Mapping[str, Any], ...]
    pending: tuple[Signal, ...]
    waiting: tuple[Group, ...]
    checked: bool
    warnings: tuple[str, ...]


def verify(files: RunFiles | Path) -> Verified | None:
    """What the newest sound checkpoint goes on from, None where there is none, by reading alone.

    Raises StorageError or CheckpointError, which name the file and what to do, for whatever is not as it was written.
    """
    files = RunFiles(files) if isinstance(files, Path) else files
    try:
        _check_places(files.folder)
        found = files.checkpointer.newest()
        verified = None if found is None else _verified(files, found)
        # What was paid for since is checked as far as it tells itself.
        for log in files.paid.values():
            log.absorb()
        return verified
    except (StorageError, CheckpointError):
        raise
    except OSError as error:
        raise explain_reading(error, files.folder) from error


def _verified(files: RunFiles, found: Sound) -> Verified:
    """Logs first, then the files that they know of, then what is in them."""
    step, host = found.step, found.host
    where = files.checkpointer.folder / str(step) / "host.json"
    _check_host(host, where)
    checked = "logs" in host
    warnings = list(found.faults)
    if checked:
        _check_logs(files, host["logs"], where)
        _check_files(files, found)
    else:
        warnings.append(
            f"checkpoint {where.parent} carries no checksums, as an older version wrote it: the files of the run were "
            "checked as far as they tell themselves; its next checkpoint carries them"
        )
        _adopt_logs(files, host["lengths"], where)
        _check_steps(files, step, step - (host.get("record") is not None))
        _check_episodes(files, step, host["evolved"])
    tasks = _tasks(files.logs["tasks"])
    if host["fresh"] > len(tasks):
        raise CheckpointError(f"{where} knows {host['fresh']} fresh tasks, of {len(tasks)} that are there. {COPY}")
    return Verified(
        step,
        host,
        TaskPool.of(tasks, fresh=host["fresh"]),
        tuple(_changes(files.logs["memory"])),
        tuple(_pending(files.logs["signals"], host["evolved"])),
        _waiting(files.waiting, step, host.get("waiting", 0)),
        checked,
        tuple(warnings),
    )


def _check_places(folder: Path) -> None:
    """Raises StorageError for a folder in the place of a file, or the other way round."""
    for name in (*_FILES, *FOLDERS):
        path, kind = folder / name, "folder" if name in FOLDERS else "file"
        if path.exists() and (path.is_dir() if kind == "file" else not path.is_dir()):
            fix = ": it is made again" if name in (*DERIVED, *REMADE) else ", and restore it from a copy"
            raise StorageError(f"{path} is no {kind}; expected one. Move it away{fix}.")
    for place, kind in (("checkpoints", "folder"), ("episodes", "file"), ("waiting", "file")):
        for path in sorted((folder / place).glob("*")):
            if path.name.partition(".")[0].isdigit() and path.is_dir() is (kind == "file"):
                raise StorageError(f"{path} is no {kind}, as those of a step are. Move it away.")


def _check_host(host: Mapping[str, Any], where: Path) -> None:
    """Raises CheckpointError for a host state that no run wrote."""
    counts = [host.get("evolved"), host.get("fresh"), host.get("waiting", 0)]
    lengths = host.get("lengths", {}) if "logs" not in host else {}
    clock = host.get("clock", {"parts": {}, "total": 0.0})
    try:
        seconds = [*clock["parts"].values(), clock["total"]]
        counts += lengths.values()
    except _FOREIGN as error:
        raise CheckpointError(f"{where} is no host state of a run: {error}. {COPY}") from error
    whole = all(isinstance(count, int) and not isinstance(count, bool) and count >= 0 for count in counts)
    if (
        not whole
        or not all(isinstance(spent, (int, float)) for spent in seconds)
        or not ({"logs", "lengths"} & {*host})
    ):
        raise CheckpointError(
            f"{where} is no host state of a run: expected counts, lengths of logs and seconds. {COPY}"
        )


def _check_logs(files: RunFiles, extents: Mapping[str, list[Any]], where: Path) -> None:
    """Raises StorageError for the first line of a log that is not what the checkpoint knows."""
    _check_names(files, extents, where)
    files.checksums.verify(Extent(*extents["checksums"]))
    for name, log in files.summed.items():
        if name in extents and name != "checksums":
            log.verify(Extent(*extents[name]), lambda name=name: files.checksums.lines(name))  # type: ignore[misc]


def _adopt_logs(files: RunFiles, lengths: Mapping[str, int], where: Path) -> None:
    _check_names(files, lengths, where)
    for name, log in files.logs.items():
        log.adopt(lengths.get(name, log.length))


def _check_names(files: RunFiles, names: Mapping[str, Any], where: Path) -> None:
    if unknown := sorted(names.keys() - files.summed.keys()):
        raise CheckpointError(
            f"{where} knows a log {unknown[0]!r}, which this version has not. Go on with the version that wrote it."
        )


def _check_files(files: RunFiles, found: Sound) -> None:
    """Raises StorageError for a file that is missing or another than was noted when it was written."""
    hosts = [found.host] if found.faults else files.checkpointer.hosts(files.checkpointer.steps())
    # Where a later checkpoint cannot be read, what it had dropped is not known.
    dropped = found.host["evolved"] + 1 if found.faults else max(host.get("first_episodes", 0) for host in hosts)
    for name, expected in files.checksums.files().items():
        path, (place, _, rest) = files.folder / name, name.partition("/")
        step = int(rest.partition(".")[0]) if place in ("episodes", "waiting") else None
        if place == "waiting" and (step != found.step or not found.host["waiting"]):
            continue
        if not path.exists():
            if place in REMADE or (place == "episodes" and step is not None and step < dropped):
                continue
            raise StorageError(f"{path} is missing; {_need(place, step, found.host['evolved'])}. {COPY}")
        if stamp(path) != expected:
            fix = "Restore it from a copy, or delete it: it is made again." if place in REMADE else COPY
            raise StorageError(f"{path} is not what the run wrote: its size or checksum differs. {fix}")


def _need(place: str, step: int | None, evolved: int) -> str:
    if place == "episodes" and step is not None and step > evolved:
        return "signals that are still to be explored point to its episodes"
    return "the next step begins with its episodes" if place == "waiting" else "the run wrote it"


def _check_episodes(files: RunFiles, step: int, evolved: int) -> None:
    """For a checkpoint without checksums: raises StorageError for episodes that are lost, or cannot be read."""
    kept = [other for other in files.episodes.steps() if other <= step]
    # Retention drops the oldest alone.
    first = min([*kept[:1], evolved + 1])
    for wanted in range(first, step + 1):
        if wanted not in kept:
            need = _need("episodes", wanted, evolved)
            raise StorageError(f"{files.episodes.path(wanted)} is missing; {need}. {COPY}")
        if not files.episodes.read(wanted):
            raise StorageError(f"{files.episodes.path(wanted)} holds no episode. {COPY}")
    for path in (files.folder / "model.json", files.folder / "initial.json", files.folder / "zero_shot.json"):
        try:
            if path.exists() and not isinstance(json.loads(path.read_text(encoding="utf-8")), dict):
                raise ValueError("it holds no JSON object")
        except (ValueError, RecursionError) as error:
            raise StorageError(f"{path} cannot be read: {error}. {COPY}") from error


def _check_steps(files: RunFiles, step: int, told: int) -> None:
    """For a checkpoint without checksums: raises StorageError for a log whose steps are not in order, or end early."""
    for name, last in (("metrics", told), ("memory", step), ("signals", None), ("drafts", None), ("expeditions", None)):
        log, before = files.logs[name], 0
        for line, record in enumerate(log.records(), 1):
            number = record.get("step")
            if not isinstance(number, int) or number < before or number > step or (last and number != before + 1):
                raise StorageError(f"{log.path}, line {line}: step {number} after step {before}. {COPY}")
            before = number
        if last not in (None, before):
            raise StorageError(
                f"{log.path} ends with step {before} by the length that checkpoint {step} knows; expected step {last}. "
                f"{COPY}"
            )


def _tasks(log: CheckedLog) -> list[Task]:
    tasks: dict[str, Task] = {}
    for line, record in enumerate(log.records(), 1):
        try:
            task = task_from_record(record)
        except _FOREIGN as error:
            raise StorageError(f"{log.path}, line {line}: {str(error).removeprefix('tasks.jsonl: ')}") from error
        if task.id in tasks:
            raise StorageError(f"{log.path}, line {line}: task {task.id} stands there already. {COPY}")
        tasks[task.id] = task
    return list(tasks.values())


def _changes(log: CheckedLog) -> Iterator[Mapping[str, Any]]:
    for line, record in enumerate(log.records(), 1):
        changes = record.get("changes")
        if not isinstance(changes, dict) or not all(isinstance(values, dict) for values in changes.values()):
            raise StorageError(f"{log.path}, line {line}: no changes of a memory. {COPY}")
        yield changes


def _pending(log: CheckedLog, evolved: int) -> Iterator[Signal]:
    """The signals that no evolution has looked at yet."""
    for line, record in enumerate(log.records(), 1):
        try:
            signal = from_json(Signal, {name: value for name, value in record.items() if name != "step"})
            if record["step"] > evolved:
                yield signal
        except _FOREIGN as error:
            raise StorageError(f"{log.path}, line {line}: no signal: {error}. {COPY}") from error


def _waiting(episodes: Episodes, step: int, count: int) -> tuple[Group, ...]:
    """The groups sampled ahead when step `step` was checkpointed, `count` episodes in all."""
    if not count:
        return ()
    records, path = episodes.read(step), episodes.path(step)
    if len(records) != count:
        raise StorageError(
            f"{path} holds {len(records)} of the {count} episodes that step {step + 1} begins with. {COPY}"
        )
    try:
        trajectories = [from_json(Trajectory, record) for record in records]
    except _FOREIGN as error:
        raise StorageError(f"{path} holds no episodes: {error}. {COPY}") from error
    return tuple(Group(task, tuple(found)) for task, found in itertools.groupby(trajectories, lambda found: found.task))
