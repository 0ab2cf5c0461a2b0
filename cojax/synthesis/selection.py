"""Selects the signals that an evolution follows if there are more of them than expeditions."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from cojax.signals import SignalKind, Visit
from cojax.signals.kinds import step_of
from cojax.types import INFRASTRUCTURE, Signal

_HALF = 0.5

VisitsByTask = Mapping[str, Sequence[Visit]]  # task id → its visits, oldest first
Confidence = Callable[[Signal], float]
Select = Callable[[Iterable[Signal], int, tuple, Confidence], tuple[Signal, ...]]


def even(signals: Iterable[Signal], budget: int, seed: tuple, confidence: Confidence) -> tuple[Signal, ...]:
    """At most `budget` signals, one for each task and kind, taken from the kinds in turn, so that no kind crowds out
    another."""
    return _stratified(signals, budget, seed, lambda signal: 0.0)


def confident(signals: Iterable[Signal], budget: int, seed: tuple, confidence: Confidence) -> tuple[Signal, ...]:
    """Like `even`, but within each kind the signals with the highest confidence come first."""
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
        task = name.split("-")[1]
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
        rng.shuffle(kinds[kind])
        # The sort is stable: signals of equal priority stay in random order. The last one is taken first.
        queues.append(sorted({signal.task: signal for signal in kinds[kind]}.values(), key=priority))
    chosen: list[Signal] = []
    while len(chosen) < budget and any(queues):
        chosen += [queue.pop() for queue in queues if queue][: budget - len(chosen)]
    return tuple(chosen)
