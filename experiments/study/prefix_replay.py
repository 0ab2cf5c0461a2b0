"""Prefix replay: an episode of a joined task begins with the first actions of its solution, which are not learned.

The number of actions replayed sets the difficulty (arXiv 2605.05112): the policy plays the rest. It falls as the policy
grows.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from cojax.types import Action, Group, Signal, Task
from .frontier import ORIGIN


class PrefixLengths:
    """A statistic: task id → how many actions its next episodes replay.

    After a group that was solved in more than half of its episodes it is one less, after one solved in fewer one more:
    so success stays near one half while the policy grows (a staircase).
    """

    def init(self) -> dict[str, Any]:
        return {}

    def update(self, memory: Mapping[str, Any], groups: Sequence[Group]) -> tuple[dict[str, Any], list[Signal]]:
        changes: dict[str, Any] = {}
        for group in groups:
            if group.task.origin != ORIGIN or not group.valid:
                continue
            length = group.valid[0].replayed + (group.score < 0.5) - (group.score > 0.5)
            changes[group.task.id] = max(0, min(length, len(group.task.solution) - 1))
        return changes, []

    def prefix(self, task: Task, memory: Mapping[str, Any]) -> Sequence[Action]:
        """The actions to replay in the next episodes of the task: at first half of the solution, never its last."""
        if task.origin != ORIGIN:
            return ()
        most = max(0, len(task.solution) - 1)
        return task.solution[: min(most, memory.get(task.id, most // 2))]
