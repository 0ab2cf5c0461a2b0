"""Environments of the package `openenv` (BSD-3-Clause) as an environment; see docs/verifiers-and-openenv.md.

inside.py       in a worker: the source of episodes, each of an environment of the package
"""

from typing import Any, Literal

from cojax.worlds import find_function
from ..tools import ToolEnvironment
from ..tools.in_worker import check_full_reward, make_environment, read_json
from ..worker.venv import Recipe

NAME = "openenv"
RECIPE = Recipe(requirements=("openenv==0.10.0",), proof="import openenv.core.env_server.mcp_environment")
# Drops that the package's own reward lets through are listed by `environments.check`, and are no faults.
OFFICIAL_VERDICT = True

# Resets, each with its own seed, if none are named.
_SEED_COUNT = 32


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
    """The environment `openenv`: the class `module`, package.module:Class.

    docs/verifiers-and-openenv.md describes the settings.

    Raises ValueError for settings that make no environment, InstallError if `python -m environments.install openenv`
    was not run, and EnvironmentFailure if the class fails.
    """
    settings = dict(locals())
    examine(**settings)
    settings["affordances"] = find_function("affordances", affordances) if affordances else None
    return make_environment(
        __name__, NAME, RECIPE, settings, by_text=False, maker_path=module, action=action,
        evaluation=_read_resets(evaluation), query=query, reward=reward, full=full, state=state, solution=solution,
        resets=_read_resets(resets) or [{"seed": seed} for seed in range(_SEED_COUNT)], ignore=ignore.split(","),
    )  # fmt: skip


def examine(*, module: str, arguments: str, resets: str, evaluation: str, full: float, **others: Any) -> None:
    """Raises ValueError for settings that cannot be read."""
    if ":" not in module:
        raise ValueError(f"module is {module!r}; name the class: --config.environment.module=package.module:Class")
    if not isinstance(read_json("arguments", arguments), dict):
        raise ValueError(f"arguments is {arguments!r:.200}; expected a JSON object of arguments of the class")
    for setting_name, setting in (("resets", resets), ("evaluation", evaluation)):
        entries = read_json(setting_name, setting) if setting.lstrip().startswith(("[", "{")) else []
        if not (isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries)):
            raise ValueError(
                f"{setting_name} is {setting!r:.200}; expected a JSON list of objects, or a split of the environment"
            )
    if resets and not _read_resets(resets):
        raise ValueError(f"resets is {resets!r}; expected at least one")
    check_full_reward(full)


def _read_resets(resets_setting: str) -> Any:
    """The arguments of each reset, or the name of a split of the environment's own tasks."""
    return read_json("resets", resets_setting) if resets_setting.lstrip().startswith("[") else resets_setting
