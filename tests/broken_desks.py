"""The real desk, broken in the ways environments break."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import environments
from cojax.types import Action, Evaluation, Observation, Task, Triplet


class BrokenEpisode:
    def __init__(self, episode: Any, broken: BrokenDesk) -> None:
        self.episode, self.broken = episode, broken

    def __getattr__(self, name: str) -> Any:
        return getattr(self.episode, name)

    def reset(self):
        self.broken.on("reset")
        return self.episode.reset()

    def step(self, action: Action) -> Observation:
        self.broken.on("step")
        return self.episode.step(action)

    def affordances(self) -> tuple[Action, ...]:
        self.broken.on("affordances")
        return self.episode.affordances()

    def state(self):
        state = self.episode.state()
        return {**state, "clock": next(self.broken.clock)} if self.broken.ticks else state

    def evaluate(self) -> Evaluation:
        self.broken.on("evaluate")
        return self.broken.judge(self.episode)


class BrokenDesk:
    """`on(where)` may raise at reset, step, affordances, evaluate or phrase; `judge` replaces the evaluation; with
    `ticks` no two states are ever equal."""

    name = "desk"

    def __init__(
        self,
        on: Callable[[str], None] = lambda where: None,
        judge: Callable[[Any], Evaluation] = lambda episode: episode.evaluate(),
        ticks: bool = False,
    ) -> None:
        self.desk = environments.load("desk")
        self.on, self.judge, self.ticks, self.clock = on, judge, ticks, itertools.count()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.desk, name)

    def start(self, task: Task) -> BrokenEpisode:
        return BrokenEpisode(self.desk.start(task), self)

    def phrase(self, steps: Sequence[Triplet]) -> str | None:
        self.on("phrase")
        return self.desk.phrase(steps)


def always(place: str) -> Callable[[str], None]:
    """Raises at that place each time."""

    def raise_there(current_place: str) -> None:
        if current_place == place:
            raise OSError(f"{place} is on fire")

    return raise_there


def every(place: str, period: int) -> Callable[[str], None]:
    """Raises at that place each `period`-th time."""
    call_numbers = itertools.count(1)

    def raise_there(current_place: str) -> None:
        if current_place == place and next(call_numbers) % period == 0:
            raise OSError(f"{place} is on fire")

    return raise_there
