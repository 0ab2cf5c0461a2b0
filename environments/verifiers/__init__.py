"""Tasksets of the package `verifiers` (MIT) as an environment; see docs/verifiers.md.

taskset.py      in a worker: loads a taskset, refuses what has no counterpart here; its tasks
episode.py      in a worker: one rollout: tools, state, stops, rewards
inside.py       in a worker: the source of episodes
"""

import json
import math
from pathlib import Path
from typing import Any

from cojax.environment import EnvironmentFailure, Traits
from cojax.types import Evaluation, Task
from cojax.worlds import function
from ..tools import ToolEnvironment
from ..tools.in_worker import WorkerWorld, opener
from ..worker import Bounds, IsolatedEnvironment, isolate
from ..worker.venv import Recipe, interpreter

NAME = "verifiers"
RECIPE = Recipe(requirements=("verifiers==0.4.0",), proof="import verifiers.v1")
# Drops that the package's own reward lets through are listed by `environments.check`, and are no faults.
OFFICIAL_VERDICT = True

# Deadlines of one call that a verdict may take: it opens a second world and makes the solution's calls.
_VERDICT = 6
# Setups of a run, and tasks of each split.
_MOST = 10_000


def make(
    *,
    module: str = "",
    path: str = "",
    arguments: str = "{}",
    evaluation: str = "",
    tasks: int = 1_000,
    full: float = 1.0,
    state: str = "",
    solution: str = "",
    affordances: str = "",
    lookups: str = "",
    instructions: str = "",
    python: str = "",
    visible: str = "",
    deadline: float = 30.0,
    memory: float = 4.0,
    concurrency: int = 16,
) -> ToolEnvironment:
    """The environment `verifiers`: the taskset that `module` exports. docs/verifiers.md describes the settings.

    Raises ValueError for settings that make no environment and for a taskset that has no counterpart here, InstallError
    where `python -m environments.install verifiers` was not run, and EnvironmentFailure where the taskset fails.
    """
    examine(module=module, arguments=arguments, evaluation=evaluation, full=full)
    worker = isolate(
        f"{__name__}.inside",
        python=python or interpreter(NAME, RECIPE),
        bounds=Bounds(deadline=deadline, memory=int(memory * 2**30), processes=64),
        visible=tuple(str(Path(one).expanduser().absolute()) for one in (*path.split(":"), *visible.split(":")) if one),
        taskset=module,
        path=[str(Path(one).expanduser().absolute()) for one in path.split(":") if one],
        arguments=json.loads(arguments),
        evaluation=json.loads(evaluation) if evaluation else None,
        most=min(tasks, _MOST),
        full=full,
        state=state,
        solution=solution,
    )
    try:
        return _environment(worker, affordances, lookups, instructions, concurrency, _VERDICT * deadline)
    except (ValueError, EnvironmentFailure):
        worker.close()
        raise


def examine(*, module: str = "", arguments: str = "{}", evaluation: str = "", full: float = 1.0, **others: Any) -> None:
    """Raises ValueError for settings that cannot be read."""
    if not module:
        raise ValueError("module is empty; name the taskset's module: --config.environment.module=my_taskset")
    for name, given in (("arguments", arguments), ("evaluation", evaluation or "{}")):
        try:
            found = json.loads(given)
        except ValueError as error:
            raise ValueError(f"{name} is {given!r:.200}, which is no JSON: {error}") from error
        if not isinstance(found, dict):
            raise ValueError(f"{name} is {given!r:.200}; expected a JSON object of settings of the taskset")
    if not 0 < full < math.inf:
        raise ValueError(f"full is {full}; expected the reward of a solved task, more than 0")


def _environment(
    worker: IsolatedEnvironment, affordances: str, lookups: str, instructions: str, concurrency: int, deadline: float
) -> ToolEnvironment:
    splits = {split: worker.tasks(split, _MOST) for split in ("train", "dev", "eval")}
    official = {task.id for tasks in splits.values() for task in tasks}
    opened = opener(worker, NAME)
    opened(splits["train"][0].setup).close()

    def judge(task: Task, world: WorkerWorld, answer: str | None, finished: bool) -> Evaluation | None:
        """The official verdict on an official task; None, and so a replay of its solution, for any other."""
        return world.verdict() if task.id in official else None

    return ToolEnvironment(
        NAME,
        tools=worker.tools(),
        open=opened,
        setups=[task.setup for task in splits["train"]],
        splits=splits,
        judge=judge,
        affordances=function("affordances", affordances) if affordances else None,
        lookups=lookups.split(",") if lookups else None,
        instructions=instructions,
        ending="",
        traits=Traits(
            concurrency=concurrency, deadline=deadline, worded_alike=True, incomparable=worker.traits.incomparable
        ),
    )
