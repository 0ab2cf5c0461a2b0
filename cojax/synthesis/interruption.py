"""Leaving an evolution before its end."""

from __future__ import annotations

from collections.abc import Callable

from cojax.environment import Environment, EnvironmentFailure, Episode
from cojax.environment.wrapping import Wrapped, WrappedEpisode
from cojax.types import Action, Observation, Task


class Interrupted(Exception):
    """An evolution was told to stop; what it found so far is not used."""


def interruptible(environment: Environment, over: Callable[[], bool]) -> Environment:
    """The environment, in which, once `over` is true, no episode starts and no action is carried out any more: both
    fail as if it were broken."""

    def start(task: Task) -> Episode:
        _go_on(over)
        episode = environment.start(task)

        def step(action: Action) -> Observation:
            _go_on(over)
            return episode.step(action)

        return WrappedEpisode(episode, step=step)

    return Wrapped(environment, start)


def _go_on(over: Callable[[], bool]) -> None:
    if over():
        raise EnvironmentFailure("the evolution was told to stop")
