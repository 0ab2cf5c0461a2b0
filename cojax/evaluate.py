"""Evaluation: greedy or sampled success on a fixed list of tasks, with its standard error."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from cojax.environment import Environment
from cojax.rollout.chat import Chat
from cojax.rollout.collect import Limits, collect, count_outcomes
from cojax.rollout.engine import Engine, Sampling
from cojax.types import Group, Task, Trajectory


@dataclasses.dataclass(frozen=True)
class Score:
    """Held-out results. `success` = avg@k, mean reward over valid episodes; `error` its standard error over tasks."""

    success: float
    error: float
    partial: float
    tasks: int
    outcomes: dict[str, int]


def evaluate(
    engine: Engine,
    chat: Chat,
    environment: Environment,
    tasks: Sequence[Task],
    *,
    sampling: Sampling,
    seed: tuple[int, ...],
    label: str,
    limits: Limits,
    samples: int = 1,
    on_episode: Callable[[Trajectory], None] = lambda trajectory: None,
) -> tuple[Score, list[Group]]:
    """Plays `samples` episodes of every task; at temperature 0, the paper's setting, one is enough."""
    groups = collect(
        engine,
        chat,
        environment,
        tasks,
        group_size=samples,
        sampling=sampling,
        seed=seed,
        label=label,
        limits=limits,
        on_episode=on_episode,
    )
    return score(groups), groups


def score(groups: Sequence[Group]) -> Score:
    """avg@k over the tasks that have a valid episode. Raises ValueError when none has."""
    means = [group.score for group in groups if group.valid]
    if not means:
        raise ValueError("no valid episode to score; see the outcomes in run.log for why all were lost")
    partial = [sum(t.partial for t in group.valid) / len(group.valid) for group in groups if group.valid]
    mean = sum(means) / len(means)
    variance = sum((m - mean) ** 2 for m in means) / max(1, len(means) - 1)
    outcomes = count_outcomes([t for group in groups for t in group.trajectories])
    return Score(mean, math.sqrt(variance / len(means)), sum(partial) / len(partial), len(means), outcomes)


def success_by(groups: Sequence[Group], key: str) -> dict[str, float]:
    """avg@k over the tasks of each kind, by the names that `key` of a task's setup holds: a string, or a list of them.

    A task of several kinds counts in each; names are sorted. Raises ValueError for a task whose setup has no such key.
    """
    means: dict[str, list[float]] = {}
    for group in groups:
        if key not in group.task.setup:
            raise ValueError(
                f"task {group.task.id} has no {key!r} in its setup to score it by; it has "
                f"{', '.join(sorted(group.task.setup)) or 'nothing'}. Set evaluation.by to one of these, or to ''"
            )
        names = group.task.setup[key]
        for name in {names} if isinstance(names, str) else set(names):
            if group.valid:
                means.setdefault(name, []).append(group.score)
    return {name: sum(means[name]) / len(means[name]) for name in sorted(means)}


def pass_at_k(successes: int, samples: int, k: int) -> float:
    """Unbiased chance that one of k samples succeeds, 1 − C(n−c, k)/C(n, k) (Chen et al. 2021, Eq. 1)."""
    if not 0 < k <= samples:
        raise ValueError(f"pass@k needs 0 < k ≤ samples; got k={k}, samples={samples}")
    return 1.0 - math.comb(samples - successes, k) / math.comb(samples, k)
