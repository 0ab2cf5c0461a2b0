"""Which signals are worth an expedition, where there are more than can be followed.

A signal of one visit may be luck: of eight attempts at a task that is all but mastered one may fail. How far to trust
it follows from the Beta posterior over the task's success rate p after s successes and f failures,

    p ~ Beta(1 + s, 1 + f).
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from scipy.special import betainc

from cojax.types import INFRASTRUCTURE, Signal

# A task whose success rate is outside of these is neither at the boundary nor, below them, within reach at all.
_LOW, _HIGH = 0.1, 0.9
_HALF = 0.5


@dataclasses.dataclass(frozen=True)
class Visit:
    """One visit of a task: the step, and how many of its valid trajectories succeeded and failed (may be shares)."""

    step: int
    solved: float
    failed: float


Visits = Mapping[str, Sequence[Visit]]  # task id → its visits, oldest first
Select = Callable[[Iterable[Signal], int, tuple, Visits], tuple[Signal, ...]]


def even(signals: Iterable[Signal], budget: int, seed: tuple, visits: Visits) -> tuple[Signal, ...]:
    """At most `budget` signals, one a task and kind, taken from the kinds in turn: a scarce kind is kept whole."""
    return _stratified(signals, budget, seed, lambda signal: 0.0)


def confident(signals: Iterable[Signal], budget: int, seed: tuple, visits: Visits) -> tuple[Signal, ...]:
    """As `even`, those of each kind first that the history of their tasks bears out best."""
    return _stratified(signals, budget, seed, lambda signal: confidence(signal, visits))


def every(signals: Iterable[Signal], budget: int, seed: tuple, visits: Visits) -> tuple[Signal, ...]:
    """All of them, whatever the budget, in random order (the paper's)."""
    chosen = list(signals)
    random.Random(repr(("select", seed))).shuffle(chosen)
    return tuple(chosen)


SELECTIONS: dict[str, Select] = {"even": even, "confident": confident, "all": every}


def select(signals: Iterable[Signal], budget: int, seed: tuple) -> tuple[Signal, ...]:
    """`even`, which needs no history."""
    return even(signals, budget, seed, {})


def visits_of(
    episodes: Mapping[str, Mapping[str, Any]], windows: Mapping[str, Sequence[float]], group_size: int
) -> dict[str, list[Visit]]:
    """The visits of every task: those that episodes are at hand of, by id STEP-TASK-SAMPLE, and before them those that
    `windows` still hold a score of, of `group_size` trajectories each."""
    counts: dict[str, dict[int, list[float]]] = {}
    for name, episode in episodes.items():
        task = name.split("-")[1]
        solved_failed = counts.setdefault(task, {}).setdefault(_step(name), [0.0, 0.0])
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


def confidence(signal: Signal, visits: Visits) -> float:
    """Probability, by the task's visits, of what the signal claims; 0.5 where it says nothing of them.

    forgetting   P(p ≥ ½) before the signal's visit × P(p < ½) since then
    boundary     P(0.1 < p < 0.9)
    rare         P(p ≥ 0.1): a way of using tools that never succeeds is noise of an immature policy
    """
    known = visits.get(signal.task, ())
    if not known:
        return 0.5
    if signal.kind == "boundary":
        return _above(_LOW, known) - _above(_HIGH, known)
    if signal.kind == "rare":
        return _above(_LOW, known)
    at = _step(signal.episode)
    before = [visit for visit in known if visit.step < at]
    since = [visit for visit in known if visit.step >= at]
    return _above(_HALF, before) * (1.0 - _above(_HALF, since))


def _above(rate: float, visits: Sequence[Visit]) -> float:
    """P(p ≥ rate)."""
    solved, failed = sum(visit.solved for visit in visits), sum(visit.failed for visit in visits)
    return float(1.0 - betainc(1.0 + solved, 1.0 + failed, rate))


def _step(episode: str) -> int:
    """The step of an episode id STEP-TASK-SAMPLE; 0 for another one."""
    head = episode.partition("-")[0]
    return int(head) if head.isdigit() else 0


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
