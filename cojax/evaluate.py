"""Evaluation: greedy or sampled success on a fixed list of tasks, and how sure a figure is.

Intervals are of 95 % and over tasks, the unit that is drawn: episodes of one task are alike. They are Wilson's score
intervals, which stay within [0, 1] and do not shrink to a point where everything fails or succeeds, as an interval from
the standard error or by the bootstrap does.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from cojax.environment import Environment
from cojax.rollout.chat import Chat
from cojax.rollout.collect import Limits, collect, count_outcomes
from cojax.rollout.engine import Engine, Sampling
from cojax.types import Group, Task, Trajectory

_Z = 1.959963984540054  # the standard normal's 97.5 % point


@dataclasses.dataclass(frozen=True)
class Score:
    """Held-out results. `success` = avg@k, mean reward over valid episodes; `error` its standard error over tasks.

    Episodes lost to the machinery are left out of both, which flatters a policy whose hard tasks are lost. `lost` is
    their share of all episodes, and `bounds` is avg@k over all tasks with every lost episode a failure, and with every
    one a success: without losses, both are `success`.
    """

    success: float
    error: float
    partial: float
    tasks: int
    outcomes: dict[str, int]
    lost: float
    bounds: tuple[float, float]


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
    played = [t for group in groups for t in group.trajectories]
    return Score(
        success=mean,
        error=math.sqrt(variance / len(means)),
        partial=sum(partial) / len(partial),
        tasks=len(means),
        outcomes=count_outcomes(played),
        lost=sum(not t.valid for t in played) / len(played),
        bounds=(_supposing(groups, 0.0), _supposing(groups, 1.0)),
    )


def _supposing(groups: Sequence[Group], reward: float) -> float:
    """avg@k over all tasks, were `reward` what each lost episode earned."""
    supposed = [[t.reward if t.valid else reward for t in group.trajectories] for group in groups if group.trajectories]
    return _mean([_mean(rewards) for rewards in supposed])


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean over `count` tasks, or scenarios, and its 95 % interval (low, high)."""

    value: float
    low: float
    high: float
    count: int


def estimate(values: Sequence[float], episodes: int = 0) -> Estimate:
    """The mean of `values`, each in [0, 1] and of another task, with Wilson's interval (Wilson 1927, Eq. 9).

    For means over several samples n is the effective number of tasks, n·p(1−p)/s², as a design effect is reckoned with
    (Kish 1965): n itself for values of 0 and 1, at most `episodes`. Raises ValueError for no values.
    """
    if not values:
        raise ValueError("no value to estimate from; every task was left out")
    count = len(values)
    p = min(1.0, max(0.0, sum(values) / count))
    spread = sum((value - p) ** 2 for value in values) / count
    # Where all tasks score alike they say no less than that many tasks, and no more than all their episodes.
    most = max(count, episodes)
    n = min(most, count * max(1.0, p * (1 - p) / spread)) if spread > 1e-12 else (most if 0 < p < 1 else count)
    centre = (p + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z * math.sqrt(p * (1 - p) / n + _Z**2 / (4 * n**2)) / (1 + _Z**2 / n)
    # At the ends the interval begins with the value itself, but for the last bits.
    return Estimate(p, 0.0 if p == 0 else max(0.0, centre - half), 1.0 if p == 1 else min(1.0, centre + half), count)


def average_at_k(groups: Sequence[Group]) -> Estimate:
    """avg@k: the mean over tasks of the mean reward of their valid episodes. A task without one is left out."""
    valid = [group for group in groups if group.valid]
    return estimate([group.score for group in valid], sum(len(group.valid) for group in valid))


def passed_at_k(groups: Sequence[Group], k: int) -> Estimate | None:
    """pass@k: the mean over tasks of the chance that one of k samples succeeds, that is, earns full reward.

    A task with fewer than k valid episodes is left out; None where that leaves none.
    """
    kept = [group for group in groups if len(group.valid) >= k]
    chances = [pass_at_k(sum(t.reward >= 1.0 for t in group.valid), len(group.valid), k) for group in kept]
    return estimate(chances, sum(len(group.valid) for group in kept)) if kept else None


def scenario(task: Task, key: str = "task") -> str:
    """The scenario of a task of AppWorld: what precedes `_` in the id that `key` of its setup holds.

    Raises ValueError where it holds none.
    """
    if key not in task.setup:
        raise ValueError(f"a task's setup is {dict(task.setup)!r:.200}; a scenario is scored by its {key!r}")
    return str(task.setup[key]).partition("_")[0]


def success_by(groups: Sequence[Group], key: str) -> dict[str, float]:
    """avg@k over the tasks of each kind, by the names that `key` of a task's setup holds: a string, or a list of them.

    A task of several kinds counts in each; names are sorted. Raises ValueError for a task whose setup has no such key.
    """
    return {name: _mean(means) for name, means in _told(groups, kinds_by(key)).items()}


def kinds_by(key: str) -> Callable[[Task], Iterable[str]]:
    """Task → the names that `key` of its setup holds. What it returns raises ValueError for a task without it."""

    def kinds(task: Task) -> Iterable[str]:
        if key not in task.setup:
            raise ValueError(
                f"task {task.id} has no {key!r} in its setup to score it by; it has "
                f"{', '.join(sorted(task.setup)) or 'nothing'}. Set evaluation.by to one of these, or to ''"
            )
        found = task.setup[key]
        return {found} if isinstance(found, str) else set(found)

    return kinds


def _told(groups: Sequence[Group], kinds: Callable[[Task], Iterable[str]]) -> dict[str, list[float]]:
    """Kind of task, sorted → the scores of its tasks that have a valid episode."""
    means: dict[str, list[float]] = {}
    for group in groups:
        for name in kinds(group.task):
            if group.valid:
                means.setdefault(name, []).append(group.score)
    return dict(sorted(means.items()))


def goal_completion(groups: Sequence[Group], key: str = "task") -> tuple[float, float]:
    """AppWorld's (TGC, SGC) in percent: tasks that succeed, and scenarios of which every task does; means over samples.

    `key` of a task's setup holds the benchmark's id, whose part before `_` is the scenario. A lost episode counts as
    a failure, as the benchmark has it. Raises ValueError where no task has such an id.
    """
    tgc, sgc = goal_estimates(groups, key)
    return tgc.value, sgc.value


def goal_estimates(groups: Sequence[Group], key: str = "task") -> tuple[Estimate, Estimate]:
    """`goal_completion` with intervals, both over scenarios: the tasks of one are alike."""
    scenarios: dict[str, list[list[float]]] = {}
    for group in groups:
        if key in group.task.setup and group.trajectories:
            solved = [float(t.valid and t.reward >= 1.0) for t in group.trajectories]
            scenarios.setdefault(scenario(group.task, key), []).append(solved)
    if not scenarios:
        raise ValueError(f"no task has {key!r} in its setup; goal completion is of AppWorld's own tasks")
    samples = max(len(solved) for tasks in scenarios.values() for solved in tasks)
    runs = [
        [[solved[sample] for solved in tasks if sample < len(solved)] for sample in range(samples)]
        for tasks in scenarios.values()
    ]
    each = [[run for run in of_scenario if run] for of_scenario in runs]
    tgc = estimate([_mean([_mean(run) for run in found]) for found in each], sum(map(len, each)))
    sgc = estimate([_mean([min(run) for run in found]) for found in each], sum(map(len, each)))
    tasks = [_mean(solved) for found in scenarios.values() for solved in found]
    return _percent(dataclasses.replace(tgc, value=_mean(tasks), count=len(tasks))), _percent(sgc)


def _percent(found: Estimate) -> Estimate:
    return Estimate(100 * found.value, 100 * found.low, 100 * found.high, found.count)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def pass_at_k(successes: int, samples: int, k: int) -> float:
    """Unbiased chance that one of k samples succeeds, 1 − C(n−c, k)/C(n, k) (Chen et al. 2021, Eq. 1)."""
    if not 0 < k <= samples:
        raise ValueError(f"pass@k needs 0 < k ≤ samples; got k={k}, samples={samples}")
    return 1.0 - math.comb(samples - successes, k) / math.comb(samples, k)


def describe(
    groups: Sequence[Group], samples: int, kinds: Callable[[Task], Iterable[str]] = lambda task: ()
) -> dict[str, Any]:
    """The figures of a split, as in result.json: shares in [0, 1], `turns` per valid episode, `lost` episodes that the
    machinery ended with `bounds` on success as in `Score`, and under `by` the success on the tasks of each kind. pass@k
    is told for k of 1, 2, 4, … `samples`.

    Raises ValueError where every episode was lost.
    """
    found = score(groups)
    valid = [trajectory for group in groups for trajectory in group.valid]
    ks = sorted({*(2**power for power in range(samples.bit_length())), samples})
    by = _told(groups, kinds)
    return {
        "success": found.success,
        "error": found.error,
        "partial": found.partial,
        "tasks": found.tasks,
        "episodes": len(valid),
        "lost": sum(len(group.trajectories) for group in groups) - len(valid),
        "bounds": list(found.bounds),
        "outcomes": found.outcomes,
        "turns": sum(len(trajectory.turns) for trajectory in valid) / len(valid),
        "avg_at_k": dataclasses.asdict(average_at_k(groups)),
        "pass_at_k": {str(k): dataclasses.asdict(told) for k in ks if (told := passed_at_k(groups, k))},
        "by": {name: {"success": _mean(means), "tasks": len(means)} for name, means in by.items()},
    }
