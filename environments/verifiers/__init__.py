"""Tasksets of the package `verifiers` (MIT) as an environment; see docs/verifiers-and-openenv.md.

taskset.py      in a worker: loads a taskset, refuses what has no counterpart here; its tasks
inside.py       in a worker: the source of episodes; one rollout: tools, state, stops, rewards
"""

import json
from typing import Any

from cojax.worlds import find_function
from ..tools import ToolEnvironment
from ..tools.in_worker import MAX_OFFICIAL_TASKS, check_full_reward, make_environment, read_json
from ..worker.venv import Recipe

NAME = "verifiers"
RECIPE = Recipe(requirements=("verifiers==0.4.0",), proof="import verifiers.v1")
# Drops that the package's own reward lets through are listed by `environments.check`, and are no faults.
OFFICIAL_VERDICT = True


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
    """The environment `verifiers`: the taskset that `module` exports.

    docs/verifiers-and-openenv.md describes the settings.

    Raises ValueError for settings that make no environment and for a taskset that has no counterpart here, InstallError
    if `python -m environments.install verifiers` was not run, and EnvironmentFailure if the taskset fails.
    """
    settings = dict(locals())
    examine(**settings)
    settings["affordances"] = find_function("affordances", affordances) if affordances else None
    return make_environment(
        __name__, NAME, RECIPE, settings, by_text=True, taskset=module, full=full, state=state, solution=solution,
        max_tasks=min(tasks, MAX_OFFICIAL_TASKS), evaluation=json.loads(evaluation) if evaluation else None,
    )  # fmt: skip


def examine(*, module: str, arguments: str, evaluation: str, full: float, **others: Any) -> None:
    """Raises ValueError for settings that cannot be read."""
    if not module:
        raise ValueError("module is empty; name the taskset's module: --config.environment.module=my_taskset")
    for setting_name, setting in (("arguments", arguments), ("evaluation", evaluation or "{}")):
        if not isinstance(read_json(setting_name, setting), dict):
            raise ValueError(f"{setting_name} is {setting!r:.200}; expected a JSON object of settings of the taskset")
    check_full_reward(full)
