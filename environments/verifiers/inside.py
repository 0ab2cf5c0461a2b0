"""The source of rollouts, as it runs in a worker inside the package's own virtual environment."""

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from cojax.environment import Traits
from cojax.types import Task, Triplet
from ..tools.in_worker import function_of


class Rollouts:
    """Episodes and official tasks; wording and verdicts by replay are made outside of the worker."""

    name = "verifiers"

    def __init__(
        self,
        taskset: str,
        path: Sequence[str],
        arguments: Mapping[str, Any],
        evaluation: Mapping[str, Any] | None,
        most: int,
        full: float,
        state: str,
        solution: str,
    ):
        sys.path += path
        # The package keeps the folders of its runtimes below the user's folder.
        os.environ["HOME"] = tempfile.gettempdir()
        from .episode import RolloutEpisode
        from .taskset import Source, divided, documents

        train = Source.of(taskset, path, arguments, most)
        held_out = Source.of(taskset, path, {**arguments, **evaluation}, most) if evaluation else None
        self._read, self._full = function_of(state, path), full
        self._episode = RolloutEpisode
        self._splits, self._rows = divided(train, held_out, function_of(solution, path))
        self._tools = documents([train, *([held_out] if held_out else [])])
        self.traits = Traits(incomparable="" if state else train.incomparable())

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return self._tools

    def tasks(self, split: str, count: int, seed: int = 0) -> tuple[Task, ...]:
        return self._splits[split][:count]

    def start(self, task: Task) -> Any:
        return self._episode(self._rows(task.setup), self._read, self._full)

    def phrase(self, steps: Sequence[Triplet]) -> str | None:
        return None


make = Rollouts
