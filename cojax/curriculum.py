"""Curricula: how much a step wants each task of D_t, by how it went so far. The paper draws all alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cojax.types import Group, Signal

# Mean rewards of a task's last visits, each in [0, 1], oldest first → a weight above 0.
Curriculum = Callable[[Sequence[float]], float]


def uniform(scores: Sequence[float]) -> float:
    """All tasks alike."""
    return 1.0


def learnability(scores: Sequence[float]) -> float:
    """p(1 − p), p = (1 + Σ s) / (2 + n): tasks solved half of the time teach most.

    The variance of success, from which alone a group's advantages come (sampling for learnability, arXiv 2408.15099).
    With the uniform prior a task never seen weighs most, 1/4, and one always solved or always failed is still drawn.
    """
    p = (1.0 + sum(scores)) / (2.0 + len(scores))
    return p * (1.0 - p)


def unmastered(scores: Sequence[float]) -> float:
    """1, and 1/10 once the last three visits were solved throughout: mastered tasks are only looked in on."""
    return 0.1 if len(scores) >= 3 and min(scores[-3:]) >= 1.0 else 1.0


CURRICULA: dict[str, Curriculum] = {"uniform": uniform, "learnability": learnability, "unmastered": unmastered}


class Visits:
    """Remembers, as a detector that signals nothing, the mean reward of each task's last ten visits."""

    window = 10

    def init(self) -> dict[str, Any]:
        return {}

    def update(self, memory: Mapping[str, Any], groups: Sequence[Group]) -> tuple[dict[str, Any], list[Signal]]:
        changes: dict[str, Any] = {}
        for group in groups:
            if group.valid:
                id = group.task.id
                changes[id] = [*changes.get(id, memory.get(id, [])), group.score][-self.window :]
        return changes, []
