"""Boundary: within one visit the policy both solves the task and fails it (CoEvolve §3.1)."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from cojax.registry.annotations import Range
from cojax.signals.kinds import GUIDANCE, Guidance, Visit, above
from cojax.signals.tools import signals_on
from cojax.types import Group, Signal

# A task is at the boundary while its success rate is between these.
_LOW, _HIGH = 0.1, 0.9


@dataclasses.dataclass(frozen=True)
class Boundary:
    """Signals all K valid trajectories of a group with  ∃ i, j: Rᵢ > ½  and  Rⱼ < ½. It remembers nothing."""

    name: ClassVar[str] = "boundary"
    colour: ClassVar[str] = "#3b72d9"
    guidance: ClassVar[Guidance] = GUIDANCE["boundary"]

    threshold: Annotated[float, "a share", Range(0.0, 1.0)] = 0.5

    def init(self) -> dict[str, Any]:
        return {}

    def update(self, memory: Mapping[str, Any], groups: Sequence[Group]) -> tuple[dict[str, Any], list[Signal]]:
        """The signals of these groups, and no changes."""
        signals: list[Signal] = []
        for group in groups:
            solved = sum(trajectory.reward > self.threshold for trajectory in group.valid)
            failed = sum(trajectory.reward < self.threshold for trajectory in group.valid)
            if solved and failed:
                counts = f"{solved} of {len(group.valid)} solved, {failed} failed"
                evidence = f"{counts}, this one at {{reward:.2f}}"
                signals += signals_on(self.name, group, group.valid, self.threshold, evidence)
        return {}, signals

    def confidence(self, signal: Signal, visits: Sequence[Visit]) -> float:
        """P(0.1 < p < 0.9), with p the task's success rate."""
        return above(_LOW, visits) - above(_HIGH, visits)
