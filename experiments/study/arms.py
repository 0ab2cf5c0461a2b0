"""The arms, from arms.toml: what each changes of the settings that all share, and what it is called in tables."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cojax import imports
from cojax.settings.ranges import leaves
from .. import desk, desk_smollm2
from .runs import Settings, changes

_TEXT = Path(__file__).with_name("arms.toml").read_text("utf-8")
_FOUND = tomllib.loads(_TEXT.replace('"experiments.', f'"{imports.within("experiments")}.'))
_SMOLLM2 = desk_smollm2.get_config()
_GROUPS: Mapping[str, Mapping[str, Any]] = {
    **_FOUND["groups"],
    # The batch is named even where it is the desk's: the other tables have their own.
    "smollm2": {**changes(_SMOLLM2, desk.get_config()), "batch_size": _SMOLLM2.batch_size},
}


def _settings(section: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a section by their dotted names, those of a group in place of its name."""
    found: dict[str, Any] = {}
    for name, value in leaves(section):
        if name in ("ground", "groups"):
            for group in value:
                found |= _settings(_GROUPS[group])
        elif name != "title":
            found[name] = tuple(value) if isinstance(value, list) else value
    return found


_SECTIONS = _FOUND["arms"] | {
    f"{ground}-{name}": {"ground": [ground], **method}
    for ground in ("wide", "deep")
    for name, method in _FOUND["methods"].items()
}
COMMON: Settings = _settings(_FOUND["common"])
# A development run evaluates this split instead of the held-out one, whatever the flags say.
ON_DEVELOPMENT_TASKS: Settings = _settings(_FOUND["development"])
TITLES: Mapping[str, str] = {arm: section["title"] for arm, section in _SECTIONS.items()}
ARMS: Mapping[str, Settings] = {arm: _settings(section) for arm, section in _SECTIONS.items()}
