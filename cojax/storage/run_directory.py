"""A run directory: everything a run leaves on disk, and how it goes on after it was stopped at any moment.

Logs are append-only; a checkpoint stores their lengths, counts and checksums beside the arrays. Resuming verifies all
before it changes anything, then truncates to them. So what was written after the last checkpoint is written again,
identically, and nothing else is lost.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from cojax.pool import TaskPool, task_record
from cojax.signals import Memory, apply
from cojax.storage.checksums import CheckedLog, is_signed, signed
from cojax.storage.differences import FREE_SETTINGS, changed_code, differences, history
from cojax.storage.files import explain_reading, write_json
from cojax.storage.recall import Recall, recall
from cojax.storage.run_files import REMADE, RunFiles
from cojax.storage.verify import Verified, verify
from cojax.synthesis import Synthesis
from cojax.types import Group, Signal, Task, Trajectory, to_json

_LOG = logging.getLogger(__name__)
# What the closing table needs of summary.json.
_TABLE = ("signals", "verdicts", "added", "outcomes", "seconds", "tokens")


class RunDirectoryError(RuntimeError):
    """The directory cannot be used for this run; the message says why and what to do."""


@dataclasses.dataclass(frozen=True)
class Resumed:
    """A state that was read back: the arrays, and the host's part."""

    step: int
    arrays: Any
    pool: TaskPool
    memory: Memory
    pending: tuple[Signal, ...]
    waiting: tuple[Group, ...]
    host: Mapping[str, Any]


class RunDirectory:
    """The folder of one run. Raises RunDirectoryError when it belongs to another configuration or another process."""

    def __init__(self, folder: Path, *, checkpoints_kept: int = 3, episodes_kept: int = 0):
        self.folder = folder
        # A stored configuration → the same one with the keys that `claim` is given, where a release has new ones.
        self.in_todays_keys: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
        self._lock = locked(folder, "--config.workdir")
        self.files = RunFiles(folder, checkpoints_kept=checkpoints_kept, episodes_kept=episodes_kept)
        self.metrics, self.tasks, self.memory = (self.files.logs[name] for name in ("metrics", "tasks", "memory"))
        self.signals, self.drafts = self.files.logs["signals"], self.files.logs["drafts"]
        self.expeditions, self.quarantine = self.files.logs["expeditions"], self.files.logs["quarantine"]
        self.episodes, self.waiting = self.files.episodes, self.files.waiting
        self.checkpointer = self.files.checkpointer
        self._verified: Verified | None = None
        # Retention has dropped the episodes of every step before this one.
        self._first_episodes = 0

    @property
    def logs(self) -> dict[str, CheckedLog]:
        """The append-only logs by name."""
        return self.files.logs

    def close(self) -> None:
        """Lets another process at the folder."""
        # Not by closing alone: a forked child may hold a copy.
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        self._lock.close()

    def claim(
        self, config: Mapping[str, Any], facts: Mapping[str, Any], *, accept_changed_code: bool = False
    ) -> Verified | None:
        """Writes config.json with `facts` (versions, commit, hardware, where the `code` of entries comes from) beside
        the configuration, once all that the folder holds of this run is verified, and returns what it goes on from.
        Its `history` tells after which step settings of the learner changed, from what to what.

        Raises RunDirectoryError when the folder holds a run whose other settings differ, or whose code from outside
        does and that is not accepted, and names them, and what `verify` raises. A run that never reached its first
        checkpoint has nothing to lose: its folder is taken over.
        """
        path = self.folder / "config.json"
        begun = bool(self.checkpointer.steps()) or self._stepped
        before: Mapping[str, Any] = {}
        if begun:
            before = self._compare(path, config, {} if accept_changed_code else facts.get("code", {}))
        elif not path.exists() and (foreign := [log.path for log in self.files.summed.values() if log.length]):
            raise RunDirectoryError(
                f"{foreign[0]} is of no run: config.json is missing. Choose another --config.workdir."
            )
        self._verified = verify(self.files)
        if self._verified is None:
            self._refuse_what_stepped()
        if not begun:
            (self.folder / "zero_shot.json").unlink(missing_ok=True)
        step = self._verified.step if self._verified else 0
        write_json(
            path, signed({"config": dict(config), **facts, **history(before, {"config": config, **facts}, step)})
        )
        return self._verified

    def _compare(self, path: Path, config: Mapping[str, Any], code: Mapping[str, Any]) -> Mapping[str, Any]:
        """What config.json holds. Raises RunDirectoryError where its settings or its code are others, or it cannot be
        read."""
        if not path.exists():
            raise RunDirectoryError(
                f"{self.folder} holds a run without config.json. Restore it from a copy, or choose another "
                "--config.workdir."
            )
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(record, dict) or not isinstance(record["config"], dict):
                raise ValueError("it holds no settings")
            is_signed(record)
            record["config"] = self.in_todays_keys(record["config"])
        except (OSError, ValueError, KeyError, RecursionError) as error:
            raise RunDirectoryError(
                f"{path} cannot be read ({error}). Restore it from a copy, or choose another --config.workdir."
            ) from error
        if different := differences(record["config"], config, FREE_SETTINGS):
            raise RunDirectoryError(
                f"{self.folder} holds a run with other settings: {different}. "
                "Use the same settings to go on with it, or choose another --config.workdir."
            )
        if changed := changed_code(record.get("code", {}), code):
            raise RunDirectoryError(
                f"{self.folder} holds a run with other code: {changed} has changed since. Restore it, add "
                "--config.accept_changed_code=True to go on with the new one, or choose another --config.workdir."
            )
        return record

    @property
    def _stepped(self) -> bool:
        """Whether a run went beyond its first checkpoint here, by any file that only a step writes."""
        logs = (self.metrics, self.files.logs["signals"], self.files.logs["memory"])
        later = any(step > 0 for step in self.episodes.steps())
        return later or any(log.length for log in logs) or (self.folder / "summary.json").exists()

    def _refuse_what_stepped(self) -> None:
        """Raises RunDirectoryError where a run went further but its checkpoints are gone."""
        if self._stepped:
            raise RunDirectoryError(
                f"{self.folder} holds steps of a run, but no checkpoint to go on from. "
                "Restore checkpoints/ from a copy, or choose another --config.workdir."
            )

    def cut(self, found: Verified) -> None:
        """Cuts the logs and episodes back to the checkpoint that was verified."""
        for log in (*self.files.logs.values(), self.files.checksums.log):
            log.cut()
        self.episodes.truncate(found.step)

    def begin(self) -> None:
        """Clears what a run that never reached its first checkpoint left behind.

        Raises RunDirectoryError where a run went further but its checkpoints are gone.
        """
        self._refuse_what_stepped()
        for log in (*self.files.logs.values(), self.files.checksums.log):
            log.clear()
        self.episodes.truncate(-1)
        self.waiting.truncate(-1)
        self.files.note(REMADE)

    def resume(self, like: Any, memory: Memory) -> Resumed | None:
        """The newest sound checkpoint with its logs cut back to it, or None. All is verified before anything is cut.

        `like`: arrays, or their shapes, to restore into; `memory`: the detectors' at the start, which is filled.
        """
        found, self._verified = self._verified or verify(self.files), None
        if found is None:
            return None
        arrays = self.checkpointer.arrays(found.step, like)
        self.cut(found)
        self._first_episodes = found.host.get("first_episodes", 0)
        # An older version noted nothing; what was made again may differ where an engine's bits do.
        self.files.note(["zero_shot.json"] if found.checked else [*REMADE, "initial.json", "episodes"])
        for changes in found.changes:
            apply(memory, changes)
        return Resumed(found.step, arrays, found.pool, memory, found.pending, found.waiting, found.host)

    def add_tasks(self, tasks: Sequence[Task]) -> None:
        self.tasks.append(task_record(task) for task in tasks)

    def add_evolution(self, evolution: Synthesis) -> None:
        """Stores what an evolution brought, and all that it refused."""
        self.add_tasks(evolution.tasks)
        self.drafts.append(evolution.drafts)
        self.expeditions.append(evolution.expeditions)
        self.quarantine.append(evolution.quarantined)

    def add_episodes(self, step: int, groups: Sequence[Group], signals: Iterable[Signal]) -> None:
        """Stores a step's episodes with the kinds of signal each carries, and the signals; routes, which nobody reads
        once the step has learned from them, are left out."""
        kinds: dict[str, list[str]] = {}
        found = list(signals)
        for signal in found:
            kinds.setdefault(signal.episode, []).append(signal.kind)
        records = (
            {**to_json(without_routes(trajectory)), "signals": kinds.get(trajectory.episode, [])}
            for group in groups
            for trajectory in group.trajectories
        )
        self.files.checksums.add_file(self.episodes.path(step), self.episodes.write(step, records))
        self.signals.append({"step": step, **to_json(signal)} for signal in found)

    def recall(self, steps: Iterable[int]) -> Recall:
        """The trajectories of these steps. Raises StorageError where those of one are gone."""
        return recall(self.episodes, steps)

    def save(self, step: int, arrays: Any, host: Mapping[str, Any], waiting: Sequence[Group] = ()) -> None:
        """Checkpoints the arrays, the host's state and the groups `waiting` for the next step, together with the
        extents of all logs."""
        trajectories = [to_json(trajectory) for group in waiting for trajectory in group.trajectories]
        if trajectories:
            self.files.checksums.add_file(self.waiting.path(step), self.waiting.write(step, trajectories))
        # Any checkpoint that is kept may be gone on from, and its next evolution looks back to its last one.
        evolved = [kept["evolved"] for kept in self.checkpointer.hosts(self.checkpointer.kept(step)[:-1])]
        first = self.episodes.first_kept(1 + min([*evolved, host["evolved"]]))
        self._first_episodes = max(self._first_episodes, first)
        told = {"first_episodes": self._first_episodes, "waiting": len(trajectories), "logs": self._extents()}
        self.checkpointer.save(step, arrays, {**host, **told})
        self.episodes.drop_before(self._first_episodes)
        self.waiting.retain(self.checkpointer.steps())

    def _extents(self) -> dict[str, list[Any]]:
        """The extents of all logs, of whose lines checksums.jsonl then knows every one."""
        logs = {**self.files.logs, **self.files.paid}
        extents = {name: log.extent() for name, log in logs.items()}
        self.files.checksums.add_lines({name: log.fresh() for name, log in logs.items()})
        extents["checksums"] = self.files.checksums.log.extent()
        return {name: list(dataclasses.astuple(extent)) for name, extent in extents.items()}

    def summary(self, found: Verified | None) -> dict[str, Any] | None:
        """summary.json of a run that has finished, by the checkpoint that was `found`; else None.

        It has not where summary.json, final.json or a file that every start makes is gone or not what the run wrote.
        """
        try:
            summary, final = (
                json.loads((self.folder / name).read_text(encoding="utf-8")) for name in ("summary.json", "final.json")
            )
            # What an older version wrote is known by its form.
            sound = all(isinstance(summary[name], dict) for name in _TABLE) and isinstance(final["success"], float)
            sound = (is_signed(summary) and is_signed(final)) or (sound and isinstance(summary["steps"], int))
            whole = found is None or (found.step >= summary["steps"] and not any(map(self.files.lacks, REMADE)))
            return summary if sound and whole else None
        except FileNotFoundError:
            return None
        except OSError as error:
            raise explain_reading(error, self.folder) from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            _LOG.info("summary.json or final.json is not what the run wrote (%s): both are made again", error)
            return None


def without_routes(trajectory: Trajectory) -> Trajectory:
    """The trajectory as it is stored."""
    if not any(turn.routes for turn in trajectory.turns):
        return trajectory
    turns = tuple(dataclasses.replace(turn, routes="") for turn in trajectory.turns)
    return dataclasses.replace(trajectory, turns=turns)


def locked(folder: Path, setting: str) -> TextIO:
    """Makes the folder and locks it until the file returned is closed, or the process ends.

    Raises RunDirectoryError, which names the `setting` that chooses it, for one that cannot be written or is in use.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / ".lock", "a")  # noqa: SIM115  held by the caller
    except OSError as error:
        raise RunDirectoryError(f"cannot write {folder}: {error.strerror}. Choose another {setting}.") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise RunDirectoryError(
            f"another process is running in {folder}. Wait for it, stop it, or choose another {setting}."
        ) from error
    return lock
