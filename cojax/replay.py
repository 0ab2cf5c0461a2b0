"""Replays: the same actions again, from a fresh start, with the states they pass through."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cojax.environment import Actor, Environment, Episode, play
from cojax.types import Action, Evaluation, Message, Observation, Task, Trajectory, Triplet, Turn

Play = Callable[..., Trajectory]  # `play`, or one that also watches deadlines


@dataclasses.dataclass(frozen=True)
class Replay:
    """A trajectory, and the state at its start and after every action: one more state than turns."""

    trajectory: Trajectory
    states: tuple[Mapping[str, Any], ...]

    @property
    def complete(self) -> bool:
        """Every action worked, and the last one ended the episode."""
        turns = self.trajectory.turns
        return self.trajectory.outcome == "finished" and all(turn.observation.ok for turn in turns)

    @property
    def effective(self) -> tuple[int, ...]:
        """Positions of the actions that changed the state, the one that ended the episode aside."""
        last = len(self.states) - 2
        return tuple(i for i in range(last) if self.states[i] != self.states[i + 1])


def follow(actions: Sequence[Action]) -> Actor:
    """An actor that takes these actions in order; play it with `max_turns=len(actions)`."""
    remaining = iter(actions)
    return lambda episode, messages: Turn(next(remaining))


def replay(environment: Environment, task: Task, actions: Sequence[Action], play: Play = play) -> Replay:
    """Plays the actions on a fresh episode of the task, and keeps the states."""
    filmed = _Filmed(environment)
    trajectory = play(filmed, task, follow(actions), max_turns=len(actions))
    return Replay(trajectory, tuple(filmed.states))


class _Filmed:
    """An environment whose one episode leaves its states behind."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.name = environment.name
        self.states: list[Mapping[str, Any]] = []

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return self.environment.tools()

    def tasks(self, split: str, count: int, seed: int = 0) -> tuple[Task, ...]:
        return self.environment.tasks(split, count, seed)

    def phrase(self, steps: Sequence[Triplet]) -> str | None:
        return self.environment.phrase(steps)

    def start(self, task: Task) -> Episode:
        return _FilmedEpisode(self.environment.start(task), self.states)


class _FilmedEpisode:
    """An episode that notes its state at the start and after every action."""

    def __init__(self, episode: Episode, states: list[Mapping[str, Any]]) -> None:
        self.episode, self.states = episode, states

    def reset(self) -> tuple[Message, ...]:
        opening = self.episode.reset()
        self.states.append(self.episode.state())
        return opening

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return self.episode.tools()

    def step(self, action: Action) -> Observation:
        observation = self.episode.step(action)
        self.states.append(self.episode.state())
        return observation

    def state(self) -> Mapping[str, Any]:
        return self.episode.state()

    def affordances(self) -> tuple[Action, ...]:
        return self.episode.affordances()

    def evaluate(self) -> Evaluation:
        return self.episode.evaluate()

    def close(self) -> None:
        self.episode.close()
