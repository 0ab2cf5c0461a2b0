"""The configuration from which every experiment starts: the paper's settings (CoEvolve, Table 9), as a ConfigDict.

An experiment names an environment and a policy, and overrides other settings. cojax/settings/tree.py has each with its
range and meaning.
"""

import functools
from collections.abc import Mapping
from typing import Any, get_args

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from cojax.settings.tree import LEAVES, OPEN

# Setting → entry → the paper's settings of that entry; other entries start from their own defaults.
PAPER: Mapping[str, Mapping[str, Mapping[str, Any]]] = {"learner.loss": {"grpo": {"kl_coefficient": 1e-3}}}


def get_config() -> ConfigDict:
    """The paper's configuration, without environment and policy."""
    config = ConfigDict()
    for name in OPEN:
        put(config, name, ConfigDict())
    for name, leaf in LEAVES.items():
        # One that is None may also be a number, Annotated[int, …].
        put(config, name, placeholder(get_args(get_args(leaf.range)[0])[0]) if leaf.default is None else leaf.default)
    return config


def at(config: ConfigDict, name: str) -> Any:
    """The setting or section of that dotted name."""
    return functools.reduce(lambda section, part: section[part], name.split("."), config)


def put(config: ConfigDict, name: str, value: Any) -> None:
    """Sets a leaf by its dotted name, and adds missing sections."""
    *above, last = name.split(".")
    for part in above:
        if part not in config:
            config[part] = ConfigDict()
        config = config[part]
    config[last] = value
