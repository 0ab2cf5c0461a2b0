"""Can a task be solved by who knows its query alone? Attempts without hints, and how hard they find it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

from cojax.environment import Actor, Environment
from cojax.environment.replay import Play
from cojax.explorer import Metered
from cojax.types import Task

# On behalf of an explorer, actors for so many attempts at a task, to act at once; what they hold is freed when the
# context is left.
Attempters = Callable[[Any, Task, int], AbstractContextManager[Sequence[Actor]]]


@dataclasses.dataclass(frozen=True)
class Attempted:
    """What came of the attempts. `best` is the greatest reward; `difficulty` the share of valid attempts that failed,
    None where none was valid."""

    line: str
    solved: int
    best: float
    difficulty: float | None


@dataclasses.dataclass(frozen=True)
class Attempts:
    """Plays a task `count` times at once, each with an actor that sees what an episode shows and nothing else.

    An attempt lost to the machinery says nothing, and where all are, nothing is proved. Raises ValueError for a count
    below 1.
    """

    attempters: Attempters
    count: int = 2
    max_turns: int = 30

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"{self.count} attempts; expected at least 1")

    def __call__(self, environment: Environment, task: Task, explorer: Metered, play: Play) -> Attempted:
        with self.attempters(explorer, task, self.count) as actors, ThreadPoolExecutor(self.count) as pool:
            played = list(pool.map(lambda act: play(environment, task, act, max_turns=self.max_turns), actors))
        valid = [trajectory for trajectory in played if trajectory.valid]
        if not valid:
            return Attempted(f"no attempt on the query alone came to an end: {played[0].error}", 0, 0.0, None)
        solved = sum(trajectory.reward >= 1.0 for trajectory in valid)
        best = max(trajectory.reward for trajectory in valid)
        line = f"solved without hints: {solved} of {len(valid)} attempts on the query alone"
        return Attempted(
            line if solved else f"{line}, the best earned {best:.2f}", solved, best, 1 - solved / len(valid)
        )
