"""The tools that a trajectory called, and those that distinguish successes from failures.

If one tool takes a whole command as text, signals treat each verb as a separate tool (`read_by_verb`).
"""

import dataclasses
import re
import types
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cojax.environment import CALLS_IN_TEXT
from cojax.types import Action, Call, Group, Signal, Trajectory, normalise

# A tool distinguishes success from failure if the shares of trajectories that use it differ by at least this.
_MIN_DIFFERENCE = 0.25


def tools_called(trajectory: Trajectory, failed: bool = True) -> tuple[str, ...]:
    """Names of the tools called, in order; if `failed` is false, without the calls of failed actions."""
    turns = (turn for turn in trajectory.turns if failed or turn.observation.ok)
    return tuple(tool_name for turn in turns for tool_name in tools_of(turn.action, trajectory.task.environment))


def tools_of(action: Action, environment: str = "") -> tuple[str, ...]:
    """The tools that the action calls.

    If it has no calls, these are the tools that its text calls, in the form that the environment of that name declares
    (`CALLS_IN_TEXT`), or for another name in the form of any environment that this process has found.
    """
    if action.calls or not action.text:
        return tuple(call.name for call in action.calls)
    own_pattern = CALLS_IN_TEXT.get(environment)
    patterns = dict.fromkeys(CALLS_IN_TEXT.values()) if own_pattern is None else (own_pattern,)
    return tuple(tool_name for pattern in patterns if pattern for tool_name in re.findall(pattern, action.text))


def distinguishing_tools(group: Group, threshold: float = 0.5) -> tuple[str, ...]:
    """Tools that successes of the group use more or less often than failures, the greatest difference first."""
    successes = [trajectory for trajectory in group.valid if trajectory.reward > threshold]
    failures = [trajectory for trajectory in group.valid if trajectory.reward <= threshold]
    if not successes or not failures:
        return ()
    success_counts, failure_counts = _count_by_tool(successes), _count_by_tool(failures)
    difference_by_tool = {
        tool: abs(success_counts[tool] / len(successes) - failure_counts[tool] / len(failures))
        for tool in success_counts.keys() | failure_counts.keys()
    }
    tools = [tool for tool in difference_by_tool if difference_by_tool[tool] >= _MIN_DIFFERENCE]
    return tuple(sorted(tools, key=lambda tool: (-difference_by_tool[tool], tool)))


def focus(group_tools: tuple[str, ...], trajectory: Trajectory) -> tuple[str, ...]:
    """The tools a signal on this trajectory is about: its group's distinguishing tools, or all that it called."""
    return group_tools or tuple(dict.fromkeys(tools_called(trajectory)))


def make_signals(
    kind: str, group: Group, trajectories: Iterable[Trajectory], threshold: float, evidence: str
) -> list[Signal]:
    """Signals on these trajectories of a group, about the tools that distinguish its successes or that each called.

    `evidence` may have the field {reward}.
    """
    group_tools = distinguishing_tools(group, threshold)
    return [
        Signal(kind, group.task.id, t.episode, evidence.format(reward=t.reward), focus(group_tools, t))
        for t in trajectories
    ]


def _count_by_tool(trajectories: Iterable[Trajectory]) -> Counter[str]:
    """For each tool, how many of the trajectories called it."""
    return Counter(tool for trajectory in trajectories for tool in set(tools_called(trajectory)))


def read_by_verb(kind: Any, commands: Mapping[str, str]) -> Any:
    """The kind of signal, changed to read `act(command="go north")` as a call of the tool `act go`.

    `commands` maps a tool to the parameter that holds the command. `__wrapped__` is the kind itself.
    """

    def add_verb(call: Call) -> Call:
        command_text = call.arguments.get(commands.get(call.name, "")) if isinstance(call.arguments, Mapping) else None
        verb = normalise(command_text).partition(" ")[0] if isinstance(command_text, str) else ""
        return Call(f"{call.name} {verb}", call.arguments) if verb else call

    def add_verbs(trajectory: Trajectory) -> Trajectory:
        actions = (turn.action for turn in trajectory.turns)
        actions = (dataclasses.replace(action, calls=tuple(map(add_verb, action.calls))) for action in actions)
        turns = (dataclasses.replace(turn, action=copy) for turn, copy in zip(trajectory.turns, actions, strict=True))
        return dataclasses.replace(trajectory, turns=tuple(turns))

    def update(memory: Mapping[str, Any], groups: Sequence[Group]) -> Any:
        return kind.update(memory, [Group(group.task, tuple(map(add_verbs, group.trajectories))) for group in groups])

    return types.SimpleNamespace(
        name=kind.name, colour=kind.colour, guidance=kind.guidance, init=kind.init, confidence=kind.confidence,
        update=update, __wrapped__=kind,
    )  # fmt: skip
