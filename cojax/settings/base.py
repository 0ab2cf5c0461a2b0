"""The configuration from which every experiment starts, as a ConfigDict.

An experiment names an environment and a policy, and overrides other settings. cojax/settings/tree.py lists each with
its range and meaning, and marks what is not the paper's. Functions that read a configuration are here too: sections as
keywords, entries of tables, short flags.
"""

import functools
import re
from collections.abc import Mapping
from typing import Any, get_args

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from cojax.settings.tree import LEAVES, OPEN_SECTIONS

# Setting → entry → the paper's settings of that entry; other entries start from their own defaults.
PAPER: Mapping[str, Mapping[str, Mapping[str, Any]]] = {"learner.loss": {"grpo": {"kl_coefficient": 1e-3}}}
# What a judge's opinion does: it is not asked for, it is noted, or it can refuse the draft.
JUDGE_MODES = {"off": None, "note": False, "veto": True}
# Flags with a short form → the setting that each one sets.
SHORT = {
    "engine": "engine.name", "explorer": "explorer.name", "environment": "environment.name", "data": "environment.data",
    "distributed": "distributed.enabled",
}  # fmt: skip


def get_config() -> ConfigDict:
    """The defaults, without environment and policy."""
    config = ConfigDict()
    for name in OPEN_SECTIONS:
        put(config, name, ConfigDict())
    for name, leaf in LEAVES.items():
        # A setting whose default is None may also be a number, Annotated[int, …].
        put(config, name, placeholder(get_args(get_args(leaf.range)[0])[0]) if leaf.default is None else leaf.default)
    return config


def at(config: ConfigDict, setting: str) -> Any:
    """The setting or section of that dotted name."""
    return functools.reduce(lambda section, section_key: section[section_key], setting.split("."), config)


def put(config: ConfigDict, setting: str, value: Any) -> None:
    """Sets a leaf by its dotted name, and adds missing sections."""
    *section_keys, leaf_key = setting.split(".")
    for section_key in section_keys:
        if section_key not in config:
            config[section_key] = ConfigDict()
        config = config[section_key]
    config[leaf_key] = value


def expand_flag(argument: str) -> str:
    """Expands a short flag for absl: --config.engine=NAME, say, stands for --config.engine.name=NAME."""
    return re.sub(rf"^(--?config)\.({'|'.join(SHORT)})(?==|$)", lambda match: f"{match[1]}.{SHORT[match[2]]}", argument)


def choose(table: Mapping[Any, Any], entry_name: str, kind: str) -> Any:
    """Looks up an entry of a registry. Raises ValueError, which lists the others."""
    if entry_name not in table:
        raise ValueError(f"{kind} {entry_name!r} not found; available: {', '.join(table)}")
    return table[entry_name]


def settings(config: ConfigDict, *excluded: str) -> dict[str, Any]:
    """Returns a section of the configuration as keywords, except those in `excluded`."""
    return {setting: value for setting, value in config.to_dict().items() if setting not in excluded}


def count_attempts(config: ConfigDict) -> int:
    """How often each draft of a model is attempted on its query alone."""
    return 2 if config.validation.attempts is None else config.validation.attempts
