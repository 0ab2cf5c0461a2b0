"""The tools that a trajectory called, and those that distinguish successes from failures.

Where one tool takes a whole command as text, signals treat each verb as a tool of its own (`ByVerb`).
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cojax import worlds
from cojax.types import Action, Call, Group, Signal, Trajectory, normalise

# A tool distinguishes success from failure if the shares of trajectories that use it differ by at least this.
_LEAST_DIFFERENCE = 0.25


def tools_called(trajectory: Trajectory, failed: bool = True) -> tuple[str, ...]:
    """Names of the tools called, in order; without those of failed actions if `failed` is false."""
    turns = (turn for turn in trajectory.turns if failed or turn.observation.ok)
    return tuple(name for turn in turns for name in tools_of(turn.action, trajectory.task.environment))


def tools_of(action: Action, environment: str = "") -> tuple[str, ...]:
    """The tools that the action calls. Where it has no calls, those that its text calls in the way that the environment
    of that name declares (`cojax.worlds.calls_in_text`)."""
    if action.calls or not action.text:
        return tuple(call.name for call in action.calls)
    patterns = worlds.calls_in_text(environment)
    return tuple(name for pattern in patterns for name in re.findall(pattern, action.text))


def distinguishing_tools(group: Group, threshold: float = 0.5) -> tuple[str, ...]:
    """Tools that successes of the group use more or less often than failures, the greatest difference first."""
    successes = [trajectory for trajectory in group.valid if trajectory.reward > threshold]
    failures = [trajectory for trajectory in group.valid if trajectory.reward <= threshold]
    if not successes or not failures:
        return ()
    in_successes, in_failures = _users(successes), _users(failures)
    difference = {
        tool: abs(in_successes[tool] / len(successes) - in_failures[tool] / len(failures))
        for tool in in_successes.keys() | in_failures.keys()
    }
    found = [tool for tool in difference if difference[tool] >= _LEAST_DIFFERENCE]
    return tuple(sorted(found, key=lambda tool: (-difference[tool], tool)))


def focus(distinguishing: tuple[str, ...], trajectory: Trajectory) -> tuple[str, ...]:
    """The tools a signal on this trajectory is about: its group's distinguishing tools, or all that it called."""
    return distinguishing or tuple(dict.fromkeys(tools_called(trajectory)))


def signals_on(
    kind: str, group: Group, trajectories: Iterable[Trajectory], threshold: float, evidence: str
) -> list[Signal]:
    """Signals on these trajectories of a group, about the tools that distinguish its successes or that each called.

    `evidence` may have the field {reward}.
    """
    distinguishing = distinguishing_tools(group, threshold)
    return [
        Signal(kind, group.task.id, one.episode, evidence.format(reward=one.reward), focus(distinguishing, one))
        for one in trajectories
    ]


def _users(trajectories: Iterable[Trajectory]) -> Counter[str]:
    """For each tool, how many of the trajectories called it."""
    return Counter(tool for trajectory in trajectories for tool in set(tools_called(trajectory)))


class ByVerb:
    """A kind of signal that reads `act(command="go north")` as a call of the tool `act go`.

    `commands` maps a tool to the parameter that holds the command. `kind` is the kind of signal itself.
    """

    def __init__(self, kind: Any, commands: Mapping[str, str]) -> None:
        self.name, self.colour, self.guidance = kind.name, kind.colour, kind.guidance
        self.init, self.confidence = kind.init, kind.confidence
        self._update, self._commands = kind.update, commands

    def update(self, memory: Mapping[str, Any], groups: Sequence[Group]) -> tuple[dict[str, Any], list[Signal]]:
        return self._update(
            memory, [Group(group.task, tuple(map(self._trajectory, group.trajectories))) for group in groups]
        )

    def _trajectory(self, trajectory: Trajectory) -> Trajectory:
        actions = (turn.action for turn in trajectory.turns)
        read = [dataclasses.replace(one, calls=tuple(map(self._call, one.calls))) for one in actions]
        turns = (dataclasses.replace(turn, action=one) for turn, one in zip(trajectory.turns, read, strict=True))
        return dataclasses.replace(trajectory, turns=tuple(turns))

    def _call(self, call: Call) -> Call:
        command = call.arguments.get(self._commands.get(call.name, "")) if isinstance(call.arguments, Mapping) else None
        verb = normalise(command).partition(" ")[0] if isinstance(command, str) else ""
        return Call(f"{call.name} {verb}", call.arguments) if verb else call
