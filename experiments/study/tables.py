"""Arms and tables of the study, and one run with its configuration: experiments/desk.py with the settings of an arm.

arms.toml gives each arm a title and its changes to the settings that all arms share. tables.toml names the arms, the
seeds and the differences of each table.
"""

import ast
import dataclasses
import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ml_collections import ConfigDict

from cojax import imports
from cojax.registry.annotations import RegistryError, convert_setting, quote
from cojax.settings.base import expand_flag, put
from cojax.settings.ranges import RANGES, is_open, is_section, leaves, word_unknown_setting
from .. import desk, desk_smollm2
from .launch import VARIABLES

ROOT = Path(__file__).parents[2]
# Sections of the configuration that decide the warm start, beside the seed.
_WARM_START = ("warm_start", "model", "environment")
Settings = Mapping[str, Any]  # dotted name of a leaf of experiments/desk.py → value


@dataclasses.dataclass(frozen=True)
class StudyRun:
    """One run of the main command. `settings` are all its changes to experiments/desk.py, the seed included.

    `variables` are those of its process that decide the bits; one of VARIABLES that is missing here is not set.
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
        pairs = [(name, value) for name, value in self.settings.items() if name.partition(".")[0] in _WARM_START]
        return (self.seed, *sorted((name, json.dumps(value)) for name, value in pairs))

    @property
    def config(self) -> dict[str, Any]:
        """The whole configuration. Raises RegistryError for an unknown setting and for a wrong value."""
        return make_plain_configuration(self.settings)


def make_plain_configuration(settings: Settings) -> dict[str, Any]:
    """`make_configuration` as a dict of JSON values."""
    return json.loads(json.dumps(make_configuration(settings).to_dict()))


def list_changes(config: ConfigDict, base: ConfigDict) -> dict[str, Any]:
    """Dotted names and values of the leaves in which `config` differs from `base`, without the run directory."""
    base_values = dict(leaves(base.to_dict()))
    return {name: value for name, value in leaves(config.to_dict()) if value != base_values[name] and name != "workdir"}


def make_configuration(settings: Settings) -> ConfigDict:
    """experiments/desk.py with these settings. Raises RegistryError for an unknown one and for a wrong value."""
    config = desk.get_config()
    for setting, value in settings.items():
        if setting in RANGES:
            value = convert_setting(setting, RANGES[setting], value)
        elif is_section(setting):
            raise RegistryError(
                f"{setting} is a section, given {quote(value)}; set what stands in it: --config.{setting}.NAME=VALUE"
            )
        elif not is_open(setting):
            raise RegistryError(word_unknown_setting(setting))
        try:
            put(config, setting, value)
        except (TypeError, ValueError) as error:
            raise RegistryError(f"{setting} is {quote(value)}, which is of another type than its default") from error
    return config


def read_settings(arguments: Sequence[str]) -> dict[str, Any]:
    """--config.KEY=VALUE → settings. Raises ValueError for another argument."""
    value_by_setting = {}
    for argument in arguments:
        flag_name, equals_sign, value_text = expand_flag(argument).partition("=")
        setting = flag_name.removeprefix("--config.")
        if not (flag_name.startswith("--config.") and equals_sign):
            raise ValueError(f"unexpected argument {argument!r}; expected settings of all arms, --config.KEY=VALUE")
        try:
            value_by_setting[setting] = ast.literal_eval(value_text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):  # the last two: nested too deep
            value_by_setting[setting] = value_text
    return value_by_setting


_ARMS_TOML = Path(__file__).with_name("arms.toml").read_text("utf-8")
_ARM_SECTIONS = tomllib.loads(_ARMS_TOML.replace('"experiments.', f'"{imports.resolve("experiments")}.'))
_SMOLLM2 = desk_smollm2.get_config()
_SETTING_GROUPS: Mapping[str, Mapping[str, Any]] = {
    **_ARM_SECTIONS["groups"],
    # The batch is named even if it equals the desk's, because other tables have their own.
    "smollm2": {**list_changes(_SMOLLM2, desk.get_config()), "batch_size": _SMOLLM2.batch_size},
}


def _collect_settings(section: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a section by dotted name, with a group's settings in place of its name."""
    value_by_setting: dict[str, Any] = {}
    for setting, value in leaves(section):
        if setting in ("ground", "groups"):
            for group_name in value:
                value_by_setting |= _collect_settings(_SETTING_GROUPS[group_name])
        elif setting != "title":
            value_by_setting[setting] = tuple(value) if isinstance(value, list) else value
    return value_by_setting


_ARMS = _ARM_SECTIONS["arms"] | {
    f"{ground}-{name}": {"ground": [ground], **method}
    for ground in ("wide", "deep")
    for name, method in _ARM_SECTIONS["methods"].items()
}
COMMON: Settings = _collect_settings(_ARM_SECTIONS["common"])
# A development run evaluates this split instead of the held-out one, whatever the flags say.
ON_DEVELOPMENT_TASKS: Settings = _collect_settings(_ARM_SECTIONS["development"])
START = "start"  # in a difference, the policy with which the runs of a seed begin
TITLES: Mapping[str, str] = {**{arm: section["title"] for arm, section in _ARMS.items()}, START: START}
ARMS: Mapping[str, Settings] = {arm: _collect_settings(section) for arm, section in _ARMS.items()}

_TABLES_TOML = tomllib.loads(Path(__file__).with_name("tables.toml").read_text("utf-8"))
SEEDS: Mapping[str, tuple[int, ...]] = {name: tuple(seeds) for name, seeds in _TABLES_TOML["seeds"].items()}
DEVELOPMENT_SEEDS = SEEDS["development"]
DEFAULT_SEEDS, QUICK_SEEDS = 6, 2


@dataclasses.dataclass(frozen=True)
class Table:
    """A question, its arms, and the paired differences (one, other), meaning one − other, that answer it.

    `other` is an arm or START. All its arms share `settings`, besides COMMON; the default seeds are the first `count`
    of `seeds`. The page compares budgets with those of the arm `reference`, if it is one of its arms.
    """

    title: str
    arms: tuple[str, ...]
    differences: tuple[tuple[str, str], ...]
    settings: Settings = dataclasses.field(default_factory=dict)
    seeds: tuple[int, ...] = SEEDS["evaluation"]
    count: int = DEFAULT_SEEDS
    reference: str = "feedback"


TABLES: Mapping[str, Table] = {
    name: Table(
        **{
            **entry,
            "arms": tuple(entry["arms"]),
            "differences": tuple((one, other) for one, other in entry["differences"]),
            "seeds": SEEDS[entry.get("seeds", "evaluation")],
        }
    )
    for name, entry in _TABLES_TOML["tables"].items()
}


def jobs(
    arms: Sequence[str], seeds: Sequence[int], is_development: bool = False, further: Settings = MappingProxyType({})
) -> list[StudyRun]:
    """The runs by seed, then by arm, so that finished runs are paired whenever the study is stopped.

    `further` settings override the common ones, but not those of an arm. Raises ValueError for an unknown arm,
    and for a further setting that every arm sets itself.
    """
    if unknown_arms := [arm for arm in arms if arm not in ARMS]:
        raise ValueError(f"arm {unknown_arms[0]!r} not found; available: {', '.join(ARMS)}")
    if conflicts := [name for name in further if name in ("seed", "workdir") or all(name in ARMS[arm] for arm in arms)]:
        raise ValueError(f"{conflicts[0]} distinguishes the runs; choose runs with --arms and --seeds")
    split = ON_DEVELOPMENT_TASKS if is_development else {}
    return [
        StudyRun(arm, seed, {**COMMON, **further, **ARMS[arm], **split, "seed": seed}) for seed in seeds for arm in arms
    ]
