"""Reads the settings of a run directory, also of one that another release made.

A missing setting gets its default. A setting that was removed since is left out if it had the value that always applies
now.
"""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cojax.registry.annotations import convert_setting, quote
from cojax.settings.base import get_config
from cojax.settings.ranges import GONE_SETTINGS
from cojax.settings.tree import LEAVES
from cojax.storage.differences import value_at
from cojax.storage.files import CheckpointError, read_json

_RESTORE = "Restore it from a copy"


def rename_keys(raw_settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings in a config.json, and from `defaults` those that it lacks, as JSON holds them.

    Raises CheckpointError for a setting that this release no longer has, unless its value is the one that always
    applies now.
    """
    settings = json.loads(json.dumps(raw_settings))
    if isinstance(model_path := (model_section := settings.setdefault("model", {})).get("path"), str) and model_path:
        # Other releases read a relative path from the folder in which the command was started.
        model_section["path"] = os.path.abspath(model_path)
    if model_path and "epochs" not in (warm_start_section := settings.setdefault("warm_start", {})):
        # Releases without warm_start.epochs took a model folder as it is, whatever the other settings were.
        warm_start_section["steps"] = 0
    for setting, (value, advice) in GONE_SETTINGS.items():
        section_name, _, last_key = setting.rpartition(".")
        parent = value_at(settings, section_name)
        if isinstance(parent, dict) and last_key in parent and (old_value := parent.pop(last_key)) != value:
            raise CheckpointError(
                f"the run was made with {setting}={quote(old_value)}, no longer a setting: it is always {value!r} now. "
                f"Go on with the release that made the run, or without the setting: take it, and the last entry, "
                f"`checksum`, out of config.json. In a new run, {advice}"
            )
    return _fill_defaults(settings, json.loads(json.dumps(defaults)))


def check_begun(workdir: Path) -> None:
    """Raises CheckpointError if the folder holds checkpoints of a run with a setting that was removed since.

    Anything else that is wrong with the folder is reported when it is claimed.
    """
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        if any((workdir / "checkpoints").iterdir()):
            rename_keys(read_json(workdir / "config.json")["config"], {})


def read_run_settings(workdir: Path) -> dict[str, Any]:
    """Reads the settings of a run, with today's keys. Raises CheckpointError if the folder holds no run."""
    path = workdir / "config.json"
    try:
        if not isinstance(raw_settings := read_json(path).get("config"), dict):
            raise ValueError("it has no section `config`")
        settings = rename_keys(raw_settings, get_config().to_dict())
        learner = settings["learner"]
        if not all(isinstance(section, dict) for section in (settings["model"], learner, learner and learner["lora"])):
            raise ValueError("model, learner and learner.lora must be sections")
        for setting, value in learner["lora"].items():
            convert_setting(f"learner.lora.{setting}", LEAVES[f"learner.lora.{setting}"].range, value)
        return settings
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
    except OSError as error:
        raise CheckpointError(
            f"{workdir} is not a run directory ({path.name}: {error.strerror or error}); expected the workdir of "
            "python -m experiments.run, such as runs/desk"
        ) from error
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{path} holds no settings of a run: it is not JSON ({error}). {_RESTORE}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} holds no settings of a run: {error}. {_RESTORE}") from error


def to_tuples(value: Any) -> Any:
    """Replaces lists by tuples, at every depth, as JSON has no tuples."""
    if isinstance(value, Mapping):
        return {key: to_tuples(item) for key, item in value.items()}
    return tuple(map(to_tuples, value)) if isinstance(value, list) else value


def _fill_defaults(settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings, and the defaults of missing ones."""
    sections = {
        key: _fill_defaults(section, section_defaults)
        for key, section in settings.items()
        if isinstance(section, Mapping) and isinstance(section_defaults := defaults.get(key), Mapping)
    }
    return {**defaults, **settings, **sections}
