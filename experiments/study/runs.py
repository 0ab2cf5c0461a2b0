"""One run of the study, and its configuration: experiments/desk.py with settings of an arm."""

import ast
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from cojax.registry.annotations import RegistryError, convert_setting, shown
from cojax.settings.base import put, spelled_out
from cojax.settings.ranges import RANGES, is_open, is_section, leaves, unknown
from .. import desk
from .launch import VARIABLES

ROOT = Path(__file__).parents[2]
# Sections of the configuration that decide the warm start, beside the seed.
_WARM_START = ("warm_start", "model", "environment")
Settings = Mapping[str, Any]  # dotted name of a leaf of experiments/desk.py → value


@dataclasses.dataclass(frozen=True)
class StudyRun:
    """One run of the main command. `settings` are all its changes to experiments/desk.py, the seed included.

    `variables` are those of its process that decide the bits; one of VARIABLES that is missing there is not set.
    """

    arm: str
    seed: int
    settings: Settings
    variables: Mapping[str, str] = dataclasses.field(default_factory=lambda: VARIABLES)

    @property
    def name(self) -> str:
        return f"{self.arm}-{self.seed}"

    @property
    def warm_start(self) -> tuple[Any, ...]:
        """Equal for runs that share a warm start."""
        deciding = [(name, value) for name, value in self.settings.items() if name.partition(".")[0] in _WARM_START]
        return (self.seed, *sorted((name, json.dumps(value)) for name, value in deciding))

    @property
    def config(self) -> dict[str, Any]:
        """The whole configuration. Raises RegistryError for an unknown setting and for a wrong value."""
        return plain_configuration(self.settings)


def plain_configuration(settings: Settings) -> dict[str, Any]:
    """`configuration_of` as a dict of JSON values."""
    return json.loads(json.dumps(configuration_of(settings).to_dict()))


def changes(config: ConfigDict, base: ConfigDict) -> dict[str, Any]:
    """Dotted names and values of the leaves of `config` that `base` has otherwise, but for the run directory."""
    before = dict(leaves(base.to_dict()))
    return {name: value for name, value in leaves(config.to_dict()) if value != before[name] and name != "workdir"}


def configuration_of(settings: Settings) -> ConfigDict:
    """experiments/desk.py with these settings. Raises RegistryError for an unknown one and for a wrong value."""
    config = desk.get_config()
    for name, value in settings.items():
        if name in RANGES:
            value = convert_setting(name, RANGES[name], value)
        elif is_section(name):
            raise RegistryError(
                f"{name} is a section, given {shown(value)}; set what stands in it: --config.{name}.NAME=VALUE"
            )
        elif not is_open(name):
            raise RegistryError(unknown(name))
        try:
            put(config, name, value)
        except (TypeError, ValueError) as error:
            raise RegistryError(f"{name} is {shown(value)}, which is of another type than its default") from error
    return config


def settings_of(arguments: Sequence[str]) -> dict[str, Any]:
    """--config.KEY=VALUE → settings. Raises ValueError for another argument."""
    found = {}
    for argument in arguments:
        name, is_one, value = spelled_out(argument).partition("=")
        setting = name.removeprefix("--config.")
        if not (name.startswith("--config.") and is_one):
            raise ValueError(f"unexpected argument {argument!r}; settings of all arms are given as --config.KEY=VALUE")
        try:
            found[setting] = ast.literal_eval(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError):  # the last two: nested too deep
            found[setting] = value
    return found
