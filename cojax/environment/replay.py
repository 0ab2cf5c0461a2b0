"""Replays actions on a fresh episode of a task, and records the states that they lead to."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cojax.environment import Actor, Environment, Episode, OutOfContext, play
from cojax.environment.wrapping import Wrapped, WrappedEpisode
from cojax.types import Action, Message, Task, Trajectory, Turn

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
    """An actor that takes these actions in order, and then no more."""
    remaining_actions = iter(actions)

    def act(episode: Episode, messages: tuple[Message, ...]) -> Turn:
        for action in remaining_actions:
            return Turn(action)
        raise OutOfContext

    return act


def replay(environment: Environment, task: Task, actions: Sequence[Action], play: Play = play) -> Replay:
    """Plays the actions on a fresh episode of the task and returns the trajectory with its states."""
    return record(environment, task, follow(actions), len(actions), play)


def record(
    environment: Environment,
    task: Task,
    act: Actor,
    max_turns: int,
    play: Play = play,
    read: Callable[[Episode], Any] = lambda episode: episode.state(),
) -> Replay:
    """Plays an actor on a fresh episode of the task. Returns the trajectory with its states, as `read` reads them.

    What `read` raises counts as raised by the reset or the step before it.
    """
    states: list[Any] = []

    def start(task: Task) -> Episode:
        episode = environment.start(task)

        def record_state(method: Callable[..., Any]) -> Callable[..., Any]:
            def call_and_record(*arguments: Any) -> Any:
                reply = method(*arguments)
                states.append(read(episode))
                return reply

            return call_and_record

        return WrappedEpisode(episode, reset=record_state(episode.reset), step=record_state(episode.step))

    trajectory = play(Wrapped(environment, start), task, act, max_turns=max_turns)
    return Replay(trajectory, tuple(states))
