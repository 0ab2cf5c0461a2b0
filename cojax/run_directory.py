"""A run directory: everything a run leaves on disk, and how it goes on after it was stopped at any moment.

Logs are append-only; a checkpoint stores their lengths beside the arrays, and resuming truncates to them. So what was
written after the last checkpoint is written again, identically, and nothing else is lost.
"""

from __future__ import annotations

import dataclasses
import fcntl
import itertools
import json
import logging
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from cojax.checkpoint import Checkpointer
from cojax.pool import TaskPool, task_from_record, task_record
from cojax.signals import Memory, apply
from cojax.store import Episodes, Log, write_json
from cojax.synthesis import Synthesis
from cojax.types import Group, Signal, Task, Trajectory, from_json, to_json

_LOG = logging.getLogger(__name__)
# A larger `steps` extends a finished run; these too may differ between two starts of one run.
FREE_SETTINGS = frozenset(
    {
        "workdir", "steps", "wandb", "checkpoints_kept", "checkpoint_every", "episodes_kept", "mismatch_alarm",
        "engine.slots",
        "limits.error_rate", "limits.concurrency", "limits.retries", "limits.environment_deadline",
        "limits.engine_deadline", "learner.micro_rows", "learner.remat", "mesh", "sglang",
        "llm.base_url", "llm.timeout", "llm.deadline", "llm.attempts", "llm.concurrency",
        "llm.max_tokens_per_evolution", "llm.max_requests_per_evolution", "llm.price_in", "llm.price_out",
        "quality.base_url",
    }
)  # fmt: skip


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


@dataclasses.dataclass(frozen=True)
class Recall:
    """Trajectories read back from episodes/, made into records only when they are asked for."""

    records: Mapping[str, Mapping[str, Any]]

    @property
    def ids(self) -> tuple[str, ...]:
        """Episode ids, by step, task and sample."""
        return tuple(self.records)

    def find(self, episode: str) -> Trajectory:
        """The trajectory of that id. Raises KeyError when it is not kept."""
        record = self.records[episode]
        return from_json(Trajectory, {name: value for name, value in record.items() if name != "signals"})


class RunDirectory:
    """The folder of one run. Raises RunDirectoryError when it belongs to another configuration or another process."""

    def __init__(self, folder: Path, *, checkpoints_kept: int = 3, episodes_kept: int = 0):
        self.folder = folder
        self._lock = locked(folder, "--config.workdir")
        self.metrics = Log(folder / "metrics.jsonl")
        self.tasks = Log(folder / "tasks.jsonl")
        self.signals = Log(folder / "signals.jsonl")
        self.drafts = Log(folder / "drafts.jsonl")
        self.expeditions = Log(folder / "expeditions.jsonl")
        # Drafts that a person should look at; nothing reads them back.
        self.quarantine = Log(folder / "quarantine.jsonl")
        self.memory = Log(folder / "memory.jsonl")
        self.episodes = Episodes(folder / "episodes", keep=episodes_kept)
        # The groups that a checkpoint's next step begins with, where they were sampled ahead.
        self.waiting = Episodes(folder / "waiting")
        self.checkpointer = Checkpointer(folder / "checkpoints", keep=checkpoints_kept)

    @property
    def logs(self) -> dict[str, Log]:
        """The append-only logs by name."""
        return {
            "metrics": self.metrics,
            "tasks": self.tasks,
            "signals": self.signals,
            "drafts": self.drafts,
            "expeditions": self.expeditions,
            "quarantine": self.quarantine,
            "memory": self.memory,
        }

    def claim(self, config: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        """Writes config.json with `facts` (versions, commit, hardware) beside the configuration.

        Raises RunDirectoryError when the folder holds a run whose other settings differ, and names them. A run that
        never reached its first checkpoint has nothing to lose: its folder is taken over.
        """
        path = self.folder / "config.json"
        begun = bool(self.checkpointer.steps() or self.metrics.length)
        if not begun:
            (self.folder / "zero_shot.json").unlink(missing_ok=True)
        elif path.exists():
            try:
                before = json.loads(path.read_text())["config"]
            except (ValueError, KeyError) as error:
                raise RunDirectoryError(f"{path} cannot be read ({error}). Choose another --config.workdir.") from error
            if different := differences(before, config, FREE_SETTINGS):
                raise RunDirectoryError(
                    f"{self.folder} holds a run with other settings: {different}. "
                    "Use the same settings to go on with it, or choose another --config.workdir."
                )
        else:
            raise RunDirectoryError(f"{self.folder} holds a run without config.json. Choose another --config.workdir.")
        write_json(path, {"config": dict(config), **facts})

    def begin(self) -> None:
        """Clears what a run that never reached its first checkpoint left behind.

        Raises RunDirectoryError where a run went further but its checkpoints are gone.
        """
        if self.metrics.length:
            raise RunDirectoryError(
                f"{self.folder} has metrics but no checkpoint to go on from. "
                "Restore its checkpoints/ from a copy, or choose another --config.workdir."
            )
        for log in self.logs.values():
            log.truncate(0)
        self.episodes.truncate(-1)
        self.waiting.truncate(-1)

    def resume(self, like: Any, memory: Memory) -> Resumed | None:
        """The newest sound checkpoint with its logs cut back to it, or None.

        `like`: arrays, or their shapes, to restore into; `memory`: the detectors' at the start, which is filled.
        """
        found = self.checkpointer.restore(like)
        if found is None:
            return None
        step, arrays, host = found
        for name, length in host["lengths"].items():
            self.logs[name].truncate(length)
        self.episodes.truncate(step)
        for record in self.memory.read():
            apply(memory, record["changes"])
        tasks = [task_from_record(record, line) for line, record in enumerate(self.tasks.read(), 1)]
        pending = tuple(
            from_json(Signal, {name: value for name, value in record.items() if name != "step"})
            for record in self.signals.read()
            if record["step"] > host["evolved"]
        )
        pool, waiting = TaskPool.of(tasks, fresh=host["fresh"]), self._waiting(step, host["waiting"])
        return Resumed(step, arrays, pool, memory, pending, waiting, host)

    def add_tasks(self, tasks: Sequence[Task]) -> None:
        self.tasks.append(task_record(task) for task in tasks)

    def add_evolution(self, evolution: Synthesis) -> None:
        """Stores what an evolution brought, and all that it refused."""
        self.add_tasks(evolution.tasks)
        self.drafts.append(evolution.drafts)
        self.expeditions.append(evolution.expeditions)
        self.quarantine.append(evolution.quarantined)

    def add_episodes(self, step: int, groups: Sequence[Group], signals: Iterable[Signal]) -> None:
        """Stores a step's episodes with the kinds of signal each carries, and the signals."""
        kinds: dict[str, list[str]] = {}
        found = list(signals)
        for signal in found:
            kinds.setdefault(signal.episode, []).append(signal.kind)
        records = (
            {**to_json(trajectory), "signals": kinds.get(trajectory.episode, [])}
            for group in groups
            for trajectory in group.trajectories
        )
        self.episodes.write(step, records)
        self.signals.append({"step": step, **to_json(signal)} for signal in found)

    def recall(self, steps: Iterable[int]) -> Recall:
        """The trajectories of these steps, as far as they are kept."""
        return Recall({record["episode"]: record for step in steps for record in self.episodes.read(step)})

    def save(self, step: int, arrays: Any, host: Mapping[str, Any], waiting: Sequence[Group] = ()) -> None:
        """Checkpoints the arrays, the host's state and the groups `waiting` for the next step, together with the
        lengths of all logs."""
        lengths = {name: log.length for name, log in self.logs.items()}
        trajectories = [to_json(trajectory) for group in waiting for trajectory in group.trajectories]
        if trajectories:
            self.waiting.write(step, trajectories)
        self.checkpointer.save(step, arrays, {**host, "lengths": lengths, "waiting": len(trajectories)})
        # Any checkpoint that is kept may be gone on from, and its next evolution looks back to its last one.
        self.episodes.prune(1 + min(kept["evolved"] for kept in self.checkpointer.hosts()))
        self.waiting.retain(self.checkpointer.steps())

    def _waiting(self, step: int, count: int) -> tuple[Group, ...]:
        """The groups sampled ahead when step `step` was checkpointed, `count` episodes in all.

        Where their file is gone they are sampled anew; raises StorageError where it is damaged.
        """
        if not count:
            return ()
        records = self.waiting.read(step)
        if len(records) != count:
            _LOG.warning(
                "%d of the %d episodes that waited for step %d are there; its groups are sampled anew",
                len(records), count, step + 1,
            )  # fmt: skip
            return ()
        trajectories = [from_json(Trajectory, record) for record in records]
        return tuple(
            Group(task, tuple(found)) for task, found in itertools.groupby(trajectories, lambda found: found.task)
        )

    def summary(self) -> dict[str, Any] | None:
        """summary.json of a finished run, or None."""
        path = self.folder / "summary.json"
        try:
            return json.loads(path.read_text()) if path.exists() else None
        except ValueError:
            _LOG.warning("%s cannot be read; it will be written again", path)
            return None


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


def differences(before: Mapping[str, Any], now: Mapping[str, Any], free: Container[str] = ()) -> str:
    """Which settings differ but for the `free` ones, dotted, with the values of the first; empty where none does."""
    different = sorted(_differences(before, now, free))
    if not different:
        return ""
    name = different[0]
    return f"{', '.join(different)} ({name} was {_at(before, name)!r}, now {_at(now, name)!r})"


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], free: Container[str], prefix: str = "") -> set[str]:
    """Dotted names of the settings that differ."""
    names: set[str] = set()
    for name in before.keys() | now.keys():
        path = f"{prefix}{name}"
        one, other = before.get(name), now.get(name)
        if path in free:
            continue
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            names |= _differences(one, other, free, f"{path}.")
        elif one != other:
            names.add(path)
    return names


def _at(config: Mapping[str, Any], name: str) -> Any:
    for part in name.split("."):
        config = config.get(part, "absent") if isinstance(config, Mapping) else "absent"  # type: ignore[assignment]
    return config
