"""Selects what an evolution explores if there is more than it has expeditions for: signals, or any trajectories.

Both follow one rule: pick one item of each task at random, then shuffle the picked ones. So all tasks have equal
chances, however many signals or trajectories each has.
"""

import random
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from cojax.signals import SignalKind, Visit
from cojax.signals.kinds import step_of, task_of
from cojax.types import INFRASTRUCTURE, Signal

_HALF = 0.5

T = TypeVar("T")
VisitsByTask = Mapping[str, Sequence[Visit]]  # task id → its visits, oldest first
Confidence = Callable[[Signal], float]
Select = Callable[[Iterable[Signal], int, tuple, Confidence], tuple[Signal, ...]]


def even(signals: Iterable[Signal], budget: int, seed: tuple, confidence: Confidence) -> tuple[Signal, ...]:
    """At most `budget` signals, one for each task and kind, taken from the kinds in turn, so that no kind crowds out
    another. Within a kind all tasks have equal chances, and so have all signals of a task."""
    return _stratified(signals, budget, seed, lambda signal: 0.0)


def confident(signals: Iterable[Signal], budget: int, seed: tuple, confidence: Confidence) -> tuple[Signal, ...]:
    """Like `even`, but within each kind the signals with the highest confidence come first. Tasks of equal confidence
    have equal chances."""
    return _stratified(signals, budget, seed, confidence)


def every(signals: Iterable[Signal], budget: int, seed: tuple, confidence: Confidence) -> tuple[Signal, ...]:
    """All signals in random order, even beyond the budget (the paper's choice)."""
    chosen = list(signals)
    random.Random(repr(("select", seed))).shuffle(chosen)
    return tuple(chosen)


SELECTIONS: dict[str, Select] = {"even": even, "confident": confident, "all": every}


def visits_of(
    episodes: Mapping[str, Mapping[str, Any]], windows: Mapping[str, Sequence[float]], group_size: int
) -> dict[str, list[Visit]]:
    """The visits of every task in `episodes`, oldest first.

    Recent visits are counted from `episodes`, whose ids are STEP-TASK-SAMPLE. Of older visits only the mean score is
    left, in `windows`: each counts as a visit of `group_size` trajectories at step 0.
    """
    counts: dict[str, dict[int, list[float]]] = {}
    for name, episode in episodes.items():
        task = task_of(name)
        solved_failed = counts.setdefault(task, {}).setdefault(step_of(name), [0.0, 0.0])
        if episode["outcome"] not in INFRASTRUCTURE:
            solved_failed[episode["reward"] < _HALF] += 1
    visits: dict[str, list[Visit]] = {}
    for task, steps in counts.items():
        recent = [Visit(step, *steps[step]) for step in sorted(steps)]
        seen = sum(visit.solved + visit.failed > 0 for visit in recent)
        scores = windows.get(task, ())
        older = scores[: max(0, len(scores) - seen)]
        visits[task] = [Visit(0, score * group_size, (1 - score) * group_size) for score in older] + recent
    return visits


def confidence_by(kinds: Mapping[str, SignalKind], visits: VisitsByTask) -> Confidence:
    """The confidence that a signal's kind has in it, given the visits of its task; 0.5 if none are known."""

    def confidence(signal: Signal) -> float:
        known = visits.get(signal.task, ())
        return kinds[signal.kind].confidence(signal, known) if known and signal.kind in kinds else _HALF

    return confidence


def in_groups(items: Iterable[T], group: Callable[[T], Hashable], rng: random.Random) -> list[list[T]]:
    """The items by group: groups in random order, and the items of each in random order.

    All orders of the groups are equally likely, whatever their sizes: the first n groups, one item of each, are a fair
    draw among groups. The result depends on `rng` and the items, not on the order in which they are given.
    """
    groups: dict[Hashable, list[T]] = {}
    for item in sorted(items, key=repr):
        groups.setdefault(group(item), []).append(item)
    drawn = list(groups.values())
    for members in drawn:
        rng.shuffle(members)
    rng.shuffle(drawn)
    return drawn


def _stratified(
    signals: Iterable[Signal], budget: int, seed: tuple, priority: Callable[[Signal], float]
) -> tuple[Signal, ...]:
    """At most `budget` signals, one for each task and kind, from the kinds in turn, within a kind by `priority`."""
    rng = random.Random(repr(("select", seed)))
    kinds: dict[str, list[Signal]] = {}
    for signal in signals:
        kinds.setdefault(signal.kind, []).append(signal)
    queues: list[list[Signal]] = []
    for kind in sorted(kinds):
        distinct = [members[0] for members in in_groups(kinds[kind], lambda signal: signal.task, rng)]
        # The sort is stable: signals of equal priority stay in random order. The last one is taken first.
        queues.append(sorted(distinct, key=priority))
    chosen: list[Signal] = []
    while len(chosen) < budget and any(queues):
        chosen += [queue.pop() for queue in queues if queue][: budget - len(chosen)]
    return tuple(chosen)
