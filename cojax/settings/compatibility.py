"""Settings of other releases: a renamed one is read under its old name, one that an older run lacks is its default."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from cojax.registry.annotations import convert_setting
from cojax.settings.base import RENAMED, at, get_config, put
from cojax.settings.tree import LEAVES
from cojax.storage.files import CheckpointError, read_json

_LOG = logging.getLogger("cojax")
_RESTORE = "Restore it from a copy"


def in_todays_keys(stored: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The settings in a config.json, under today's names; those that it lacks from `defaults`, as JSON holds them."""
    settings = json.loads(json.dumps(stored))
    for old, new in RENAMED.items():
        section, _, last = old.rpartition(".")
        above = _section(settings, section)
        if last in above:
            value, place = above.pop(last), _section(settings, new.rpartition(".")[0])
            place.setdefault(new.rpartition(".")[2], value)
    if isinstance(path := (model := _section(settings, "model")).get("path"), str) and path:
        # A relative path of other releases was read from the folder in which the command was started.
        model["path"] = os.path.abspath(path)
    if path and "epochs" not in (warm := _section(settings, "warm_start")):
        # Releases without warm_start.epochs took a model folder as it is, whatever the other settings were.
        warm["steps"] = 0
    return _filled(settings, json.loads(json.dumps(defaults)))


def todays_defaults() -> dict[str, Any]:
    """The default of every setting, in sections."""
    return without_old_names(get_config()).to_dict()


def settings_of(workdir: Path) -> dict[str, Any]:
    """The settings of a run, with today's keys. Raises CheckpointError if the folder holds no run."""
    path = workdir / "config.json"
    try:
        if not isinstance(stored := read_json(path).get("config"), dict):
            raise ValueError("it has no section `config`")
        settings = in_todays_keys(stored, todays_defaults())
        learner = settings["learner"]
        if not all(isinstance(one, dict) for one in (settings["model"], learner, learner and learner["lora"])):
            raise ValueError("model, learner and learner.lora must be sections")
        for name in (name for name in LEAVES if name.startswith("learner.lora.")):
            convert_setting(name, LEAVES[name].range, as_tuples(learner["lora"][name.rpartition(".")[2]]))
        return settings
    except OSError as error:
        raise CheckpointError(
            f"{workdir} is no run directory ({path.name}: {error.strerror or error}); expected the workdir of "
            "python -m experiments.run, such as runs/desk"
        ) from error
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{path} holds no settings of a run: it is not JSON ({error}). {_RESTORE}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} holds no settings of a run: {error}. {_RESTORE}") from error


def as_tuples(value: Any) -> Any:
    """The value with tuples in place of lists, as JSON has no tuples."""
    if isinstance(value, Mapping):
        return {name: as_tuples(inner) for name, inner in value.items()}
    return tuple(map(as_tuples, value)) if isinstance(value, list) else value


def flag_in_todays_name(argument: str) -> str:
    """A flag with its setting's name of today; warns of an old name."""
    for old, new in RENAMED.items():
        if found := re.match(rf"--?(?:no)?config\.({re.escape(old)})(?==|$)", argument):
            _warn(old, new)
            return f"{argument[: found.start(1)]}{new}{argument[found.end(1) :]}"
    return argument


def without_old_names(config: ConfigDict, flags: Collection[str] = (), *, warn: bool = True) -> ConfigDict:
    """The configuration with old names replaced by today's; a value under an old name yields to one of `flags`."""
    if not RENAMED:
        return config
    config = config.copy_and_resolve_references()
    with config.unlocked():
        for old, new in RENAMED.items():
            section, _, last = old.rpartition(".")
            above = at(config, section) if section else config
            value = above[last]
            del above[last]
            if value is not None:
                if warn:
                    _warn(old, new)
                if new not in flags:
                    put(config, new, value)
    return config


def _warn(old: str, new: str) -> None:
    _LOG.warning("%s is now called %s; the old name still works", old, new)


def _section(settings: dict[str, Any], name: str) -> dict[str, Any]:
    """The section of that dotted name, added if it is missing."""
    for part in filter(None, name.split(".")):
        settings = settings.setdefault(part, {})
    return settings


def _filled(settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, and the defaults of those that are missing."""
    both = {name: (settings[name], default) for name, default in defaults.items() if name in settings}
    inner = {
        name: _filled(one, default)
        for name, (one, default) in both.items()
        if isinstance(one, Mapping) and isinstance(default, Mapping)
    }
    return {**defaults, **settings, **inner}
