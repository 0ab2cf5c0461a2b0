"""Curricula: the weight with which a step draws each task of D_t, by its last scores. The paper draws all alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from cojax.registry.annotations import Range
from cojax.types import Group, Signal

# (mean reward of each of a task's last visits, at most WINDOW, each in [0, 1], oldest first) → a weight above 0. The
# settings of a curriculum are its keyword-only parameters.
Curriculum = Callable[[Sequence[float]], float]
WINDOW = 10


def uniform(scores: Sequence[float]) -> float:
    """All tasks alike."""
    return 1.0


def learnability(scores: Sequence[float], *, prior: Annotated[float, Range(0.0, low_open=True)] = 1.0) -> float:
    """p(1 − p), p = (a + Σ s) / (2a + n): tasks solved half of the time weigh most.

    It is the variance of success, without which a group has no advantages (sampling for learnability, arXiv
    2408.15099). `prior` is a of Beta(a, a), uniform at a = 1: a task never seen has the largest weight, 1/4, and a task
    always solved or always failed is still drawn.
    """
    p = (prior + sum(scores)) / (2.0 * prior + len(scores))
    return p * (1.0 - p)


def unmastered(
    scores: Sequence[float],
    *,
    visits: Annotated[int, Range(1, WINDOW)] = 3,
    weight: Annotated[float, "a share", Range(0.0, 1.0, low_open=True)] = 0.1,
) -> float:
    """`weight` for a task that the last `visits` visits solved in every episode, 1 for any other task."""
    return weight if len(scores) >= visits and min(scores[-visits:]) >= 1.0 else 1.0


CURRICULA: dict[str, Curriculum] = {"uniform": uniform, "learnability": learnability, "unmastered": unmastered}


def task_weight(curriculum: Curriculum, scores: Sequence[float]) -> float:
    """The weight of a task with these scores. Raises ValueError for a weight that is not finite and above 0."""
    weight = float(curriculum(scores))
    if not 0.0 < weight < math.inf:
        raise ValueError(
            f"the curriculum gives a task with the scores {list(scores)} the weight {weight}; expected above 0, finite"
        )
    return weight


class RecentScores:
    """A detector that raises no signals: it remembers the mean reward of each task's last ten visits.

    Its window is apart from the one of `signals.Forgetting`: either may be used without the other, and both are stored
    in memory.jsonl under their own names.
    """

    window = WINDOW

    def init(self) -> dict[str, Any]:
        return {}

    def update(self, memory: Mapping[str, Any], groups: Sequence[Group]) -> tuple[dict[str, Any], list[Signal]]:
        changes: dict[str, Any] = {}
        for group in groups:
            if group.valid:
                id = group.task.id
                changes[id] = [*changes.get(id, memory.get(id, [])), group.score][-self.window :]
        return changes, []
