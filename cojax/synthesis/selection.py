"""Which signals are worth an expedition, where there are more than can be followed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from cojax.signals import SignalKind, Visit
from cojax.signals.kinds import step_of
from cojax.types import INFRASTRUCTURE, Signal

_HALF = 0.5

Visits = Mapping[str, Sequence[Visit]]  # task id → its visits, oldest first
Confidence = Callable[[Signal], float]
Select = Callable[[Iterable[Signal], int, tuple, Confidence], tuple[Signal, ...]]


def even(signals: Iterable[Signal], budget: int, seed: tuple, confidence: Confidence) -> tuple[Signal, ...]:
    """At most `budget` signals, one a task and kind, taken from the kinds in turn: a scarce kind is kept whole."""
    return _stratified(signals, budget, seed, lambda signal: 0.0)


def confident(signals: Iterable[Signal], budget: int, seed: tuple, confidence: Confidence) -> tuple[Signal, ...]:
    """As `even`, those of each kind first that the history of their tasks bears out best."""
    return _stratified(signals, budget, seed, confidence)


def every(signals: Iterable[Signal], budget: int, seed: tuple, confidence: Confidence) -> tuple[Signal, ...]:
    """All of them, whatever the budget, in random order (the paper's)."""
    chosen = list(signals)
    random.Random(repr(("select", seed))).shuffle(chosen)
    return tuple(chosen)


SELECTIONS: dict[str, Select] = {"even": even, "confident": confident, "all": every}


def select(signals: Iterable[Signal], budget: int, seed: tuple) -> tuple[Signal, ...]:
    """`even`, which needs no history."""
    return even(signals, budget, seed, lambda signal: _HALF)


def visits_of(
    episodes: Mapping[str, Mapping[str, Any]], windows: Mapping[str, Sequence[float]], group_size: int
) -> dict[str, list[Visit]]:
    """The visits of every task: those that episodes are at hand of, by id STEP-TASK-SAMPLE, and before them those that
    `windows` still hold a score of, of `group_size` trajectories each."""
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


def judged(kinds: Mapping[str, SignalKind], visits: Visits) -> Confidence:
    """Signal → how far its kind trusts it by the visits of its task; 0.5 where they say nothing of it."""

    def confidence(signal: Signal) -> float:
        known = visits.get(signal.task, ())
        return kinds[signal.kind].confidence(signal, known) if known and signal.kind in kinds else _HALF

    return confidence


def _stratified(
    signals: Iterable[Signal], budget: int, seed: tuple, worth: Callable[[Signal], float]
) -> tuple[Signal, ...]:
    rng = random.Random(repr(("select", seed)))
    kinds: dict[str, list[Signal]] = {}
    for signal in signals:
        kinds.setdefault(signal.kind, []).append(signal)
    queues: list[list[Signal]] = []
    for kind in sorted(kinds):
        rng.shuffle(kinds[kind])
        # Stable: those of equal worth stay in random order. The last is taken first.
        queues.append(sorted({signal.task: signal for signal in kinds[kind]}.values(), key=worth))
    chosen: list[Signal] = []
    while len(chosen) < budget and any(queues):
        chosen += [queue.pop() for queue in queues if queue][: budget - len(chosen)]
    return tuple(chosen)
