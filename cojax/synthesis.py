"""Stages 2 and 3 as one pipeline: expeditions → contexts → triplets → drafts → verdicts → tasks."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from cojax.environment import Environment, EnvironmentFailure, ask
from cojax.explorer import Explorer
from cojax.types import (
    ExplorationContext,
    Lineage,
    Origin,
    Signal,
    Task,
    TaskDraft,
    Trajectory,
    Verdict,
    content_hash,
    to_json,
)

Validate = Callable[[TaskDraft, Callable[[str], bool]], tuple[Verdict, Task | None]]


@dataclasses.dataclass(frozen=True)
class Expedition:
    """One trip into the environment: to the task's setup, guided by a context or by mere weights over tools.

    `signal` is the line of evidence that sent it, where one did.
    """

    task: Task
    origin: Origin
    context: ExplorationContext | None = None
    signal: str = ""
    weights: Mapping[str, float] | None = None


@dataclasses.dataclass(frozen=True)
class Synthesis:
    """New tasks, one record of drafts.jsonl for each draft examined, and the counts behind them.

    Counts: expeditions, runs_failed, triplets, drafts, accepted, retained, discarded, failures (expeditions or
    validations that the environment broke).
    """

    tasks: tuple[Task, ...] = ()
    drafts: tuple[dict[str, Any], ...] = ()
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Quarry:
    """What an evolution draws on.

    `signals` are those pending since the last evolution, `episodes` the ids of all its trajectories, and `find` brings
    a trajectory back by its id. `popularity` is how much an unguided explorer is drawn to each tool. `split` is where
    unguided expeditions take their setups from, never the queries; `contexts` how many expeditions are prepared.
    """

    environment: Environment
    explorer: Explorer
    signals: Sequence[Signal]
    episodes: Sequence[str]
    find: Callable[[str], Trajectory]
    popularity: Mapping[str, float] | None
    contexts: int
    seed: tuple
    split: str = "seed"


def static(quarry: Quarry) -> Iterator[Expedition]:
    """No growth: plain GRPO on D_0."""
    return iter(())


def unguided(quarry: Quarry) -> Iterator[Expedition]:
    """Unguided growth, skewed to popular tools (the paper's random exploration)."""
    for place in fresh_places(quarry.environment, quarry.split, quarry.contexts, quarry.seed):
        yield Expedition(place, "unguided", weights=quarry.popularity)


def uniform(quarry: Quarry) -> Iterator[Expedition]:
    """Unguided growth, uniform over tools: a ceiling."""
    for place in fresh_places(quarry.environment, quarry.split, quarry.contexts, quarry.seed):
        yield Expedition(place, "uniform")


def around_trajectories(quarry: Quarry) -> Iterator[Expedition]:
    """The control: guided as by a signal, around trajectories picked at random, one a task."""
    episodes = list(quarry.episodes)
    random.Random(repr(("trajectory", quarry.seed))).shuffle(episodes)
    visited: set[str] = set()
    for episode in episodes:
        if len(visited) == quarry.contexts:
            return
        trajectory = quarry.find(episode)
        if trajectory.valid and trajectory.task.id not in visited:
            visited.add(trajectory.task.id)
            context = quarry.explorer.reflect(trajectory, "trajectory", None)
            yield Expedition(trajectory.task, "trajectory", context)


def around_signals(quarry: Quarry) -> Iterator[Expedition]:
    """CoEvolve: around the trajectories that carry signals."""
    for signal in select(quarry.signals, quarry.contexts, quarry.seed):
        trajectory = quarry.find(signal.episode)
        context = quarry.explorer.reflect(trajectory, signal.kind, signal)
        yield Expedition(trajectory.task, signal.kind, context, signal.evidence)


EVOLUTIONS: dict[str, Callable[[Quarry], Iterator[Expedition]]] = {
    "none": static,
    "random": unguided,
    "uniform": uniform,
    "trajectory": around_trajectories,
    "feedback": around_signals,
}


def select(signals: Iterable[Signal], budget: int, seed: tuple) -> tuple[Signal, ...]:
    """At most `budget` signals, one a task and kind, taken from the kinds in turn: a scarce kind is kept whole."""
    rng = random.Random(repr(("select", seed)))
    kinds: dict[str, list[Signal]] = {}
    for signal in signals:
        kinds.setdefault(signal.kind, []).append(signal)
    queues: list[list[Signal]] = []
    for kind in sorted(kinds):
        rng.shuffle(kinds[kind])
        queues.append(list({signal.task: signal for signal in kinds[kind]}.values()))
    chosen: list[Signal] = []
    while len(chosen) < budget and any(queues):
        chosen += [queue.pop() for queue in queues if queue][: budget - len(chosen)]
    return tuple(chosen)


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
) -> Synthesis:
    """Goes on the expeditions in turn until `budget` tasks are found, at most `per_context` of each.

    `known` tells whether the pool holds a task of that id. An environment that breaks costs its expedition or its
    draft and is counted; it never ends the evolution. The same seed gives the same tasks.
    """
    tasks: dict[str, Task] = {}
    records: list[dict[str, Any]] = []
    counts = Counter(dict.fromkeys(_COUNTS, 0))

    def taken(id: str) -> bool:
        return id in tasks or known(id)

    for number, expedition in enumerate(_unbroken(expeditions, counts)):
        wanted = min(per_context, budget - len(tasks))
        for draft in _unbroken(_drafts(expedition, environment, explorer, wanted, (*seed, number), counts), counts):
            verdict, task = validate(draft, taken)
            counts["drafts"] += 1
            counts[verdict.status] += 1
            counts["failures"] += any(line.startswith("environment failed") for line in verdict.evidence)
            if task is not None:
                task = dataclasses.replace(
                    task, origin=expedition.origin, lineage=_lineage(expedition, draft, verdict, explorer, step)
                )
                tasks[task.id] = task
                wanted -= 1
            records.append(_record(expedition, draft, verdict, task, step))
            if not wanted:
                break
        if len(tasks) >= budget:
            break
    return Synthesis(tuple(tasks.values()), tuple(records), dict(counts))


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
) -> Synthesis:
    """D_0: `count` tasks by unguided exploration, one a setup, from at most `attempts * count` setups.

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
        per_context=1,
        seed=seed,
        step=0,
    )
    if len(result.tasks) < count:
        last = Counter(record["verdict"]["evidence"][-1] for record in result.drafts if not record["task"])
        reasons = [f"{reason} ({times}×)" for reason, times in last.most_common(3)] or ["no draft could be worded"]
        raise ValueError(
            f"{count} initial tasks wanted, {len(result.tasks)} found on {result.counts['expeditions']} setups; "
            f"commonest reasons: {'; '.join(reasons)}; the environment failed {result.counts['failures']}× and lost "
            f"{result.counts['runs_failed']} runs. Lower initial_tasks, or raise the explorer's runs or steps."
        )
    return result


def fresh_places(environment: Environment, split: str, count: int, seed: tuple) -> tuple[Task, ...]:
    """Setups of `count` tasks of the split, without their queries and solutions; the seed alone decides which."""
    number = int(content_hash(["places", repr(seed)]), 16) % 2**31
    return tuple(
        dataclasses.replace(task, query="", solution=()) for task in ask(environment.tasks, split, count, number)
    )


_COUNTS = ("expeditions", "runs_failed", "triplets", "drafts", "accepted", "retained", "discarded", "failures")


_T = TypeVar("_T")


def _unbroken(items: Iterable[_T], counts: Counter[str]) -> Iterator[_T]:
    """The items up to where the environment breaks, which is counted."""
    try:
        yield from items
    except EnvironmentFailure:
        counts["failures"] += 1


def _drafts(
    expedition: Expedition, environment: Environment, explorer: Explorer, wanted: int, seed: tuple, counts: Counter[str]
) -> Iterator[TaskDraft]:
    """Explores and abstracts; up to two more drafts than wanted, as not every one is accepted."""
    task, context = expedition.task, expedition.context
    counts["expeditions"] += 1
    exploration = explorer.explore(environment, task, context, seed, expedition.weights)
    counts["runs_failed"] += len(exploration.failures)
    counts["triplets"] += len(exploration.triplets)
    yield from explorer.abstract(exploration.triplets, environment, task, context, seed, wanted + 2)


def _lineage(expedition: Expedition, draft: TaskDraft, verdict: Verdict, explorer: Explorer, step: int) -> Lineage:
    guided = expedition.context is not None
    return Lineage(
        parent=expedition.task.id if guided else "",
        signal=expedition.signal,
        episode=expedition.context.episode if expedition.context else "",
        explorer=explorer.name,
        runs=draft.runs,
        verdict=verdict.status,
        evidence=verdict.evidence,
        step=step,
    )


def _record(expedition: Expedition, draft: TaskDraft, verdict: Verdict, task: Task | None, step: int) -> dict[str, Any]:
    """One line of drafts.jsonl."""
    return {
        "step": step,
        "origin": expedition.origin,
        "parent": expedition.task.id if expedition.context else "",
        "episode": expedition.context.episode if expedition.context else "",
        "signal": expedition.signal,
        "draft": to_json(draft),
        "verdict": to_json(verdict),
        "task": task.id if task else "",
    }
