"""Gathers the new tasks of an evolution in the order of its expeditions, not in the order in which these end."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from cojax.environment import EngineError, EnvironmentFailure
from cojax.synthesis.expedition_batch import ExpeditionResult
from cojax.synthesis.records import draft_record, expedition_record, lineage
from cojax.types import Task, TaskDraft
from cojax.validation.similarity import NearDuplicates

# A draft → the success that is predicted of it, in [0, 1]; None if nothing predicts it.
Predict = Callable[[TaskDraft], float | None]

_COUNTS = (
    "expeditions", "runs_failed", "triplets", "drafts", "accepted", "retained", "discarded", "quarantined", "failures",
    "explorer_failures",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Synthesis:
    """The result of an evolution.

    `drafts` has one record of drafts.jsonl for each draft that was validated, and `expeditions` one record of
    expeditions.jsonl for each expedition. `figures` are the explorer's costs, as it reports them. `probe` is what an
    admission cost (admission.py), empty if nothing was tried. `idle` says why an evolution made no expedition, "" if it
    made one.

    `counts` are: expeditions, runs_failed, triplets, drafts, accepted, retained, discarded, quarantined (among the
    discarded), failures (expeditions or validations ended by a failure of the environment), explorer_failures
    (expeditions ended by a failure of the explorer's model).
    """

    tasks: tuple[Task, ...] = ()
    drafts: tuple[dict[str, Any], ...] = ()
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    expeditions: tuple[dict[str, Any], ...] = ()
    figures: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    probe: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    idle: str = ""

    @property
    def quarantined(self) -> list[dict[str, Any]]:
        """The records of the drafts that a person should look at."""
        return [record for record in self.drafts if record["verdict"]["quarantine"]]

    def reasons(self, count: int = 3) -> list[str]:
        """The commonest reasons why drafts were refused or expeditions failed, as "reason (4×)".

        Reasons that differ only in numbers count as one; the first of them is shown.
        """
        refused = [record["verdict"]["evidence"][-1] for record in self.drafts if not record["task"]]
        failed = [record["error"] for record in self.expeditions if record["error"]]
        # If all runs of an expedition failed, the reason of the first one counts.
        first_runs = (record["failures"][0] for record in self.expeditions if record["failures"] and not record["runs"])
        failed += [failure.partition(": ")[2] if failure.startswith("run ") else failure for failure in first_runs]
        counts: Counter[str] = Counter()
        first: dict[str, str] = {}
        for reason in (*refused, *failed):
            kind = re.sub(r"\d+", "#", reason)
            counts[kind] += 1
            first.setdefault(kind, reason)
        return [f"{first[kind]} ({times}×)" for kind, times in counts.most_common(count)]


@dataclasses.dataclass
class Collector:
    """The tasks found so far, at most `budget`, with the records and counts behind them.

    The wording of each task is added to `near_duplicates`. `predict` gives the success predicted of a draft. A
    collector changes only between batches, while no expedition runs.
    """

    explorer: str
    step: int
    budget: int
    near_duplicates: NearDuplicates
    predict: Predict = lambda draft: None
    tasks: dict[str, Task] = dataclasses.field(default_factory=dict)
    drafts: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    expeditions: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    counts: Counter[str] = dataclasses.field(default_factory=lambda: Counter(dict.fromkeys(_COUNTS, 0)))

    @property
    def left(self) -> int:
        """How many tasks are still to be found."""
        return self.budget - len(self.tasks)

    def take(self, result: ExpeditionResult) -> None:
        """Adds the tasks of an expedition that earlier ones do not make superfluous, and all its records."""
        expedition, exploration, counts = result.expedition, result.exploration, self.counts
        counts["expeditions"] += 1
        counts["runs_failed"] += len(exploration.failures)
        counts["triplets"] += len(exploration.triplets)
        for draft, verdict, task in result.examined:
            if task is not None and (reason := self._why_superfluous(task)):
                verdict = dataclasses.replace(verdict, status="discarded", evidence=(*verdict.evidence, reason))
                task = None
            counts["drafts"] += 1
            counts[verdict.status] += 1
            counts["quarantined"] += bool(verdict.quarantine)
            counts["failures"] += any(line.startswith("environment failed") for line in verdict.evidence)
            if task is not None:
                descent = lineage(expedition, draft, verdict, self.explorer, self.step)
                task = dataclasses.replace(task, origin=expedition.origin, lineage=descent)
                self.tasks[task.id] = task
                self.near_duplicates.add(task)
            believed = self.predict(draft)
            self.drafts.append(draft_record(expedition, draft, verdict, task, self.step, result.number, believed))
        counts["failures"] += sum(isinstance(error, EnvironmentFailure) for error in result.errors)
        counts["explorer_failures"] += sum(isinstance(error, EngineError) for error in result.errors)
        self.expeditions.append(expedition_record(expedition, exploration, result.errors, self.step, result.number))

    def synthesis(self, figures: Mapping[str, Any]) -> Synthesis:
        """The result of the evolution; `figures` are the explorer's."""
        return Synthesis(
            tuple(self.tasks.values()), tuple(self.drafts), dict(self.counts), tuple(self.expeditions), figures
        )

    def _why_superfluous(self, task: Task) -> str:
        """Why earlier expeditions of the same batch make this task superfluous; "" if they do not."""
        if task.id in self.tasks:
            return f"duplicate of task {task.id}"
        if self.left <= 0:
            return f"one too many: the {self.budget} tasks wanted were found before it"
        return self.near_duplicates.why(task)
