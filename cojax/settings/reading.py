"""Reading a configuration: names of tables, sections as keywords, short names of flags."""

import re
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

# What a judge's opinion of a draft does: it is not asked for, noted, or can refuse the draft.
JUDGES = {"off": None, "note": False, "veto": True}
# Attempts at a draft on its query alone, where validation.attempts is None.
_ATTEMPTS = 2

# Flags with a short form → the setting that each one sets.
SHORT = {
    "engine": "engine.name", "explorer": "explorer.name", "environment": "environment.name", "data": "environment.data",
    "distributed": "distributed.enabled",
}  # fmt: skip


def spelled_out(argument: str) -> str:
    """A flag as absl takes it: --config.engine=NAME, say, is short for --config.engine.name=NAME."""
    return re.sub(rf"^(--?config)\.({'|'.join(SHORT)})(?==|$)", lambda flag: f"{flag[1]}.{SHORT[flag[2]]}", argument)


def choose(table: Mapping[Any, Any], name: str, kind: str) -> Any:
    """The entry of a registry. Raises ValueError, which lists the others."""
    if name not in table:
        raise ValueError(f"{kind} {name!r} not found; available: {', '.join(table)}")
    return table[name]


def settings(config: ConfigDict, *without: str) -> dict[str, Any]:
    """A section of the configuration as keywords."""
    return {name: value for name, value in config.to_dict().items() if name not in without}


def attempts(config: ConfigDict) -> int:
    """How often each draft of a model is attempted on its query alone."""
    return _ATTEMPTS if config.validation.attempts is None else config.validation.attempts
