"""Replays actions on a fresh episode of a task, and records the states that they lead to."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from cojax.environment import Actor, Environment, Episode, play
from cojax.environment.wrapping import Wrapped, WrappedEpisode
from cojax.types import Action, Task, Trajectory, Turn

Play = Callable[..., Trajectory]  # `play`, or `environment.watch.watched_play`


@dataclasses.dataclass(frozen=True)
class Replay:
    """A trajectory with its states: one at the start and one after every action."""

    trajectory: Trajectory
    states: tuple[Mapping[str, Any], ...]

    @property
    def complete(self) -> bool:
        """Whether every action worked and the last one ended the episode."""
        turns = self.trajectory.turns
        return self.trajectory.outcome == "finished" and all(turn.observation.ok for turn in turns)

    @property
    def effective(self) -> tuple[int, ...]:
        """Positions of the actions that changed the state, without the action that ended the episode."""
        last_index = len(self.states) - 2
        return tuple(i for i in range(last_index) if self.states[i] != self.states[i + 1])


def follow(actions: Sequence[Action]) -> Actor:
    """An actor that takes these actions in order; play it with `max_turns=len(actions)`."""
    remaining_actions = iter(actions)
    return lambda episode, messages: Turn(next(remaining_actions))


def replay(environment: Environment, task: Task, actions: Sequence[Action], play: Play = play) -> Replay:
    """Plays the actions on a fresh episode of the task and returns the trajectory with its states."""
    states: list[Mapping[str, Any]] = []
    recorded_environment = record_states(environment, states, lambda episode: episode.state())
    return Replay(play(recorded_environment, task, follow(actions), max_turns=len(actions)), tuple(states))


def record_states(environment: Environment, states: list[Any], read: Callable[[Episode], Any]) -> Environment:
    """The environment, whose episodes add to `states` what `read` returns after reset and after every step.

    What `read` raises counts as raised by the reset or the step.
    """

    def start(task: Task) -> Episode:
        episode = environment.start(task)

        def call(method: Callable[..., Any], *arguments: Any) -> Any:
            reply = method(*arguments)
            states.append(read(episode))
            return reply

        return WrappedEpisode(episode, reset=partial(call, episode.reset), step=partial(call, episode.step))

    return Wrapped(environment, start)
