"""Stops an evolution early: the exception, and an environment that refuses to start or act once it is stopped."""

from __future__ import annotations

from collections.abc import Callable

from cojax.environment import Environment, EnvironmentFailure, Episode
from cojax.environment.wrapping import Wrapped, WrappedEpisode
from cojax.types import Action, Observation, Task


class Interrupted(Exception):
    """An evolution was asked to stop. Nothing that it found so far is used."""


def interruptible(environment: Environment, over: Callable[[], bool]) -> Environment:
    """The environment, but once `over` returns true, starting an episode or acting in one raises EnvironmentFailure."""

    def start(task: Task) -> Episode:
        _raise_if(over)
        episode = environment.start(task)

        def step(action: Action) -> Observation:
            _raise_if(over)
            return episode.step(action)

        return WrappedEpisode(episode, step=step)

    return Wrapped(environment, start)


def _raise_if(over: Callable[[], bool]) -> None:
    if over():
        raise EnvironmentFailure("the evolution was asked to stop")
