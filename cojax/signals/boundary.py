"""Boundary: within one visit the policy both solves the task and fails it (CoEvolve §3.1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from cojax.signals.tools import focus, telling_tools
from cojax.types import Group, Signal


@dataclasses.dataclass(frozen=True)
class Boundary:
    """Signals all K valid trajectories of a group with  ∃ i, j: Rᵢ > ½  and  Rⱼ < ½. It remembers nothing."""

    threshold: float = 0.5

    def init(self) -> dict[str, Any]:
        return {}

    def update(self, memory: Mapping[str, Any], groups: Sequence[Group]) -> tuple[dict[str, Any], list[Signal]]:
        """No changes, and the signals of these groups."""
        signals: list[Signal] = []
        for group in groups:
            solved = sum(trajectory.reward > self.threshold for trajectory in group.valid)
            failed = sum(trajectory.reward < self.threshold for trajectory in group.valid)
            if not solved or not failed:
                continue
            telling = telling_tools(group, self.threshold)
            signals += [
                Signal(
                    "boundary",
                    group.task.id,
                    trajectory.episode,
                    f"{solved} of {len(group.valid)} solved, {failed} failed, this one at {trajectory.reward:.2f}",
                    focus(telling, trajectory),
                )
                for trajectory in group.valid
            ]
        return {}, signals
