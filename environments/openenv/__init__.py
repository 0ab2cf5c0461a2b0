"""Environments of the package `openenv` (BSD-3-Clause) as an environment; see docs/openenv.md.

session.py      in a worker: one environment of the package: its tools, steps, state and rewards
inside.py       in a worker: the source of episodes
"""

import json
import math
from pathlib import Path
from typing import Any, Literal

from cojax.environment import EnvironmentFailure, Traits
from cojax.types import Evaluation, Task
from cojax.worlds import function
from ..tools import ToolEnvironment
from ..tools.ending import ended, free_name
from ..tools.in_worker import WorkerWorld, opener
from ..worker import Bounds, IsolatedEnvironment, isolate
from ..worker.venv import Recipe, interpreter

NAME = "openenv"
RECIPE = Recipe(requirements=("openenv==0.10.0",), proof="import openenv.core.env_server.mcp_environment")
# Drops that the package's own reward lets through are listed by `environments.check`, and are no faults.
OFFICIAL_VERDICT = True

# Deadlines of one call that a verdict may take: it opens a second world and makes the solution's calls.
_VERDICT = 6
# Tasks of a split; resets with a seed each, where none are named.
_MOST, _SEEDS = 10_000, 32


def make(
    *,
    module: str = "",
    path: str = "",
    arguments: str = "{}",
    action: str = "",
    resets: str = "",
    evaluation: str = "",
    query: str = "Do what the environment asks for.",
    reward: Literal["sum", "last"] = "sum",
    full: float = 1.0,
    state: str = "",
    ignore: str = "episode_id,step_count",
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
    """The environment `openenv`: the class `module`, package.module:Class. docs/openenv.md describes the settings.

    Raises ValueError for settings that make no environment, InstallError where `python -m environments.install openenv`
    was not run, and EnvironmentFailure where the class fails.
    """
    examine(module=module, arguments=arguments, resets=resets, evaluation=evaluation, full=full)
    shown = [str(Path(one).expanduser().absolute()) for one in path.split(":") if one]
    worker = isolate(
        f"{__name__}.inside",
        python=python or interpreter(NAME, RECIPE),
        bounds=Bounds(deadline=deadline, memory=int(memory * 2**30), processes=64),
        visible=(*shown, *(str(Path(one).expanduser().absolute()) for one in visible.split(":") if one)),
        made_by=module,
        path=shown,
        arguments=json.loads(arguments),
        action=action,
        resets=_resets(resets) or [{"seed": seed} for seed in range(_SEEDS)],
        evaluation=_resets(evaluation),
        query=query,
        reward=reward,
        full=full,
        state=state,
        ignore=ignore.split(","),
        solution=solution,
    )
    try:
        return _environment(worker, affordances, lookups, instructions, concurrency, _VERDICT * deadline)
    except (ValueError, EnvironmentFailure):
        worker.close()
        raise


def examine(
    *,
    module: str = "",
    arguments: str = "{}",
    resets: str = "",
    evaluation: str = "",
    full: float = 1.0,
    **others: Any,
) -> None:
    """Raises ValueError for settings that cannot be read."""
    if ":" not in module:
        raise ValueError(f"module is {module!r}; name the class: --config.environment.module=package.module:Class")
    if not isinstance(_json("arguments", arguments), dict):
        raise ValueError(f"arguments is {arguments!r:.200}; expected a JSON object of arguments of the class")
    for name, given in (("resets", resets), ("evaluation", evaluation)):
        found = _json(name, given) if given.lstrip().startswith(("[", "{")) else []
        if not (isinstance(found, list) and all(isinstance(one, dict) for one in found)):
            raise ValueError(
                f"{name} is {given!r:.200}; expected a JSON list of objects, or a split of the environment"
            )
    if resets and not _resets(resets):
        raise ValueError(f"resets is {resets!r}; expected at least one")
    if not 0 < full < math.inf:
        raise ValueError(f"full is {full}; expected the reward of a solved task, more than 0")


def _json(name: str, given: str) -> Any:
    try:
        return json.loads(given)
    except ValueError as error:
        raise ValueError(f"{name} is {given!r:.200}, which is no JSON: {error}") from error


def _resets(given: str) -> Any:
    """The arguments of each reset, or the name of a split of the environment's own tasks."""
    return _json("resets", given) if given.lstrip().startswith("[") else given


def _environment(
    worker: IsolatedEnvironment, affordances: str, lookups: str, instructions: str, concurrency: int, deadline: float
) -> ToolEnvironment:
    given = {split: worker.tasks(split, _MOST) for split in ("train", "dev", "eval")}
    official = {task.id for tasks in given.values() for task in tasks}
    opened = opener(worker, NAME)
    world = opened(given["train"][0].setup)
    tools = world.on_offer()
    world.close()
    ending = free_name([tool["function"]["name"] for tool in tools])
    splits = {split: [ended(task, ending) for task in tasks] for split, tasks in given.items()}

    def judge(task: Task, world: WorkerWorld, answer: str | None, finished: bool) -> Evaluation | None:
        """The environment's own reward of a task of its own; None, and so a replay of its solution, for any other."""
        return world.verdict() if task.id in official else None

    return ToolEnvironment(
        NAME,
        tools=tools,
        open=opened,
        setups=[task.setup for task in splits["train"]],
        splits=splits,
        judge=judge,
        affordances=function("affordances", affordances) if affordances else None,
        lookups=lookups.split(",") if lookups else None,
        instructions=instructions,
        ending=ending,
        traits=Traits(
            concurrency=concurrency, deadline=deadline, worded_alike=True, incomparable=world.opening.incomparable
        ),
    )
