"""Forgetting: the policy solved this task recently and fails it now (CoEvolve §3.1)."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from cojax.registry.annotations import Range
from cojax.signals.kinds import GUIDANCE, Guidance, Visit, above, step_of
from cojax.signals.tools import signals_on
from cojax.types import Group, Signal

# Task id → score of each of its last visits, oldest first. An evolution reads it too (cojax/loop/evolution.py).
Scores = dict[str, list[float]]


@dataclasses.dataclass(frozen=True)
class Forgetting:
    """Signals the failing trajectories of a task with  ∃ sᵢ ∈ H: sᵢ ≥ ½  and  s_now < ½.

    H holds the scores of the task's last `window` visits. The score of a visit is the mean reward of its valid
    trajectories. A trajectory fails below `threshold`. The paper's W is not published: 10 visits here.
    """

    name: ClassVar[str] = "forgetting"
    colour: ClassVar[str] = "#d6504b"
    guidance: ClassVar[Guidance] = GUIDANCE["forgetting"]

    window: Annotated[int, Range(1)] = 10
    threshold: Annotated[float, "a share", Range(0.0, 1.0)] = 0.5

    def init(self) -> Scores:
        return {}

    def update(self, memory: Mapping[str, Any], groups: Sequence[Group]) -> tuple[Scores, list[Signal]]:
        """The changed windows, and the signals of these groups. A group without a valid trajectory is no visit."""
        changes: Scores = {}
        signals: list[Signal] = []
        for group in groups:
            if not group.valid:
                continue
            name, now = group.task.id, group.score
            recent = changes.get(name, memory.get(name, []))
            solved = [ago for ago, score in enumerate(reversed(recent), start=1) if score >= self.threshold]
            if solved and now < self.threshold:
                ago = "1 visit" if solved[0] == 1 else f"{solved[0]} visits"
                evidence = f"solved {ago} ago at {recent[-solved[0]]:.2f}, now {now:.2f}"
                failing = (one for one in group.valid if one.reward < self.threshold)
                signals += signals_on(self.name, group, failing, self.threshold, evidence)
            # Recorded last: the visit that solves a task is not compared with itself.
            changes[name] = [*recent, now][-self.window :]
        return changes, signals

    def confidence(self, signal: Signal, visits: Sequence[Visit]) -> float:
        """P(p ≥ ½ | visits before the signal's) · P(p < ½ | the signal's visit and later ones)."""
        at = step_of(signal.episode)
        before = [visit for visit in visits if visit.step < at]
        since = [visit for visit in visits if visit.step >= at]
        return above(0.5, before) * (1.0 - above(0.5, since))
