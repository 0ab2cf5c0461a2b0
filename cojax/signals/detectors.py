"""The signals of the paper (CoEvolve §3.1): forgetting, boundary and rare.

forgetting   the policy solved this task recently and fails it now
boundary     within one visit the policy both solves the task and fails it
rare         the trajectory contains an action pattern seldom seen over training
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from cojax.registry.annotations import Range
from cojax.signals.kinds import GUIDANCE, Guidance, Visit, above, step_of
from cojax.signals.tools import make_signals, tools_called
from cojax.types import Group, Signal, Trajectory

# Confidence treats a task as at the boundary if its success rate is between these, and as unsolvable below the first.
# No detector reads them.
_LOW_RATE, _HIGH_RATE = 0.1, 0.9
# The key of N in the memory of `Rare`; no tool name has brackets.
_ALL_KEY = "(all)"
_SEPARATOR = " > "
# Task id → score of each of its last visits, oldest first. An evolution reads it too (cojax/loop/evolution.py).
Scores = dict[str, list[float]]


@dataclasses.dataclass(frozen=True)
class Forgetting:
    """Signals the failing trajectories of a task with  ∃ sᵢ ∈ H: sᵢ ≥ θ  and  s_now < θ.

    H holds the scores of the task's last `window` visits. The score of a visit is the mean reward of its valid
    trajectories. A trajectory fails if its reward is below θ, the `threshold`, ½ in the paper. The paper does not
    publish its window W; the default here is 10 visits.
    """

    name: ClassVar[str] = "forgetting"
    colour: ClassVar[str] = "#d6504b"
    guidance: ClassVar[Guidance] = GUIDANCE["forgetting"]

    window: Annotated[int, Range(1)] = 10
    threshold: Annotated[float, "a share", Range(0.0, 1.0)] = 0.5

    def init(self) -> Scores:
        return {}

    def update(self, memory: Mapping[str, Any], groups: Sequence[Group]) -> tuple[Scores, list[Signal]]:
        """The changed windows, and the signals of these groups. A group without valid trajectories is not a visit."""
        changes: Scores = {}
        signals: list[Signal] = []
        for group in groups:
            if not group.valid:
                continue
            task_id, current_score = group.task.id, group.score
            recent_scores = changes.get(task_id, memory.get(task_id, []))
            visits_ago = [ago for ago, score in enumerate(reversed(recent_scores), start=1) if score >= self.threshold]
            if visits_ago and current_score < self.threshold:
                visits_text = "1 visit" if visits_ago[0] == 1 else f"{visits_ago[0]} visits"
                evidence = f"solved {visits_text} ago at {recent_scores[-visits_ago[0]]:.2f}, now {current_score:.2f}"
                failures = (trajectory for trajectory in group.valid if trajectory.reward < self.threshold)
                signals += make_signals(self.name, group, failures, self.threshold, evidence)
            # Recorded last, so that no visit is compared with itself.
            changes[task_id] = [*recent_scores, current_score][-self.window :]
        return changes, signals

    def confidence(self, signal: Signal, visits: Sequence[Visit]) -> float:
        """P(p ≥ ½ | visits before the signal's) · P(p < ½ | the signal's visit and later ones), whatever θ is."""
        signal_step = step_of(signal.episode)
        visits_before = [visit for visit in visits if visit.step < signal_step]
        visits_since = [visit for visit in visits if visit.step >= signal_step]
        return above(0.5, visits_before) * (1.0 - above(0.5, visits_since))


@dataclasses.dataclass(frozen=True)
class Boundary:
    """Signals all K valid trajectories of a group with  ∃ i, j: Rᵢ > θ  and  Rⱼ < θ, the `threshold`.

    It remembers nothing.
    """

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
            successes = sum(trajectory.reward > self.threshold for trajectory in group.valid)
            failures = sum(trajectory.reward < self.threshold for trajectory in group.valid)
            if successes and failures:
                counts_text = f"{successes} of {len(group.valid)} solved, {failures} failed"
                evidence = f"{counts_text}, this one at {{reward:.2f}}"
                signals += make_signals(self.name, group, group.valid, self.threshold, evidence)
        return {}, signals

    def confidence(self, signal: Signal, visits: Sequence[Visit]) -> float:
        """P(0.1 < p < 0.9), with p the task's success rate."""
        return above(_LOW_RATE, visits) - above(_HIGH_RATE, visits)


@dataclasses.dataclass(frozen=True)
class Rare:
    """Signals every trajectory that contains a pattern p with  c_p > 0  and  c_p / N < θ / 100,  once N ≥ N_min.

    A pattern is the whole sequence of tool names (`pattern="sequence"`), or each run of n names (`pattern=n`; the whole
    sequence of a shorter trajectory). Calls of failed actions are left out unless `failed`. c_p and N count occurrences
    over all of training, this step included. So c_p > 0 for every pattern of a trajectory, and the order within a step
    does not matter. A trajectory gets at most one signal, on its rarest pattern.
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
        pattern_pairs = ((trajectory, self.patterns(trajectory)) for group in groups for trajectory in group.valid)
        trajectory_patterns = [(trajectory, patterns) for trajectory, patterns in pattern_pairs if patterns]
        occurrences = Counter(pattern for _, patterns in trajectory_patterns for pattern in patterns)
        total = memory.get(_ALL_KEY, 0) + occurrences.total()
        counts = {pattern: memory.get(pattern, 0) + count for pattern, count in occurrences.items()} | {_ALL_KEY: total}
        if total < self.minimum:
            return counts, []
        signals = []
        for trajectory, patterns in trajectory_patterns:
            rarest_pattern = min(patterns, key=lambda pattern: (counts[pattern], pattern))
            if counts[rarest_pattern] / total < self.percent / 100:
                signals.append(self._make_signal(trajectory, rarest_pattern, counts[rarest_pattern], total))
        return counts, signals

    def confidence(self, signal: Signal, visits: Sequence[Visit]) -> float:
        """P(p ≥ 0.1): a rare pattern of a task that is never solved is noise of an untrained policy."""
        return above(_LOW_RATE, visits)

    def patterns(self, trajectory: Trajectory) -> list[str]:
        """The trajectory's patterns, each as often as it occurs."""
        tool_names = tools_called(trajectory, failed=self.failed)
        if not tool_names:
            return []
        if isinstance(self.pattern, str) or len(tool_names) <= self.pattern:
            return [_SEPARATOR.join(tool_names)]
        return [_SEPARATOR.join(tool_names[i : i + self.pattern]) for i in range(len(tool_names) - self.pattern + 1)]

    def _make_signal(self, trajectory: Trajectory, pattern: str, count: int, total: int) -> Signal:
        evidence = f"{pattern}: {count} of {total} patterns ({count / total:.2%}, below {self.percent:g}%)"
        tools = tuple(dict.fromkeys(pattern.split(_SEPARATOR)))
        return Signal(self.name, trajectory.task.id, trajectory.episode, evidence, tools)
