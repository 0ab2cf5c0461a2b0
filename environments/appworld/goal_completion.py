"""AppWorld's own figures: task and scenario goal completion (TGC, SGC), from the rewards of its tasks' episodes."""

import dataclasses
from collections.abc import Sequence

from cojax.types import Group, Task


@dataclasses.dataclass(frozen=True)
class GoalCompletion:
    """TGC and SGC, shares in [0, 1], with their values in each scenario, over which their intervals are taken.

    `tgc` is the share of the `tasks` that succeed. `sgc` is the share of scenarios of which every task succeeds. Both
    are means over samples. `tgc_by_scenario` and `sgc_by_scenario` hold one mean for each scenario, and `runs` counts
    pairs of scenario and sample.
    """

    tgc: float
    sgc: float
    tasks: int
    tgc_by_scenario: tuple[float, ...]
    sgc_by_scenario: tuple[float, ...]
    runs: int


def goal_completion(groups: Sequence[Group], key: str = "task") -> GoalCompletion:
    """TGC and SGC of these tasks; a lost episode counts as a failure, as in the benchmark.

    `key` of a task's setup holds the benchmark's id; tasks without one are left out. Raises ValueError where no task
    has one.
    """
    scenarios: dict[str, list[list[float]]] = {}
    for group in groups:
        if key in group.task.setup and group.trajectories:
            solved = [float(t.valid and t.reward >= 1.0) for t in group.trajectories]
            scenarios.setdefault(scenario(group.task, key), []).append(solved)
    if not scenarios:
        raise ValueError(f"no task has {key!r} in its setup; goal completion is of AppWorld's own tasks")
    samples = max(len(solved) for tasks in scenarios.values() for solved in tasks)
    # Of each scenario, for each sample, which tasks that sample solved.
    runs = [
        [run for sample in range(samples) if (run := [solved[sample] for solved in tasks if sample < len(solved)])]
        for tasks in scenarios.values()
    ]
    by_task = [_mean(solved) for tasks in scenarios.values() for solved in tasks]
    sgc = tuple(_mean([min(run) for run in found]) for found in runs)
    return GoalCompletion(
        tgc=_mean(by_task),
        sgc=_mean(sgc),
        tasks=len(by_task),
        tgc_by_scenario=tuple(_mean([_mean(run) for run in found]) for found in runs),
        sgc_by_scenario=sgc,
        runs=sum(map(len, runs)),
    )


def scenario(task: Task, key: str = "task") -> str:
    """The scenario of a task: the part before `_` of the benchmark's id, which `key` of its setup holds.

    Raises ValueError where the setup has no such key.
    """
    if key not in task.setup:
        raise ValueError(f"a task's setup is {dict(task.setup)!r:.200}; a scenario is scored by its {key!r}")
    return str(task.setup[key]).partition("_")[0]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
