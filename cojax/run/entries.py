"""Looks up the registry entries that a configuration names: by name, or user code as package.module:function.

An entry's signature declares its settings; the configuration holds only overrides.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from cojax import registry, worlds
from cojax.environment import Environment
from cojax.learner.advantages import ADVANTAGES
from cojax.learner.losses import LOSSES
from cojax.learner.objective import DEFAULT_ADVANTAGE, DEFAULT_WEIGHTING, Objective, bind_loss, objective
from cojax.learner.weightings import WEIGHTINGS
from cojax.pool import CURRICULA
from cojax.registry.annotations import RegistryError, from_text, quote
from cojax.registry.source import describe_source
from cojax.run import methods
from cojax.run.engines import ENGINES
from cojax.run.explorers import EXPLORERS
from cojax.settings import base
from cojax.settings.base import PAPER, at, put, settings
from cojax.settings.ranges import is_free_form, leaves
from cojax.settings.tree import LEAVES
from cojax.signals import SIGNALS, SignalKind, check
from cojax.synthesis import ADMISSIONS, EVOLUTIONS, MEMORIES, SELECTIONS, reads


@dataclasses.dataclass(frozen=True)
class Choice:
    """A setting that names an entry.

    `kind` is the entry's kind, `section` holds the entry's settings, and `argument_names` are the arguments that the
    entry is called with. `argument_names` is None if the names of the entry's parameters decide them.
    """

    kind: str
    find: Callable[[str], Callable[..., Any]]
    list_names: Callable[[], Sequence[str]]
    section: str = ""
    argument_names: tuple[str, ...] | None = None


def _choice_of(kind: str, table: Mapping[str, Any], section: str = "", takes: tuple[str, ...] | None = None) -> Choice:
    return Choice(kind, functools.partial(registry.find, kind, entries=table), lambda: list(table), section, takes)


# Setting → the entries that it may name.
CHOICES: dict[str, Choice] = {
    "learner.loss": _choice_of("loss", LOSSES, "learner.loss_settings"),
    "learner.advantage": _choice_of("advantage", ADVANTAGES, "learner.advantage_settings", ("trajectories",)),
    "learner.weighting": _choice_of("weighting", WEIGHTINGS, "learner.weighting_settings", ("lengths",)),
    "curriculum": _choice_of("curriculum", CURRICULA, "curriculum_settings", ("scores",)),
    "environment.name": Choice("environment", worlds.maker, worlds.available, "environment", ()),
    "evolve": _choice_of("evolve", EVOLUTIONS, "evolve_settings", ("inputs",)),
    "synthesis.admit": _choice_of("admission", ADMISSIONS, "admission_settings", ()),
    "synthesis.select": _choice_of("selection", SELECTIONS, takes=("signals", "budget", "seed", "confidence")),
    "engine.name": _choice_of("engine", ENGINES, takes=("config", "model")),
    "explorer.name": _choice_of("explorer", EXPLORERS, takes=("config", "parts", "journal")),
    "initial_explorer": _choice_of("explorer", EXPLORERS, takes=("config", "parts", "journal")),
}
# May be empty: explorer.name replaces the first, and a command may need no environment.
_OPTIONAL_SETTINGS = ("initial_explorer", "environment.name")
SIGNAL = _choice_of("signal", SIGNALS)
_SIGNAL_SECTION = "signal_settings"
# Names that no signal may have: the origins of tasks that no signal led to, and the statistics of a run.
_RESERVED_NAMES = ("unguided", "uniform", "visits", "played", "prefixes", *MEMORIES)


@dataclasses.dataclass(frozen=True)
class ChosenEntry:
    """An entry that a configuration names, with its checked overrides of the entry's settings."""

    kind: str
    name: str
    function: Callable[..., Any]
    overrides: Mapping[str, Any]

    def bind(self) -> Callable[..., Any]:
        """Returns the entry with its overrides bound."""
        return functools.partial(self.function, **self.overrides) if self.overrides else self.function

    def describe(self) -> dict[str, Any]:
        """Describes the entry for config.json: its name, its source, and all its settings, defaults included."""
        declarations = registry.settings(self.function) if self.overrides or self.kind in _DECLARING_KINDS else {}
        values = {setting: declaration.default for setting, declaration in declarations.items()} | dict(self.overrides)
        json_values = {setting: _to_json(value) for setting, value in values.items() if isinstance(value, _JSON_TYPES)}
        return {"name": self.name, **describe_source(self.name, self.function), "settings": json_values}


# Types of the settings that config.json records.
_JSON_TYPES = (bool, int, float, str, tuple, list)


def _to_json(value: Any) -> Any:
    """Converts a setting's value to JSON: an infinite default becomes text."""
    if isinstance(value, (tuple, list)):
        return [_to_json(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


# Kinds whose entries declare settings.
_DECLARING_KINDS = {"loss", "advantage", "weighting", "curriculum", "environment", "signal", "evolve", "admission"}


def entry(config: ConfigDict, setting: str) -> ChosenEntry:
    """Looks up the entry that `setting` names. Raises RegistryError if it or its settings are invalid."""
    choice, entry_name = CHOICES[setting], at(config, setting)
    function = choice.find(entry_name)
    checked_overrides: dict[str, Any] = {}
    if choice.section:
        # Without the section's own leaves, such as environment.name.
        section_values = settings(at(config, choice.section), *_list_own_leaves(choice.section))
        overrides = {**PAPER.get(setting, {}).get(entry_name, {}), **section_values}
        checked_overrides = registry.check_settings(choice.kind, entry_name, function, overrides, f"{choice.section}.")
    if choice.argument_names is not None:
        argument_names = (*choice.argument_names, *reads(function)) if setting == "evolve" else choice.argument_names
        registry.check_call(choice.kind, entry_name, function, argument_names, checked_overrides)
    if setting == "environment.name":
        worlds.check_settings(entry_name, checked_overrides)
    full_name = worlds.complete_name(entry_name) if setting == "environment.name" else entry_name
    return ChosenEntry(choice.kind, full_name, function, checked_overrides)


def objective_of(config: ConfigDict) -> Objective:
    """Combines loss, advantage and weighting. Raises ValueError if they cannot be combined."""
    if method_and_settings := methods.rounds_of(config):
        loss, loss_settings = methods.find_round_loss(*method_and_settings)
        return objective(bind_loss(loss, LOSSES, loss_settings), DEFAULT_ADVANTAGE, {}, DEFAULT_WEIGHTING, {}, 1)
    loss_entry, advantage, weighting = (entry(config, f"learner.{part}") for part in ("loss", "advantage", "weighting"))
    bound_loss = bind_loss(loss_entry.name, LOSSES, loss_entry.overrides)
    part_count = config.learner.updates_per_batch if config.learner.each_update == "part" else 1
    return objective(bound_loss, advantage.name, advantage.overrides, weighting.name, weighting.overrides, part_count)


def reads_initial(config: ConfigDict) -> bool:
    """Whether the learner reads the initial policy: as the base of adapters, or as the reference of its loss."""
    method_and_settings = methods.rounds_of(config)
    is_renewed = method_and_settings is not None and method_and_settings[1].reference == "round"
    return bool(config.learner.lora.rank) or ("reference_logprobs" in objective_of(config).loss.uses and not is_renewed)


def find_signals(config: ConfigDict) -> dict[str, ChosenEntry]:
    """The active signals by name, from a list as "forgetting,my.module:thing": ours first, in the registry's order.

    The name of a signal from outside is the part after the colon. Raises RegistryError.
    """
    full_names = [full_name.strip() for full_name in config.signals.split(",") if full_name.strip()]
    full_names.sort(key=lambda full_name: list(SIGNALS).index(full_name) if full_name in SIGNALS else len(SIGNALS))
    entries: dict[str, ChosenEntry] = {}
    for full_name in full_names:
        alias = shorten_signal(full_name)
        if alias in entries and entries[alias].name != full_name:
            raise RegistryError(f"signals {entries[alias].name!r} and {full_name!r} have one name; rename one of them")
        entries[alias] = _find_signal(config, full_name)
    for alias in config.signal_settings:
        if alias in entries:
            continue
        if alias not in SIGNALS:
            all_names = list(dict.fromkeys((*SIGNALS, *entries)))
            hint = registry.suggest_names(alias, all_names, f"{_SIGNAL_SECTION}.")
            raise RegistryError(f"signal_settings.{alias} belongs to no signal; {hint}there are {', '.join(all_names)}")
        _find_signal(config, alias)
    return entries


def build_signals(config: ConfigDict) -> dict[str, SignalKind]:
    """Builds the active signals, by kind. Raises RegistryError for an entry that makes no signal."""
    kind_by_name: dict[str, SignalKind] = {}
    for signal in find_signals(config).values():
        try:
            kind = check(signal.bind()(), _RESERVED_NAMES)
        except (ValueError, TypeError) as error:
            raise RegistryError(f"signal {signal.name!r}: {error}") from error
        if kind.name in kind_by_name:
            raise RegistryError(f"signal {signal.name!r} has the kind {kind.name!r}, as another one has; rename it")
        kind_by_name[kind.name] = kind
    return kind_by_name


def shorten_signal(full_name: str) -> str:
    """The name of a signal in `signal_settings`."""
    return full_name.rpartition(":")[2]


def list_entries(config: ConfigDict) -> Iterator[tuple[str, ChosenEntry]]:
    """Yields each setting that names an entry, with that entry. Raises RegistryError."""
    for setting in CHOICES:
        if at(config, setting) or setting not in _OPTIONAL_SETTINGS:
            yield setting, entry(config, setting)
    for alias, signal_entry in find_signals(config).items():
        yield f"signals.{alias}", signal_entry


def describe(config: ConfigDict) -> dict[str, Any]:
    """Describes the entry of each setting for config.json."""
    kinds = dict(zip(find_signals(config), build_signals(config).values(), strict=True))
    kind_records = {f"signals.{alias}": {"kind": kind.name, "colour": kind.colour} for alias, kind in kinds.items()}
    return {key: named_entry.describe() | kind_records.get(key, {}) for key, named_entry in list_entries(config)}


def apply_flags(config: ConfigDict, flags: Mapping[str, str]) -> ConfigDict:
    """Returns the configuration with the entries, and settings of entries, that flags set.

    A file's overrides belong to the entry that the file names. An entry that a flag names instead starts from its own
    defaults. Raises RegistryError for an unknown entry.
    """
    config = config.copy_and_resolve_references()
    with config.unlocked(), config.ignore_type():
        for setting, choice in CHOICES.items():
            if choice.section and setting in flags and flags[setting] != at(config, setting):
                section = at(config, choice.section)
                put(config, choice.section, ConfigDict({key: section[key] for key in _list_own_leaves(choice.section)}))
                put(config, setting, flags[setting])
        for setting, flag_text in flags.items():
            if setting in LEAVES and setting not in CHOICES:
                put(config, setting, from_text(LEAVES[setting].range, flag_text))
            elif setting not in CHOICES:
                declaration = registry.settings(_find_owner(config, setting)[0]).get(setting.rpartition(".")[2])
                put(config, setting, from_text(declaration.annotation, flag_text) if declaration else flag_text)
    return config


def list_defaults(config: ConfigDict) -> dict[str, Any]:
    """Returns the default of every setting, and of each entry's setting that the configuration overrides."""
    default_config = base.get_config()
    with default_config.unlocked(), default_config.ignore_type():
        for setting, _ in leaves(config.to_dict()):
            if is_free_form(setting) and setting not in CHOICES and setting not in LEAVES:
                function, paper_settings = _find_owner(config, setting)
                last_key = setting.rpartition(".")[2]
                default = registry.settings(function)[last_key].default
                if last_key in paper_settings or default is not registry.REQUIRED:
                    put(default_config, setting, paper_settings.get(last_key, default))
    return default_config.to_dict()


def _find_owner(config: ConfigDict, setting: str) -> tuple[Callable[..., Any], Mapping[str, Any]]:
    """Finds the entry that a setting belongs to, and its settings in the paper. Raises RegistryError if none does."""
    section = setting.rpartition(".")[0]
    if section.startswith(f"{_SIGNAL_SECTION}."):
        alias = section.removeprefix(f"{_SIGNAL_SECTION}.")
        full_names = {shorten_signal(full_name.strip()): full_name.strip() for full_name in config.signals.split(",")}
        function = SIGNAL.find(full_names.get(alias, alias))
        if alias not in config.signal_settings:
            config.signal_settings[alias] = ConfigDict()
        return function, {}
    for chooser, choice in CHOICES.items():
        if choice.section and choice.section == section:
            return choice.find(at(config, chooser)), PAPER.get(chooser, {}).get(at(config, chooser), {})
    raise RegistryError(
        f"{setting} is not a setting; an entry's own settings are given one by one, those of a signal as "
        f"{_SIGNAL_SECTION}.NAME.KEY"
    )


def _list_own_leaves(section: str) -> list[str]:
    """The settings of the section itself, without those of the entry that shares the section."""
    return [setting.removeprefix(f"{section}.") for setting in LEAVES if setting.rpartition(".")[0] == section]


def _find_signal(config: ConfigDict, full_name: str) -> ChosenEntry:
    alias, function = shorten_signal(full_name), SIGNAL.find(full_name)
    section = config.signal_settings.get(alias, ConfigDict())
    if not isinstance(section, ConfigDict):
        raise RegistryError(f"{_SIGNAL_SECTION}.{alias} is {quote(section)}; expected the section of a signal")
    overrides = registry.check_settings("signal", full_name, function, section.to_dict(), f"{_SIGNAL_SECTION}.{alias}.")
    return ChosenEntry("signal", full_name, function, overrides)


def check_cluster(config: ConfigDict) -> None:
    """Raises ValueError for a cluster that is not an address, or if it needs Ray and Ray is not installed."""
    if config.environment.cluster:
        worlds.import_part("cluster").check(config.environment.cluster)


def build_environment(config: ConfigDict) -> Environment:
    """Builds the environment in this process and its workers, or on the nodes of a Ray cluster.

    Raises ValueError or EnvironmentFailure if it cannot be made.
    """
    world_entry = entry(config, "environment.name")
    if not config.environment.cluster:
        return world_entry.bind()()
    return worlds.import_part("cluster").place(config.environment.cluster, world_entry.name, world_entry.overrides)
