"""What an evolution brings home, and how it is gathered: the expeditions in turn, whichever came back first."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from cojax.environment import EngineError, EnvironmentFailure
from cojax.synthesis.expedition_batch import ExpeditionResult
from cojax.synthesis.records import draft_record, expedition_record, lineage
from cojax.types import Task
from cojax.validation.similarity import NearDuplicates

_COUNTS = (
    "expeditions", "runs_failed", "triplets", "drafts", "accepted", "retained", "discarded", "quarantined", "failures",
    "explorer_failures",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Synthesis:
    """New tasks, one record of drafts.jsonl for each draft examined and one of expeditions.jsonl for each expedition,
    the counts behind them, and what the explorer says it cost.

    Counts: expeditions, runs_failed, triplets, drafts, accepted, retained, discarded, quarantined (of those discarded),
    failures (expeditions or validations that the environment broke), explorer_failures (expeditions that the explorer's
    model broke).
    """

    tasks: tuple[Task, ...] = ()
    drafts: tuple[dict[str, Any], ...] = ()
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    expeditions: tuple[dict[str, Any], ...] = ()
    figures: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def quarantined(self) -> list[dict[str, Any]]:
        """The records of drafts that a person should look at."""
        return [record for record in self.drafts if record["verdict"]["quarantine"]]

    def reasons(self, count: int = 3) -> list[str]:
        """The commonest reasons why drafts were refused or expeditions brought none, as "reason (4×)".

        Reasons that differ in numbers alone count as one, and the first of them is told.
        """
        last = [record["verdict"]["evidence"][-1] for record in self.drafts if not record["task"]]
        lost = [record["error"] for record in self.expeditions if record["error"]]
        # Where all runs of an expedition broke, the first one says why.
        broken = (record["failures"][0] for record in self.expeditions if record["failures"] and not record["runs"])
        lost += [failure.partition(": ")[2] if failure.startswith("run ") else failure for failure in broken]
        counts: Counter[str] = Counter()
        first: dict[str, str] = {}
        for reason in (*last, *lost):
            kind = re.sub(r"\d+", "#", reason)
            counts[kind] += 1
            first.setdefault(kind, reason)
        return [f"{first[kind]} ({times}×)" for kind, times in counts.most_common(count)]


@dataclasses.dataclass
class Collector:
    """What was found so far, of at most `budget` tasks; `kin` learns the wording of each. No expedition is under way
    while it changes."""

    explorer: str
    step: int
    budget: int
    near_duplicates: NearDuplicates
    tasks: dict[str, Task] = dataclasses.field(default_factory=dict)
    drafts: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    expeditions: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    counts: Counter[str] = dataclasses.field(default_factory=lambda: Counter(dict.fromkeys(_COUNTS, 0)))

    @property
    def left(self) -> int:
        """How many tasks are still wanted."""
        return self.budget - len(self.tasks)

    def take(self, result: ExpeditionResult) -> None:
        """Takes up what an expedition found, with a record of all it did."""
        expedition, exploration, counts = result.expedition, result.exploration, self.counts
        counts["expeditions"] += 1
        counts["runs_failed"] += len(exploration.failures)
        counts["triplets"] += len(exploration.triplets)
        for draft, verdict, task in result.examined:
            if task is not None and (reason := self._overtaken(task)):
                verdict, task = (
                    dataclasses.replace(verdict, status="discarded", evidence=(*verdict.evidence, reason)),
                    None,
                )
            counts["drafts"] += 1
            counts[verdict.status] += 1
            counts["quarantined"] += bool(verdict.quarantine)
            counts["failures"] += any(line.startswith("environment failed") for line in verdict.evidence)
            if task is not None:
                about = lineage(expedition, draft, verdict, self.explorer, self.step)
                task = dataclasses.replace(task, origin=expedition.origin, lineage=about)
                self.tasks[task.id] = task
                self.near_duplicates.add(task)
            self.drafts.append(draft_record(expedition, draft, verdict, task, self.step, result.number))
        counts["failures"] += sum(isinstance(error, EnvironmentFailure) for error in result.errors)
        counts["explorer_failures"] += sum(isinstance(error, EngineError) for error in result.errors)
        self.expeditions.append(expedition_record(expedition, exploration, result.errors, self.step, result.number))

    def gathered(self, figures: Mapping[str, Any]) -> Synthesis:
        return Synthesis(
            tuple(self.tasks.values()), tuple(self.drafts), dict(self.counts), tuple(self.expeditions), figures
        )

    def _overtaken(self, task: Task) -> str:
        """Why an expedition that went at the same time and comes first makes the task one too many; empty where
        none."""
        if task.id in self.tasks:
            return f"duplicate of task {task.id}"
        if self.left <= 0:
            return f"one too many: the {self.budget} tasks wanted were found before it"
        return self.near_duplicates.why(task)
