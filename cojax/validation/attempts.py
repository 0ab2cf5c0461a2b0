"""Attempts at a task by actors that know its query alone: whether it can be solved, and how often they fail."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

from cojax.environment import Actor, Environment
from cojax.environment.replay import Play
from cojax.explorer import Metered
from cojax.types import Task, Trajectory

# Makes actors, on behalf of an explorer, for a number of attempts at a task at the same time. Leaving the context frees
# what they hold. An actor with a method `close` is closed as soon as its own attempt is over.
Attempters = Callable[[Any, Task, int], AbstractContextManager[Sequence[Actor]]]


@dataclasses.dataclass(frozen=True)
class AttemptsResult:
    """The result of the attempts.

    `line` is evidence in words, `solved` the number of attempts with full reward, `best` the greatest reward, and
    `difficulty` the share of valid attempts that failed: None where none was valid.
    """

    line: str
    solved: int
    best: float
    difficulty: float | None


@dataclasses.dataclass(frozen=True)
class Attempts:
    """Plays a task `count` times at once, each time with an actor that sees only what the episode shows.

    Attempts lost to infrastructure failures do not count. Raises ValueError for a count below 1.
    """

    attempters: Attempters
    count: int = 2
    max_turns: int = 30

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"{self.count} attempts; expected at least 1")

    def __call__(self, environment: Environment, task: Task, explorer: Metered, play: Play) -> AttemptsResult:
        with self.attempters(explorer, task, self.count) as actors, ThreadPoolExecutor(self.count) as pool:
            played = list(pool.map(functools.partial(self._attempt, environment, task, play), actors))
        valid = [trajectory for trajectory in played if trajectory.valid]
        if not valid:
            return AttemptsResult(f"no attempt on the query alone came to an end: {played[0].error}", 0, 0.0, None)
        solved = sum(trajectory.reward >= 1.0 for trajectory in valid)
        best = max(trajectory.reward for trajectory in valid)
        line = f"solved without hints: {solved} of {len(valid)} attempts on the query alone"
        return AttemptsResult(
            line if solved else f"{line}, the best earned {best:.2f}", solved, best, 1 - solved / len(valid)
        )

    def _attempt(self, environment: Environment, task: Task, play: Play, act: Actor) -> Trajectory:
        try:
            return play(environment, task, act, max_turns=self.max_turns)
        finally:
            if close := getattr(act, "close", None):
                close()
