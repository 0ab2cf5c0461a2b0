"""Entries of registries that a configuration names: our own, or from outside as package.module:function.

What an entry may be set to, its signature says; the configuration holds overrides alone.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

import environments
from cojax import registry
from cojax.curriculum import CURRICULA
from cojax.learner.advantages import ADVANTAGES
from cojax.learner.losses import LOSSES
from cojax.learner.objective import Objective, objective
from cojax.learner.weightings import WEIGHTINGS
from cojax.registry.annotations import RegistryError, from_text
from cojax.signals import SIGNALS, SignalKind, check
from cojax.synthesis import EVOLUTIONS
from experiments.base import PAPER
from experiments.engines import ENGINES
from experiments.explorers import EXPLORERS


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a configuration names an entry: of what kind, how it is found, in which section its settings stand, and
    what it is called with; None where its parameters' names decide that."""

    kind: str
    find: Callable[[str], Callable[..., Any]]
    section: str = ""
    takes: tuple[str, ...] | None = None


def _of(kind: str, table: Mapping[str, Any], section: str = "", takes: tuple[str, ...] | None = None) -> Place:
    return Place(kind, functools.partial(registry.find, kind, entries=table), section, takes)


# By the setting that names it.
PLACES: dict[str, Place] = {
    "learner.loss": _of("loss", LOSSES, "learner.loss_settings"),
    "learner.advantage": _of("advantage", ADVANTAGES, "learner.advantage_settings", ("trajectories",)),
    "learner.weighting": _of("weighting", WEIGHTINGS, "learner.weighting_settings", ("lengths",)),
    "curriculum": _of("curriculum", CURRICULA, "curriculum_settings", ("scores",)),
    "environment.name": Place("environment", environments.maker, "environment", ()),
    "evolve": _of("evolve", EVOLUTIONS, takes=("quarry",)),
    "engine.name": _of("engine", ENGINES, takes=("config", "model")),
    "explorer.name": _of("explorer", EXPLORERS, takes=("config", "parts", "journal")),
    "initial_explorer": _of("explorer", EXPLORERS, takes=("config", "parts", "journal")),
}
# What may be empty: explorer.name stands for one, and what needs no environment may have none.
_OPTIONAL = ("initial_explorer", "environment.name")
_SIGNAL = _of("signal", SIGNALS)
_SIGNALS = "signal_settings"


@dataclasses.dataclass(frozen=True)
class Entry:
    """An entry that a configuration chose, with what it overrides of its settings, checked."""

    kind: str
    name: str
    function: Callable[..., Any]
    given: Mapping[str, Any]

    def bound(self) -> Callable[..., Any]:
        """The entry with its settings."""
        return functools.partial(self.function, **self.given) if self.given else self.function

    def described(self) -> dict[str, Any]:
        """For config.json: its name, where it comes from, and all its settings as they are."""
        declared = registry.settings(self.function) if self.given or self.kind in _DECLARING else {}
        whole = {name: setting.default for name, setting in declared.items()} | dict(self.given)
        plain = {name: _plain(value) for name, value in whole.items() if isinstance(value, _STORED)}
        return {"name": self.name, **registry.source(self.name, self.function), "settings": plain}


_STORED = (bool, int, float, str, tuple, list)


def _plain(value: Any) -> Any:
    """What JSON can hold of a setting's value, of which a default may be infinite."""
    if isinstance(value, (tuple, list)):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


_DECLARING = {"loss", "advantage", "weighting", "curriculum", "environment", "signal"}


def entry(config: ConfigDict, leaf: str) -> Entry:
    """The entry that the setting `leaf` names. Raises RegistryError for what it cannot be or be set to."""
    place, name = PLACES[leaf], at(config, leaf)
    function = place.find(name)
    given: dict[str, Any] = {}
    if place.section:
        overrides = {**PAPER.get(leaf, {}).get(name, {}), **_section(config, leaf)}
        given = registry.check_settings(place.kind, name, function, overrides, f"{place.section}.")
    if place.takes is not None:
        registry.check_call(place.kind, name, function, place.takes, given)
    return Entry(place.kind, name, function, given)


def learned_by(config: ConfigDict) -> Objective:
    """Loss, advantage and weighting, with what they read. Raises ValueError for what does not go together."""
    loss, advantage, weighting = (entry(config, f"learner.{kind}") for kind in ("loss", "advantage", "weighting"))
    parts = config.learner.updates_per_batch if config.learner.each_update == "part" else 1
    return objective(loss.name, loss.given, advantage.name, advantage.given, weighting.name, weighting.given, parts)


def signals(config: ConfigDict) -> dict[str, Entry]:
    """The signals switched on, by name, from "forgetting,my.module:thing"; those of our own come in their own order.

    The name of one from outside is what stands after the colon. Raises RegistryError.
    """
    named = [name.strip() for name in config.signals.split(",") if name.strip()]
    named.sort(key=lambda name: list(SIGNALS).index(name) if name in SIGNALS else len(SIGNALS))
    chosen: dict[str, Entry] = {}
    for whole in named:
        name = signal_name(whole)
        if name in chosen and chosen[name].name != whole:
            raise RegistryError(f"signals {chosen[name].name!r} and {whole!r} have one name; rename one of them")
        chosen[name] = _signal(config, whole)
    for name in config.signal_settings:
        if name in chosen:
            continue
        if name not in SIGNALS:
            known = ", ".join(dict.fromkeys((*SIGNALS, *chosen)))
            raise RegistryError(f"signal_settings.{name} is of no signal; there are {known}")
        _signal(config, name)
    return chosen


def made_signals(config: ConfigDict) -> dict[str, SignalKind]:
    """The signals switched on, by their kinds. Raises RegistryError for what is no signal."""
    made: dict[str, SignalKind] = {}
    for one in signals(config).values():
        try:
            kind = check(one.bound()())
        except (ValueError, TypeError) as error:
            raise RegistryError(f"signal {one.name!r}: {error}") from error
        if kind.name in made:
            raise RegistryError(f"signal {one.name!r} has the kind {kind.name!r}, as another one has; rename it")
        made[kind.name] = kind
    return made


def signal_name(whole: str) -> str:
    """The name of a signal, by which `signal_settings` knows it."""
    return whole.rpartition(":")[2]


def chosen(config: ConfigDict) -> Iterator[tuple[str, Entry]]:
    """All entries that a configuration names, by the settings that name them. Raises RegistryError."""
    for leaf in PLACES:
        if at(config, leaf) or leaf not in _OPTIONAL:
            yield leaf, entry(config, leaf)
    for name, one in signals(config).items():
        yield f"signals.{name}", one


def described(config: ConfigDict) -> dict[str, Any]:
    """What config.json says of the entries."""
    kinds = dict(zip(signals(config), made_signals(config).values(), strict=True))
    of_signals = {f"signals.{name}": {"kind": kind.name, "colour": kind.colour} for name, kind in kinds.items()}
    return {leaf: one.described() | of_signals.get(leaf, {}) for leaf, one in chosen(config)}


def is_open(name: str) -> bool:
    """Whether a setting is read here rather than by its type: one of an entry, or one that chooses whose there are."""
    sections = (*(place.section for place in PLACES.values() if place.section), _SIGNALS)
    return any(name.startswith(f"{section}.") for section in sections) or any(
        name == leaf and place.section for leaf, place in PLACES.items()
    )


def overridden(config: ConfigDict, flags: Mapping[str, str]) -> ConfigDict:
    """The configuration with what flags say of entries and their settings.

    What a file sets is of the entry that it names: where a flag names another, it starts from its own signature.
    Raises RegistryError for an entry that is not there.
    """
    config = config.copy_and_resolve_references()
    with config.unlocked(), config.ignore_type():
        for leaf, place in PLACES.items():
            if place.section and leaf in flags and flags[leaf] != at(config, leaf):
                kept = {"name": ""} if place.section == "environment" else {}
                _put(config, place.section, ConfigDict(kept))
                _put(config, leaf, flags[leaf])
        for name, text in flags.items():
            if name in PLACES:
                continue
            section, _, key = name.rpartition(".")
            if section.startswith(f"{_SIGNALS}."):
                one = section.removeprefix(f"{_SIGNALS}.")
                whole = {signal_name(name.strip()): name.strip() for name in config.signals.split(",")}
                function = _SIGNAL.find(whole.get(one, one))
                if one not in config.signal_settings:
                    config.signal_settings[one] = ConfigDict()
            else:
                leaf = next((leaf for leaf, place in PLACES.items() if place.section == section), "")
                if not leaf:
                    raise RegistryError(
                        f"{name} is not a setting; an entry's own settings are said one by one, those of a signal as "
                        f"{_SIGNALS}.NAME.KEY"
                    )
                function = PLACES[leaf].find(at(config, leaf))
            declared = registry.settings(function).get(key)
            _put(config, name, from_text(declared.annotation, text) if declared else text)
    return config


def at(config: ConfigDict, name: str) -> Any:
    """The setting of that dotted name."""
    return functools.reduce(lambda section, part: section[part], name.split("."), config)


def _put(config: ConfigDict, name: str, value: Any) -> None:
    section, _, leaf = name.rpartition(".")
    (at(config, section) if section else config)[leaf] = value


def _section(config: ConfigDict, leaf: str) -> dict[str, Any]:
    """The overrides of an entry's settings."""
    given = at(config, PLACES[leaf].section).to_dict()
    return {name: value for name, value in given.items() if leaf != "environment.name" or name != "name"}


def _signal(config: ConfigDict, whole: str) -> Entry:
    name, function = signal_name(whole), _SIGNAL.find(whole)
    given = config.signal_settings[name].to_dict() if name in config.signal_settings else {}
    return Entry(
        "signal", whole, function, registry.check_settings("signal", whole, function, given, f"{_SIGNALS}.{name}.")
    )
