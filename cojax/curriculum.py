"""Curricula: how much a step wants each task of D_t, by how it went so far. The paper draws all alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from cojax.registry.annotations import Range
from cojax.types import Group, Signal

# Mean rewards of a task's last visits (at most WINDOW), each in [0, 1], oldest first → a weight above 0. The settings
# of an entry are its keyword-only parameters.
Curriculum = Callable[[Sequence[float]], float]
WINDOW = 10


def uniform(scores: Sequence[float]) -> float:
    """All tasks alike."""
    return 1.0


def learnability(scores: Sequence[float], *, prior: Annotated[float, Range(0.0, low_open=True)] = 1.0) -> float:
    """p(1 − p), p = (a + Σ s) / (2a + n): tasks solved half of the time teach most.

    The variance of success, from which alone a group's advantages come (sampling for learnability, arXiv 2408.15099).
    With the `prior` Beta(a, a), uniform at a = 1, a task never seen weighs most, 1/4, and one always solved or always
    failed is still drawn.
    """
    p = (prior + sum(scores)) / (2.0 * prior + len(scores))
    return p * (1.0 - p)


def unmastered(
    scores: Sequence[float],
    *,
    visits: Annotated[int, Range(1, WINDOW)] = 3,
    weight: Annotated[float, "a share", Range(0.0, 1.0, low_open=True)] = 0.1,
) -> float:
    """1, and `weight` once the last `visits` were solved throughout: mastered tasks are only looked in on."""
    return weight if len(scores) >= visits and min(scores[-visits:]) >= 1.0 else 1.0


CURRICULA: dict[str, Curriculum] = {"uniform": uniform, "learnability": learnability, "unmastered": unmastered}


def weighed(curriculum: Curriculum, scores: Sequence[float]) -> float:
    """The weight of a task. Raises ValueError for one that no task can be drawn by."""
    weight = float(curriculum(scores))
    if not 0.0 < weight < math.inf:
        raise ValueError(
            f"the curriculum weighs a task with the scores {list(scores)} {weight}; expected above 0, finite"
        )
    return weight


class Visits:
    """Remembers, as a detector that signals nothing, the mean reward of each task's last ten visits."""

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
