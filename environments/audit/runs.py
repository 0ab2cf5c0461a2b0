"""The world and the synthesized tasks of a run's folder. A folder is data: no code runs because it names it."""

from collections.abc import Mapping
from typing import Any

import cojax
from cojax import registry, worlds
from cojax.pool import read_task_record
from cojax.types import Task

# Settings that start a program, import code, or say where data and keys go: they must be on the command line.
_STATED_SETTINGS = (
    *("command", "variables", "python", "module", "path", "solution", "state", "affordances", "lookups"),
    *("instructions", "cluster", "url", "headers", "user_url", "folders", "setups", "visible"),
)


def read_run(
    workdir: str, stated_name: str, text_by_setting: Mapping[str, str]
) -> tuple[str, dict[str, Any], list[Task]]:
    """The name of a run's world, its settings and the tasks that the run has synthesized.

    `stated_name` and `text_by_setting` are those of the command line. Raises ValueError where the
    command line must name the world or a setting, or where there is no such task.
    """
    run = cojax.open_run(workdir)
    section = dict(run.config()["environment"])
    name = section.pop("name")
    if not stated_name and name not in worlds.available():
        raise ValueError(f"{workdir} names the world {name!r}, which is code; if you mean it, name it before --run")
    name = stated_name or name
    declared = registry.settings(worlds.maker(name))
    settings = {
        key: value for key, value in section.items() if key in declared and value not in (declared[key].default, None)
    }
    for key in _STATED_SETTINGS:
        if settings.get(key) and key not in text_by_setting:
            raise ValueError(f"{workdir} sets {key}={settings[key]!r:.100}; if you mean it, add --set {key}=VALUE")
    settings = registry.check_settings("environment", name, worlds.maker(name), settings)
    settings |= worlds.parse_settings(name, text_by_setting)
    tasks = [read_task_record(record) for record in run.tasks() if record.get("lineage")]
    if not tasks:
        raise ValueError(f"{workdir} has no synthesized task; expected a run with evolutions, see its tasks.jsonl")
    return name, settings, tasks
