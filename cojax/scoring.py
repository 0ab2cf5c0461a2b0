"""Scores of played episodes: success, avg@k and pass@k over a fixed list of tasks, with 95 % intervals.

Intervals are over tasks, the unit that is sampled, because episodes of one task resemble each other. They are Wilson's
score intervals, which stay within [0, 1]. Unlike intervals from the standard error or the bootstrap, they keep a width
even if every episode fails or every episode succeeds.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from cojax.rollout.collect import count_outcomes
from cojax.types import Group, Task

_Z = 1.959963984540054  # the standard normal's 97.5 % point


@dataclasses.dataclass(frozen=True)
class Score:
    """Held-out results: `success` is avg@k, the mean reward over valid episodes; `error` its standard error over tasks.

    Episodes lost to the machinery count in neither, which flatters a policy whose hard tasks are lost. `lost` is their
    share of all episodes. `bounds` is avg@k over all tasks with every lost episode counted as a failure, then with each
    counted as a success; without losses both equal `success`.
    """

    success: float
    error: float
    partial: float
    tasks: int
    outcomes: dict[str, int]
    lost: float
    bounds: tuple[float, float]


def compute_score(groups: Sequence[Group]) -> Score:
    """avg@k over the tasks that have a valid episode. Raises ValueError if none has."""
    task_means = [group.score for group in groups if group.valid]
    if not task_means:
        raise ValueError("no valid episode to score; see the outcomes in run.log for why all were lost")
    partial_means = [sum(t.partial for t in group.valid) / len(group.valid) for group in groups if group.valid]
    mean_reward = sum(task_means) / len(task_means)
    variance = sum((task_mean - mean_reward) ** 2 for task_mean in task_means) / max(1, len(task_means) - 1)
    trajectories = [t for group in groups for t in group.trajectories]
    return Score(
        success=mean_reward,
        error=math.sqrt(variance / len(task_means)),
        partial=sum(partial_means) / len(partial_means),
        tasks=len(task_means),
        outcomes=count_outcomes(trajectories),
        lost=sum(not t.valid for t in trajectories) / len(trajectories),
        bounds=(_average_with_lost(groups, 0.0), _average_with_lost(groups, 1.0)),
    )


def _average_with_lost(groups: Sequence[Group], lost_reward: float) -> float:
    """avg@k over all tasks if every lost episode had earned `lost_reward`."""
    reward_lists = [[t.reward if t.valid else lost_reward for t in g.trajectories] for g in groups if g.trajectories]
    return _mean([_mean(task_rewards) for task_rewards in reward_lists])


Estimate = dict[str, float]  # `value`, a mean over `count` tasks or scenarios, and its 95 % interval, `low` to `high`


def estimate_mean(values: Sequence[float], episode_count: int = 0) -> Estimate:
    """The mean of `values`, each in [0, 1] and from a different task, with Wilson's interval (Wilson 1927, Eq. 9).

    For means over several samples, n is the effective number of tasks, n·p(1−p)/s², by the design effect (Kish 1965).
    It is n itself for values of 0 and 1, and at most `episode_count`. Raises ValueError if there are no values.
    """
    if not values:
        raise ValueError("no value to estimate from; every task was left out")
    count = len(values)
    p = min(1.0, max(0.0, sum(values) / count))
    variance = sum((value - p) ** 2 for value in values) / count
    # Tasks with equal scores carry at least the information of that many tasks, and at most that of all their episodes.
    max_n = max(count, episode_count)
    n = min(max_n, count * max(1.0, p * (1 - p) / variance)) if variance > 1e-12 else (max_n if 0 < p < 1 else count)
    centre = (p + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half_width = _Z * math.sqrt(p * (1 - p) / n + _Z**2 / (4 * n**2)) / (1 + _Z**2 / n)
    # At 0 and 1 the interval ends at the value itself, which rounding could miss by the last bits.
    low, high = 0.0 if p == 0 else max(0.0, centre - half_width), 1.0 if p == 1 else min(1.0, centre + half_width)
    return {"value": p, "low": low, "high": high, "count": count}


def compute_average_at_k(groups: Sequence[Group]) -> Estimate:
    """avg@k: the mean over tasks of the mean reward of their valid episodes. A task without one is left out."""
    valid_groups = [group for group in groups if group.valid]
    return estimate_mean([group.score for group in valid_groups], sum(len(group.valid) for group in valid_groups))


def compute_pass_at_k(groups: Sequence[Group], k: int) -> Estimate | None:
    """pass@k: the mean over tasks of the chance that at least one of k samples earns full reward.

    A task with fewer than k valid episodes is left out. Returns None if no task is left.
    """
    eligible_groups = [group for group in groups if len(group.valid) >= k]
    chances = [pass_at_k(sum(t.reward >= 1.0 for t in group.valid), len(group.valid), k) for group in eligible_groups]
    return estimate_mean(chances, sum(len(group.valid) for group in eligible_groups)) if eligible_groups else None


def measure_success_by(groups: Sequence[Group], key: str) -> dict[str, float]:
    """avg@k of each kind of task. A task's setup holds the name of its kind, or a list of names, under `key`.

    A task of several kinds counts in each. Names are sorted. Raises ValueError for a task whose setup has no such key.
    """
    return {kind: figures["success"] for kind, figures in measure_by_kind(groups, make_kinds(key)).items()}


def make_kinds(key: str) -> Callable[[Task], Iterable[str]]:
    """Returns a function from a task to the names under `key` of its setup. It raises ValueError if there is no key."""

    def kinds_of(task: Task) -> Iterable[str]:
        if key not in task.setup:
            raise ValueError(
                f"task {task.id} has no {key!r} in its setup to score it by; it has "
                f"{', '.join(sorted(task.setup)) or 'nothing'}. Set evaluation.by to one of these, or to ''"
            )
        kind_or_kinds = task.setup[key]
        return {kind_or_kinds} if isinstance(kind_or_kinds, str) else set(kind_or_kinds)

    return kinds_of


def measure_by_kind(groups: Sequence[Group], kinds_of: Callable[[Task], Iterable[str]]) -> dict[str, dict[str, Any]]:
    """For each kind of task, sorted: avg@k as `success`, and the number of its `tasks` that have a valid episode."""
    scores_by_kind: dict[str, list[float]] = {}
    for group in groups:
        for kind in kinds_of(group.task):
            if group.valid:
                scores_by_kind.setdefault(kind, []).append(group.score)
    return {kind: {"success": _mean(scores), "tasks": len(scores)} for kind, scores in sorted(scores_by_kind.items())}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def pass_at_k(success_count: int, sample_count: int, k: int) -> float:
    """Unbiased chance that one of k samples succeeds, 1 − C(n−c, k)/C(n, k) (Chen et al. 2021, Eq. 1)."""
    if not 0 < k <= sample_count:
        raise ValueError(f"pass@k needs 0 < k ≤ samples; got k={k}, samples={sample_count}")
    return 1.0 - math.comb(sample_count - success_count, k) / math.comb(sample_count, k)


def describe(
    groups: Sequence[Group], sample_count: int, kinds_of: Callable[[Task], Iterable[str]] = lambda task: ()
) -> dict[str, Any]:
    """The figures of a split, as in result.json.

    Shares are in [0, 1]. `turns` is per valid episode. `lost` counts the episodes that the machinery ended, and
    `bounds` are as in `Score`. `pass_at_k` is given for k of 1, 2, 4, … `sample_count`. `by` is the success on the
    tasks of each kind. Raises ValueError if every episode was lost.
    """
    split_score = compute_score(groups)
    valid_episodes = [trajectory for group in groups for trajectory in group.valid]
    ks = sorted({*(2**power for power in range(sample_count.bit_length())), sample_count})
    return {
        **dataclasses.asdict(split_score),
        "episodes": len(valid_episodes),
        "lost": sum(len(group.trajectories) for group in groups) - len(valid_episodes),
        "bounds": list(split_score.bounds),
        "turns": sum(len(trajectory.turns) for trajectory in valid_episodes) / len(valid_episodes),
        "avg_at_k": compute_average_at_k(groups),
        "pass_at_k": {str(k): chance for k in ks if (chance := compute_pass_at_k(groups, k))},
        "by": measure_by_kind(groups, kinds_of),
    }
