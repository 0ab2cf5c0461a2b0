"""The evaluation tasks, as what must not come near the pool."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from cojax.types import Task, content_hash, normalise, to_json
from cojax.validation.similarity import Nearest


@dataclasses.dataclass(frozen=True)
class Exclusions:
    """Refuses a query that an evaluation task has on any setup, the same actions on the same setup, and, where
    `similarity` is above 0, a query whose cosine with an evaluation task's, or with a part of it, is greater."""

    queries: frozenset[str] = frozenset()
    plans: frozenset[str] = frozenset()
    similarity: float = 0.0
    nearest: Nearest | None = None

    @classmethod
    def of(cls, tasks: Iterable[Task], similarity: float = 0.0) -> Exclusions:
        """Raises ValueError for a similarity outside [0, 1]."""
        if not 0.0 <= similarity <= 1.0:
            raise ValueError(f"similarity is {similarity}; expected a cosine in [0, 1], 0 to compare nothing")
        tasks = tuple(tasks)
        return cls(
            frozenset(normalise(task.query) for task in tasks),
            frozenset(_plan(task) for task in tasks),
            similarity,
            Nearest(sorted({task.query for task in tasks})) if similarity else None,
        )

    def why(self, task: Task) -> str:
        """Which rule excludes the task; empty where none does."""
        if normalise(task.query) in self.queries:
            return "an evaluation task has the same query"
        if _plan(task) in self.plans:
            return "an evaluation task has the same setup and actions"
        if self.nearest is not None:
            cosine, _ = self.nearest.to(task.query)
            if cosine > self.similarity:
                # Not which: drafts.jsonl must not hold what is evaluated.
                return f"an evaluation task is worded alike: similarity {cosine:.2f}, above {self.similarity:g}"
        return ""


def _plan(task: Task) -> str:
    """Setup and actions with their arguments; the text of an action counts only where it has no calls."""
    actions = [to_json(action.calls) or action.text for action in task.solution]
    return content_hash([task.environment, task.setup, actions])
