"""What a fork does without: a task, an origin, an evolution, a kind of signal or the validation of its parent.

A run that `cojax fork` made holds fork.json:

forks   an entry for each fork that it descends from, oldest first: the parent, the step, and what it does without
seed    the seed of sampling, null if it is the configuration's
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cojax.pool import TaskPool
from cojax.signals import Detector
from cojax.storage.checksums import has_valid_checksum
from cojax.storage.files import StorageError, read_json
from cojax.types import Group, Signal, Task

if TYPE_CHECKING:
    from cojax.loop import Loop
    from cojax.storage.run_files import Checkpoint

FORK_FILE = "fork.json"
_PATTERN = re.compile(r"(task|origin|signal):.+|evolution:[0-9]+|validation")
FORMS = ("task:ID", "origin:NAME", "evolution:STEP", "signal:KIND", "validation")


@dataclasses.dataclass(frozen=True)
class Change:
    """One thing that a fork does without: its `kind`, as in FORMS, and its `name`, "" for validation.

    A task is gone with all tasks that descend from it, an origin with all its tasks, an evolution with the tasks that
    it added; those found later are gone as well.
    """

    kind: str
    name: str = ""

    @classmethod
    def read(cls, text: str) -> "Change":
        """The change that KIND:NAME names. Raises ValueError for any other text."""
        if not _PATTERN.fullmatch(text):
            raise ValueError(f"--without={text} names nothing to do without; expected {', '.join(FORMS)}")
        kind, _, name = text.partition(":")
        return cls(kind, name)

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" if self.name else self.kind

    def covers(self, task: Task, pool: TaskPool) -> bool:
        """Whether the task is gone. `pool` holds its ancestors."""
        if self.kind == "task":
            for _ in range(len(pool)):
                if task.id == self.name or task.lineage is None or task.lineage.parent not in pool:
                    break
                task = pool.get(task.lineage.parent)
            return task.id == self.name
        if self.kind == "evolution":
            return task.lineage is not None and task.lineage.step == int(self.name)
        return self.kind == "origin" and task.origin == self.name


@dataclasses.dataclass(frozen=True)
class Silent:
    """A detector that remembers what another one does, and raises no signals."""

    detector: Detector

    def init(self) -> dict[str, Any]:
        return self.detector.init()

    def update(self, memory: Mapping[str, Any], groups: Sequence[Group]) -> tuple[dict[str, Any], list[Signal]]:
        return self.detector.update(memory, groups)[0], []


@dataclasses.dataclass(frozen=True)
class Fork:
    """What a run does without, and its `seed` of sampling if that is not the configuration's.

    The pool keeps the tasks that are gone: evolutions still refuse duplicates of them, but no step draws them.
    """

    changes: tuple[Change, ...] = ()
    seed: int | None = None

    def apply(self, loop: "Loop") -> "Loop":
        """The loop without what is gone."""
        kinds = [change.name for change in self.changes if change.kind == "signal" and change.name in loop.kinds]
        detectors = {**loop.detectors, **{kind: Silent(loop.detectors[kind]) for kind in kinds}}
        seed = loop.seed if self.seed is None else self.seed
        return dataclasses.replace(loop, draw=self.draw, detectors=detectors, seed=seed)

    def reduce(self, checkpoint: "Checkpoint") -> "Checkpoint":
        """The checkpoint without the pending signals that are gone, and without groups sampled ahead of such tasks."""
        kinds = [change.name for change in self.changes if change.kind == "signal"]
        return dataclasses.replace(
            checkpoint,
            pending=tuple(signal for signal in checkpoint.pending if signal.kind not in kinds),
            waiting=tuple(
                tuple(group for group in groups if not self.is_gone(group.task, checkpoint.pool))
                for groups in checkpoint.waiting
            ),
        )

    def is_gone(self, task: Task, pool: TaskPool) -> bool:
        return any(change.covers(task, pool) for change in self.changes)

    def draw(self, pool: TaskPool, count: int, seed: tuple, *shares: Any) -> tuple[Task, ...]:
        """Draws as `TaskPool.sample` does, and another task in the place of each that is gone.

        `shares` are its further parameters. A draw without a task that is gone is the parent's. The places are filled
        by a second draw of the same kind, twice as large until it suffices or holds the whole pool; places that no task
        can fill are left out. Raises ValueError if no task is left.
        """
        tasks = pool.sample(count, seed, *shares)
        gone_ids = {task.id for task in tasks if self.is_gone(task, pool)}
        size, spares = count, list[Task]()
        while len(spares) < len(gone_ids) and size < 2 * len(pool):
            size, drawn_ids = 2 * size, {task.id for task in tasks}
            candidates = pool.sample(size, (*seed, "fork", size), *shares)
            spares = [task for task in candidates if task.id not in drawn_ids and not self.is_gone(task, pool)]
        if count and len(gone_ids) == len(tasks) and not spares:
            raise ValueError("every task of the pool is gone; fork a later checkpoint, or do without fewer tasks")
        spare_tasks = iter(spares)
        filled_tasks = (next(spare_tasks, None) if task.id in gone_ids else task for task in tasks)
        return tuple(task for task in filled_tasks if task is not None)


def read_fork(folder: Path) -> Fork:
    """The fork of a run directory; one that changes nothing if the run is none. Raises StorageError."""
    record = read_fork_record(folder)
    return Fork(tuple(Change.read(entry["without"]) for entry in record["forks"] if entry["without"]), record["seed"])


def read_fork_record(folder: Path) -> dict[str, Any]:
    """The content of fork.json, without forks if there is none. Raises StorageError for what no fork wrote."""
    path = folder / FORK_FILE
    try:
        record = read_json(path)
        has_valid_checksum(record)
        if not isinstance(record["seed"], int | None) or not all(int(entry["step"]) >= 0 for entry in record["forks"]):
            raise ValueError("its seed or a step is not a number")
        return record
    except FileNotFoundError:
        return {"forks": [], "seed": None}
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{path} is not what cojax fork wrote ({error}). Restore it from a copy.") from error
