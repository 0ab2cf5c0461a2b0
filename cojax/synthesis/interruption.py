"""Leaving an evolution before its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cojax.environment import Environment, EnvironmentFailure, Episode
from cojax.types import Action, Evaluation, Message, Observation, Task, Triplet


class Interrupted(Exception):
    """An evolution was told to stop; what it found so far is not used."""


class Interruptible:
    """An environment in which, once `over` is true, no episode starts and no action is carried out any more."""

    def __init__(self, environment: Environment, over: Callable[[], bool]) -> None:
        self.environment, self.over = environment, over
        self.name = environment.name

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return self.environment.tools()

    def tasks(self, split: str, count: int, seed: int = 0) -> tuple[Task, ...]:
        return self.environment.tasks(split, count, seed)

    def phrase(self, steps: Sequence[Triplet]) -> str | None:
        return self.environment.phrase(steps)

    def start(self, task: Task) -> Episode:
        _go_on(self.over)
        return _InterruptibleEpisode(self.environment.start(task), self.over)


class _InterruptibleEpisode:
    """An episode that ends as broken once `over` is true."""

    def __init__(self, episode: Episode, over: Callable[[], bool]) -> None:
        self.episode, self.over = episode, over

    def reset(self) -> tuple[Message, ...]:
        return self.episode.reset()

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return self.episode.tools()

    def step(self, action: Action) -> Observation:
        _go_on(self.over)
        return self.episode.step(action)

    def state(self) -> Mapping[str, Any]:
        return self.episode.state()

    def affordances(self) -> tuple[Action, ...]:
        return self.episode.affordances()

    def evaluate(self) -> Evaluation:
        return self.episode.evaluate()

    def close(self) -> None:
        self.episode.close()


def _go_on(over: Callable[[], bool]) -> None:
    if over():
        raise EnvironmentFailure("the evolution was told to stop")
