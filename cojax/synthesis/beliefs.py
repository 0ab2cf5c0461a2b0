"""Beliefs about success: for pairs of tools and lengths of solutions, from the rewards of all episodes so far.

The tools and the length of a task's solution stand for the skills that it needs. Evidence is discounted with time, as
the policy changes:

    solved ← γ^Δ · solved + successes,    failed ← γ^Δ · failed + failures,

Δ the number of steps since the evidence changed last. A pair (a, b) at length n has the belief

    p ~ Beta(s·m + solved, s·(1 − m) + failed),    m = p_a · p_b,

where p_t is the mean of the belief about one tool alone. A tool without evidence borrows: its prior mean is the success
of its neighbours, or 1/2 without any.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any

from cojax.prefixes import replayed
from cojax.registry.annotations import Range
from cojax.signals.tools import tools_of
from cojax.types import Action, Group, Signal, Task

# The number of steps seen, and γ; all other keys begin with "tool:" or "pair:".
_STEPS, _DISCOUNT = "steps", "discount"

Evidence = tuple[float, float]  # successes and failures, discounted


def tool_key(tool: str) -> str:
    return f"tool:{tool}"


def pair_key(one: str, other: str, length: int) -> str:
    """The order of the two tools does not matter."""
    first, second = sorted((one, other))
    return f"pair:{first}+{second}/{length}"


def solution_tools(task: Task) -> list[str]:
    """The tools of the task's solution, each once, in order."""
    return _tools(task.solution)


def _tools(actions: Sequence[Action]) -> list[str]:
    return list(dict.fromkeys(tool for action in actions for tool in tools_of(action)))


@dataclasses.dataclass(frozen=True)
class Beliefs:
    """A detector that raises no signals: it keeps the evidence, in memory.jsonl under the name `beliefs`.

    The memory maps a key to (solved, failed, step of the last change). `discount` is γ.
    """

    discount: Annotated[float, Range(0.0, 1.0, low_open=True)] = 0.98

    def init(self) -> dict[str, Any]:
        return {_STEPS: 0, _DISCOUNT: self.discount}

    def update(self, memory: Mapping[str, Any], groups: Sequence[Group]) -> tuple[dict[str, Any], list[Signal]]:
        now = memory[_STEPS] + 1
        found: dict[str, list[float]] = {}
        for group in groups:
            solved = sum(trajectory.reward >= 1.0 for trajectory in group.valid)
            failed = len(group.valid) - solved
            if group.valid:
                # Of a replayed beginning the policy played nothing.
                for key in _keys(group.task.solution[replayed(group.valid[0]) :]):
                    counts = found.setdefault(key, [0.0, 0.0])
                    counts[0] += solved
                    counts[1] += failed
        changes: dict[str, Any] = {_STEPS: now}
        for key, counts in found.items():
            old = _discounted(memory.get(key), now, self.discount)
            changes[key] = [old[0] + counts[0], old[1] + counts[1], now]
        return changes, []


def _keys(actions: Sequence[Action]) -> list[str]:
    tools = _tools(actions)
    pairs = itertools.combinations(tools, 2)
    return [*map(tool_key, tools), *(pair_key(one, other, len(actions)) for one, other in pairs)]


def _discounted(entry: Sequence[float] | None, now: int, discount: float) -> Evidence:
    if entry is None:
        return 0.0, 0.0
    solved, failed, step = entry
    share = discount ** (now - step)
    return share * solved, share * failed


@dataclasses.dataclass(frozen=True)
class Posterior:
    """The beliefs at one moment, from the memory of `Beliefs`.

    `neighbours` gives the tools that a tool borrows from. A prior counts as `strength` episodes.
    """

    memory: Mapping[str, Any]
    neighbours: Callable[[str], Iterable[str]] = lambda tool: ()
    strength: float = 2.0

    def tool(self, tool: str) -> float:
        """The mean of the belief about tasks that need the tool."""
        solved, failed = self._evidence(tool_key(tool))
        return (self.strength * self._borrowed(tool) + solved) / (self.strength + solved + failed)

    def pair(self, one: str, other: str, length: int) -> Evidence:
        """(α, β) of the belief about tasks that need both tools, with solutions of `length` actions, both above 0."""
        solved, failed = self._evidence(pair_key(one, other, length))
        mean = self.tool(one) * self.tool(other)
        return self.strength * mean + solved, self.strength * (1.0 - mean) + failed

    def known(self, tool: str) -> float:
        """How many episodes the belief about the tool rests on, discounted."""
        return sum(self._evidence(tool_key(tool)))

    def _evidence(self, key: str) -> Evidence:
        return _discounted(self.memory.get(key), self.memory[_STEPS], self.memory[_DISCOUNT])

    def _borrowed(self, tool: str) -> float:
        """The success of the tool's neighbours, shrunk towards 1/2 by one success and one failure."""
        found = [self._evidence(tool_key(other)) for other in self.neighbours(tool)]
        solved, failed = (sum(one[i] for one in found) for i in (0, 1))
        return (1.0 + solved) / (2.0 + solved + failed)
