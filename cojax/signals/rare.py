"""Rare: the trajectory contains an action pattern seldom seen over training (CoEvolve §3.1)."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from cojax.signals.tools import tools_called
from cojax.types import Group, Signal, Trajectory

# Where the memory keeps N; no tool name has brackets.
TOTAL = "(all)"
_THEN = " > "


@dataclasses.dataclass(frozen=True)
class Rare:
    """Signals every trajectory that contains a pattern p with  c_p > 0  and  c_p / N < θ / 100,  once N ≥ N_min.

    A pattern is the whole sequence of tool names (`pattern="sequence"`) or each run of n of them (`pattern=n`; of a
    shorter trajectory, all it has). Calls of failed actions are left out unless `failed`. c_p and N count occurrences
    over the whole training, this step's included, so that c_p > 0 holds for whatever a trajectory contains and the
    order within a step does not matter. One signal a trajectory, on its rarest pattern.
    """

    percent: float = 5.0  # θ
    minimum: int = 256  # N_min, not published: two steps of 16 tasks × 8 samples
    pattern: str | int = "sequence"
    failed: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.pattern, str) and self.pattern.isdecimal():
            object.__setattr__(self, "pattern", int(self.pattern))
        if self.pattern != "sequence" and not (isinstance(self.pattern, int) and self.pattern >= 1):
            raise ValueError(f"rare: pattern is {self.pattern!r}; expected 'sequence' or a length of at least 1")

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
        return Signal("rare", trajectory.task.id, trajectory.episode, evidence, tools)
