"""Wraps environments and episodes: calls that are not replaced go to the wrapped object."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cojax.environment import Environment, EnvironmentFailure, Episode, runs_policy_code, traits_of
from cojax.types import Action, Evaluation, Message, Observation, Task, Triplet


class Wrapped:
    """`environment`, but its episodes are started by `start`."""

    def __init__(self, environment: Environment, start: Callable[[Task], Episode]) -> None:
        self.environment, self.name = environment, environment.name
        self.runs_policy_code, self.traits = runs_policy_code(environment), traits_of(environment)
        self._start = start

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return self.environment.tools()

    def tasks(self, split: str, count: int, seed: int = 0) -> tuple[Task, ...]:
        return self.environment.tasks(split, count, seed)

    def start(self, task: Task) -> Episode:
        return self._start(task)

    def phrase(self, steps: Sequence[Triplet]) -> str | None:
        return self.environment.phrase(steps)


class WrappedEpisode:
    """`episode`, with its `reset` and `step` replaced by those that are passed."""

    def __init__(
        self,
        episode: Episode,
        *,
        reset: Callable[[], tuple[Message, ...]] | None = None,
        step: Callable[[Action], Observation] | None = None,
    ) -> None:
        self.episode = episode
        self._reset, self._step = reset or episode.reset, step or episode.step

    def reset(self) -> tuple[Message, ...]:
        return self._reset()

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return self.episode.tools()

    def step(self, action: Action) -> Observation:
        return self._step(action)

    def state(self) -> Mapping[str, Any]:
        return self.episode.state()

    def affordances(self) -> tuple[Action, ...]:
        return self.episode.affordances()

    def evaluate(self) -> Evaluation:
        return self.episode.evaluate()

    def close(self) -> None:
        self.episode.close()


def interruptible(environment: Environment, is_over: Callable[[], bool]) -> Environment:
    """Wraps the environment: once `is_over` turns true, starting or acting in an episode raises EnvironmentFailure."""

    def raise_if_over() -> None:
        if is_over():
            raise EnvironmentFailure("the evolution was asked to stop")

    def start(task: Task) -> Episode:
        raise_if_over()
        episode = environment.start(task)

        def step(action: Action) -> Observation:
            raise_if_over()
            return episode.step(action)

        return WrappedEpisode(episode, step=step)

    return Wrapped(environment, start)
