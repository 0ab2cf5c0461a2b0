"""Prefix replay: an episode of a joined task begins with the first actions of its solution, without training on them.

The policy plays the remaining actions, so the number of replayed actions sets the difficulty (arXiv 2605.05112). This
number falls as the policy improves.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from cojax.types import Action, Group, Signal, Task
from .frontier import ORIGIN


class PrefixStaircase:
    """A statistic: task id → how many actions its next episodes replay.

    The number falls by one after a group with success in more than half of its episodes, and rises by one after a group
    with less. So success stays near one half while the policy improves (the staircase method).
    """

    def init(self) -> dict[str, Any]:
        return {}

    def update(self, memory: Mapping[str, Any], groups: Sequence[Group]) -> tuple[dict[str, Any], list[Signal]]:
        new_lengths: dict[str, Any] = {}
        for group in groups:
            if group.task.origin != ORIGIN or not group.valid:
                continue
            prefix_length = group.valid[0].replayed + (group.score < 0.5) - (group.score > 0.5)
            new_lengths[group.task.id] = max(0, min(prefix_length, len(group.task.solution) - 1))
        return new_lengths, []

    def prefix(self, task: Task, memory: Mapping[str, Any]) -> Sequence[Action]:
        """The actions to replay in the task's next episodes: at first half of the solution, never its last action."""
        if task.origin != ORIGIN:
            return ()
        max_actions = max(0, len(task.solution) - 1)
        return task.solution[: min(max_actions, memory.get(task.id, max_actions // 2))]
