"""Rare: the trajectory contains an action pattern seldom seen over training (CoEvolve §3.1)."""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from cojax.registry.annotations import Range
from cojax.signals.kinds import GUIDANCE, Guidance, Visit, above
from cojax.signals.tools import tools_called
from cojax.types import Group, Signal, Trajectory

# The memory's key of N; no tool name has brackets.
TOTAL = "(all)"
_THEN = " > "


# The least success rate at which a task counts as solvable.
_LOW = 0.1


@dataclasses.dataclass(frozen=True)
class Rare:
    """Signals every trajectory that contains a pattern p with  c_p > 0  and  c_p / N < θ / 100,  once N ≥ N_min.

    A pattern is the whole sequence of tool names (`pattern="sequence"`), or each run of n names (`pattern=n`; the whole
    sequence of a shorter trajectory). Calls of failed actions are left out unless `failed`. c_p and N count occurrences
    over the whole training, this step included: so c_p > 0 for every pattern of a trajectory, and the order within a
    step does not matter. A trajectory gets at most one signal, on its rarest pattern.
    """

    name: ClassVar[str] = "rare"
    colour: ClassVar[str] = "#d9962a"
    guidance: ClassVar[Guidance] = GUIDANCE["rare"]

    percent: Annotated[float, Range(0.0, 100.0)] = 5.0  # θ
    minimum: Annotated[int, Range(0)] = 256  # N_min, not published: two steps of 16 tasks × 8 samples
    pattern: Literal["sequence"] | Annotated[int, Range(1)] = "sequence"
    failed: bool = False

    def init(self) -> dict[str, int]:
        return {}

    def update(self, memory: Mapping[str, Any], groups: Sequence[Group]) -> tuple[dict[str, int], list[Signal]]:
        """The changed counts, and the signals of these groups."""
        found = [
            (trajectory, patterns)
            for group in groups
            for trajectory in group.valid
            if (patterns := self.patterns(trajectory))
        ]
        seen = Counter(pattern for _, patterns in found for pattern in patterns)
        total = memory.get(TOTAL, 0) + seen.total()
        counts = {pattern: memory.get(pattern, 0) + times for pattern, times in seen.items()} | {TOTAL: total}
        if total < self.minimum:
            return counts, []
        signals = []
        for trajectory, patterns in found:
            rarest = min(patterns, key=lambda pattern: (counts[pattern], pattern))
            if counts[rarest] / total < self.percent / 100:
                signals.append(self._signal(trajectory, rarest, counts[rarest], total))
        return counts, signals

    def confidence(self, signal: Signal, visits: Sequence[Visit]) -> float:
        """P(p ≥ 0.1): a rare pattern of a task that is never solved is noise of an untrained policy."""
        return above(_LOW, visits)

    def patterns(self, trajectory: Trajectory) -> list[str]:
        """The trajectory's patterns, each as often as it occurs."""
        names = tools_called(trajectory, failed=self.failed)
        if not names:
            return []
        if isinstance(self.pattern, str) or len(names) <= self.pattern:
            return [_THEN.join(names)]
        return [_THEN.join(names[i : i + self.pattern]) for i in range(len(names) - self.pattern + 1)]

    def _signal(self, trajectory: Trajectory, pattern: str, count: int, total: int) -> Signal:
        evidence = f"{pattern}: {count} of {total} patterns ({count / total:.2%}, below {self.percent:g}%)"
        tools = tuple(dict.fromkeys(pattern.split(_THEN)))
        return Signal(self.name, trajectory.task.id, trajectory.episode, evidence, tools)
