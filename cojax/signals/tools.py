"""The tools that a trajectory called, and those that distinguish successes from failures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from cojax.types import Action, Group, Trajectory

# A tool named in code, as `apis.APP.TOOL`.
_IN_CODE = re.compile(r"\bapis\.(\w+\.\w+)")
# A tool distinguishes success from failure if the shares of trajectories that use it differ by at least this.
_LEAST_DIFFERENCE = 0.25


def tools_called(trajectory: Trajectory, failed: bool = True) -> tuple[str, ...]:
    """Names of the tools called, in order; without those of failed actions if `failed` is false."""
    return tuple(name for turn in trajectory.turns if failed or turn.observation.ok for name in tools_of(turn.action))


def tools_of(action: Action) -> tuple[str, ...]:
    """The tools that the action calls, or names in its code where it acts by code."""
    return tuple(call.name for call in action.calls) or tuple(_IN_CODE.findall(action.text))


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


def _users(trajectories: Iterable[Trajectory]) -> Counter[str]:
    """For each tool, how many of the trajectories called it."""
    return Counter(tool for trajectory in trajectories for tool in set(tools_called(trajectory)))
