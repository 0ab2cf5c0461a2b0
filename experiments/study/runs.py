"""One run of the study, and its configuration: experiments/desk.py with the settings of an arm."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from cojax.registry.annotations import RegistryError, convert_setting, shown
from cojax.settings.ranges import RANGES, is_open, is_section, unknown
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


def dotted_leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The dotted name and the value of every leaf, in order. An empty section has none."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from dotted_leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def changes(config: ConfigDict, base: ConfigDict) -> dict[str, Any]:
    """Dotted names and values of the leaves of `config` that `base` has otherwise, but for the run directory."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, ConfigDict):
            found |= {f"{name}.{leaf}": one for leaf, one in changes(value, base[name]).items()}
        elif value != base[name] and name != "workdir":
            found[name] = value
    return found


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
        *sections, leaf = name.split(".")
        # Sections named …_settings hold keywords of entries, by name where there are several; checks.py checks them.
        of_entry = any(part.endswith("_settings") for part in sections)
        section = config
        for part in sections:
            if of_entry and part not in section:
                section[part] = ConfigDict()
            section = section.get(part, {})
        try:
            section[leaf] = value
        except (TypeError, ValueError) as error:
            raise RegistryError(f"{name} is {shown(value)}, which is of another type than its default") from error
    return config
