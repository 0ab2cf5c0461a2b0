"""Which tools a trajectory called, and which of them tell success from failure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from cojax.types import Action, Group, Trajectory

# How code names a tool, as `apis.APP.TOOL`.
_IN_CODE = re.compile(r"\bapis\.(\w+\.\w+)")
# A tool tells success from failure when its use differs by at least this share of trajectories.
_TELLING = 0.25


def tools_called(trajectory: Trajectory, failed: bool = True) -> tuple[str, ...]:
    """Names of the tools called, in order; without those of failed actions if `failed` is false."""
    return tuple(name for turn in trajectory.turns if failed or turn.observation.ok for name in tools_of(turn.action))


def tools_of(action: Action) -> tuple[str, ...]:
    """The tools that the action calls, or names in its code where it acts by code."""
    return tuple(call.name for call in action.calls) or tuple(_IN_CODE.findall(action.text))


def telling_tools(group: Group, threshold: float = 0.5) -> tuple[str, ...]:
    """Tools that successes of the group use more or less often than its failures, the most telling first."""
    won = [trajectory for trajectory in group.valid if trajectory.reward > threshold]
    lost = [trajectory for trajectory in group.valid if trajectory.reward <= threshold]
    if not won or not lost:
        return ()
    in_won, in_lost = _users(won), _users(lost)
    difference = {
        tool: abs(in_won[tool] / len(won) - in_lost[tool] / len(lost)) for tool in in_won.keys() | in_lost.keys()
    }
    return tuple(sorted((t for t in difference if difference[t] >= _TELLING), key=lambda t: (-difference[t], t)))


def focus(telling: tuple[str, ...], trajectory: Trajectory) -> tuple[str, ...]:
    """What a signal on this trajectory is about: the telling tools of its group, or all the tools it called."""
    return telling or tuple(dict.fromkeys(tools_called(trajectory)))


def _users(trajectories: Iterable[Trajectory]) -> Counter[str]:
    """For each tool, how many of the trajectories called it."""
    return Counter(tool for trajectory in trajectories for tool in set(tools_called(trajectory)))
