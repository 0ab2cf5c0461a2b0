"""Stages 2 and 3 as one pipeline: expeditions → contexts → triplets → drafts → verdicts → tasks."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from cojax.environment import EngineError, Environment, EnvironmentFailure
from cojax.explorer import Exploration, Explorer, Metered
from cojax.synthesis.expeditions import EVOLUTIONS, Expedition, Quarry, fresh_places
from cojax.synthesis.records import draft_record, expedition_record, lineage
from cojax.synthesis.selection import SELECTIONS, Visit, select
from cojax.types import Task, TaskDraft, Verdict
from cojax.validation.similarity import Kin

__all__ = [
    "EVOLUTIONS", "SELECTIONS", "Expedition", "Interrupted", "Quarry", "Synthesis", "Validate", "Visit",
    "fresh_places", "initial_tasks", "select", "synthesize",
]  # fmt: skip

Validate = Callable[[TaskDraft, Callable[[str], bool]], tuple[Verdict, Task | None]]


class Interrupted(Exception):
    """An evolution was told to stop; what it found so far is not used."""


@dataclasses.dataclass(frozen=True)
class Synthesis:
    """New tasks, one record of drafts.jsonl for each draft examined and one of expeditions.jsonl for each expedition,
    the counts behind them, and what the explorer says it cost.

    Counts: expeditions, runs_failed, triplets, drafts, accepted, retained, discarded, quarantined (of those discarded),
    failures (expeditions or validations that the environment broke), explorer_failures (expeditions that the explorer's
    mind broke).
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


_NOTHING = Exploration()


@dataclasses.dataclass(frozen=True)
class _Outing:
    """An expedition that was made: what it found, its drafts (which may still raise), and what ended it early."""

    expedition: Expedition
    exploration: Exploration = _NOTHING
    drafts: Iterable[TaskDraft] = ()
    error: EnvironmentFailure | EngineError | None = None


def synthesize(
    expeditions: Iterable[Expedition],
    environment: Environment,
    explorer: Explorer,
    validate: Validate,
    known: Callable[[str], bool],
    *,
    budget: int,
    per_context: int,
    seed: tuple,
    step: int,
    kin: Kin | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Synthesis:
    """Goes on the expeditions in turn until `budget` tasks are found, at most `per_context` of each.

    Raises Interrupted soon after `stop` turns true.

    `known` tells whether the pool holds a task of that id, `kin` whether it holds one that is worded alike. A metered
    explorer goes on several expeditions at once; their drafts are examined in order all the same. An environment or a
    mind that breaks costs its expedition or its draft and is counted; it never ends the evolution. The same seed, and
    the same replies where there is a mind, give the same tasks.
    """
    tasks: dict[str, Task] = {}
    drafts: list[dict[str, Any]] = []
    outings: list[dict[str, Any]] = []
    counts = Counter(dict.fromkeys(_COUNTS, 0))
    if isinstance(explorer, Metered):
        explorer.begin(seed)

    def taken(id: str) -> bool:
        return id in tasks or known(id)

    def left() -> int:
        return budget - len(tasks)

    made = _outings(_unbroken(expeditions, counts), environment, explorer, left, per_context, seed)
    for number, outing in enumerate(made):
        if stop():
            raise Interrupted
        expedition, exploration = outing.expedition, outing.exploration
        counts["expeditions"] += 1
        counts["runs_failed"] += len(exploration.failures)
        counts["triplets"] += len(exploration.triplets)
        wanted = min(per_context, left())
        errors = [outing.error] if outing.error else []
        for draft in _until(outing.drafts, errors):
            if stop():
                raise Interrupted
            verdict, task = _examined(draft, validate, taken, kin)
            counts["drafts"] += 1
            counts[verdict.status] += 1
            counts["quarantined"] += bool(verdict.quarantine)
            counts["failures"] += any(line.startswith("environment failed") for line in verdict.evidence)
            if task is not None:
                about = lineage(expedition, draft, verdict, explorer.name, step)
                task = dataclasses.replace(task, origin=expedition.origin, lineage=about)
                tasks[task.id] = task
                if kin is not None:
                    kin.add(task)
                wanted -= 1
            drafts.append(draft_record(expedition, draft, verdict, task, step, number))
            if not wanted:
                break
        counts["failures"] += sum(isinstance(error, EnvironmentFailure) for error in errors)
        counts["explorer_failures"] += sum(isinstance(error, EngineError) for error in errors)
        outings.append(expedition_record(expedition, exploration, errors, step, number))
        if left() <= 0:
            break
    figures = explorer.figures() if isinstance(explorer, Metered) else {}
    return Synthesis(tuple(tasks.values()), tuple(drafts), dict(counts), tuple(outings), figures)


def initial_tasks(
    environment: Environment,
    explorer: Explorer,
    validate: Validate,
    count: int,
    *,
    seed: tuple,
    weights: Mapping[str, float] | None,
    split: str = "seed",
    attempts: int = 10,
    per_context: int = 1,
    kin: Kin | None = None,
) -> Synthesis:
    """D_0: `count` tasks by unguided exploration, `per_context` a setup, from at most `attempts * count` setups.

    Raises ValueError where the environment yields fewer, naming the commonest reasons.
    """
    places = (place for round in range(attempts) for place in fresh_places(environment, split, count, (*seed, round)))
    result = synthesize(
        (Expedition(place, "unguided", weights=weights) for place in places),
        environment,
        explorer,
        validate,
        lambda id: False,
        budget=count,
        per_context=per_context,
        seed=seed,
        step=0,
        kin=kin,
    )
    if len(result.tasks) < count:
        reasons = result.reasons() or ["no draft could be worded"]
        raise ValueError(
            f"{count} initial tasks wanted, {len(result.tasks)} found on {result.counts['expeditions']} setups; "
            f"commonest reasons: {'; '.join(reasons)}; the environment failed {result.counts['failures']}× and lost "
            f"{result.counts['runs_failed']} runs. Lower initial_tasks, or raise the explorer's runs or steps."
        )
    return result


_COUNTS = (
    "expeditions", "runs_failed", "triplets", "drafts", "accepted", "retained", "discarded", "quarantined", "failures",
    "explorer_failures",
)  # fmt: skip
_T = TypeVar("_T")


def _unbroken(items: Iterable[_T], counts: Counter[str]) -> Iterator[_T]:
    """The items up to where the environment breaks, which is counted."""
    try:
        yield from items
    except EnvironmentFailure:
        counts["failures"] += 1


def _until(drafts: Iterable[TaskDraft], errors: list[EnvironmentFailure | EngineError]) -> Iterator[TaskDraft]:
    """The drafts up to where the environment or the mind breaks, which is noted."""
    try:
        yield from drafts
    except (EnvironmentFailure, EngineError) as error:
        errors.append(error)


def _examined(
    draft: TaskDraft, validate: Validate, taken: Callable[[str], bool], kin: Kin | None
) -> tuple[Verdict, Task | None]:
    """The verdict on a draft. What is worded like a task in the pool is not run."""
    if kin is not None and not draft.objections:
        task = Task(draft.environment, draft.query, draft.setup, draft.solution)
        if not taken(task.id) and (reason := kin.why(task)):
            return Verdict("discarded", (reason,)), None
    return validate(draft, taken)


def _outings(
    expeditions: Iterator[Expedition],
    environment: Environment,
    explorer: Explorer,
    left: Callable[[], int],
    per_context: int,
    seed: tuple,
) -> Iterator[_Outing]:
    """The expeditions made in turn or, by a metered explorer, several at once; never more than `left` tasks need.

    Alone, an explorer makes its drafts one by one, as they are asked for; at once, all of them, up to two more than
    wanted, as not every one is accepted.
    """
    numbered = enumerate(expeditions)
    if not isinstance(explorer, Metered):
        for number, expedition in numbered:
            wanted = min(per_context, left())
            yield _made(expedition, environment, explorer, wanted + 2, (*seed, number))
        return
    while wave := list(itertools.islice(numbered, max(0, min(explorer.width, left())))):
        wanted = min(per_context, left())
        places = [(*seed, number) for number, _ in wave]
        with explorer.team(places) as team, ThreadPoolExecutor(len(wave)) as pool:

            def go(place: int, wave: Sequence = wave, team: Sequence = team, wanted: int = wanted) -> _Outing:
                number, expedition = wave[place]
                outing = _made(expedition, environment, team[place], wanted + 2, (*seed, number))
                errors = [outing.error] if outing.error else []
                drafts = tuple(_until(outing.drafts, errors))
                return dataclasses.replace(outing, drafts=drafts, error=errors[0] if errors else None)

            outings = list(pool.map(go, range(len(wave))))
        yield from outings


def _made(expedition: Expedition, environment: Environment, explorer: Explorer, limit: int, seed: tuple) -> _Outing:
    """Reflects, explores and begins to abstract."""
    try:
        expedition = expedition.prepared(explorer)
        task, context = expedition.task, expedition.context
        exploration = explorer.explore(environment, task, context, seed, expedition.weights)
    except (EnvironmentFailure, EngineError) as error:
        return _Outing(expedition, error=error)
    return _Outing(
        expedition, exploration, explorer.abstract(exploration.triplets, environment, task, context, seed, limit)
    )
