"""Checks that every setting of a configuration exists and is in its range. cojax/run/checks.py checks its entries."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from cojax.command import reword
from cojax.registry.annotations import RegistryError, convert_setting, description, quote
from cojax.settings.tree import LEAVES, NAMES, OPEN

# Characters of an unknown name that an error shows.
_SHOWN = 100
# The settings that our own entries declare, and those of older releases.
ENTRY_SETTINGS = tuple(f"{section}.{name}" for section, names in NAMES["declared"].items() for name in names)
GONE: Mapping[str, Sequence[Any]] = NAMES["gone"]
# Settings that choose an entry with settings of its own.
_CHOOSING = {words.partition(",")[0] for words in OPEN.values()} & LEAVES.keys()
RANGES: dict[str, Any] = {name: leaf.range for name, leaf in LEAVES.items()}


def check_ranges(config: ConfigDict) -> None:
    """Raises RegistryError for an unknown setting, for one that is missing, and for a value out of its range."""
    values = dict(leaves(config.to_dict()))
    for name, value in values.items():
        if name in RANGES:
            convert_setting(name, RANGES[name], value)
        elif not is_open(name):
            raise RegistryError(unknown_setting(name))
    _expect_all(values)


def check_kinds(config: ConfigDict) -> None:
    """Raises RegistryError where the shape is wrong (`check_shape`), and for a value of another type than the default.

    ml_collections refuses a flag for a setting whose value has the wrong type, and would then blame the flag.
    """
    check_shape(config.to_dict())
    for name, value in leaves(config.to_dict()):
        default = LEAVES[name].default if name in LEAVES else value
        kinds = (int, float) if isinstance(default, float) else (int, type(None)) if default is None else type(default)
        if not isinstance(value, kinds) or isinstance(value, bool) != isinstance(default, bool):
            convert_setting(name, RANGES[name], value)


def check_shape(config: Mapping[str, Any]) -> None:
    """Raises RegistryError for an unknown or missing setting, and for a value in place of a section or the reverse."""
    node: Any
    for section in sorted({*OPEN, *(name.rpartition(".")[0] for name in RANGES)} - {""}):
        node = config
        for key in section.split("."):
            if not isinstance(node, Mapping) or key not in node:
                raise RegistryError(f"{section} is missing from the configuration; begin with base.get_config()")
            node = node[key]
        if not isinstance(node, Mapping):
            raise RegistryError(f"{section} is {quote(node)}; expected a section")
    for name, value in config.get("signal_settings", {}).items():
        if not isinstance(value, Mapping):
            raise RegistryError(f"signal_settings.{name} is {quote(value)}; expected the section of a signal")
    values = dict(leaves(config))
    for name in values:
        parents = [parent for parent in RANGES if name.startswith(f"{parent}.")]
        if parents and parents[0] not in OPEN:
            raise RegistryError(f"{parents[0]} is a section; expected {description(RANGES[parents[0]])}")
        if name not in RANGES and not is_open(name):
            raise RegistryError(unknown_setting(name))
    _expect_all(values)


def _expect_all(values: Mapping[str, Any]) -> None:
    """Raises RegistryError for a setting that is not given."""
    if missing := RANGES.keys() - values.keys():
        raise RegistryError(f"{min(missing)} is missing from the configuration; begin with base.get_config()")


def is_section(name: str) -> bool:
    """Whether `name` is a section, not a setting."""
    return name in OPEN or any(key.startswith(f"{name}.") for key in RANGES)


def is_open(name: str) -> bool:
    """Whether the setting is in a section whose settings an entry declares."""
    return any(name == section or name.startswith(f"{section}.") for section in OPEN)


def is_free_form(name: str) -> bool:
    """Whether cojax.run.entries, and not ml_collections, must apply a flag for the setting `name`.

    It must if the setting chooses an entry with settings, is a setting of an entry, or may be None.
    """
    if name in LEAVES and LEAVES[name].default is None:
        return True
    return name in _CHOOSING or (is_open(name) and name not in OPEN)


def unknown_setting(name: str) -> str:
    """Words the error for an unknown setting: it suggests settings with the same last name first, then similar ones."""
    if name in GONE:
        value, instead = GONE[name]
        section = name.rpartition(".")[0]
        keys = ", ".join(key for key in RANGES if key.rpartition(".")[0] == section)
        return f"{name} is no longer a setting: it is always {value!r}; {instead}. The settings of {section} are {keys}"
    names = [*RANGES, *OPEN, *ENTRY_SETTINGS]
    lower_name, leaf = name.lower(), name.lower().rpartition(".")[2]
    matches = [key for key in names if key.lower() == lower_name]
    matches += [key for key in names if key.rpartition(".")[2] == leaf]
    matches += difflib.get_close_matches(lower_name, names, cutoff=0.75)
    matches += [key for key in names if difflib.get_close_matches(leaf, [key.rpartition(".")[2]], cutoff=0.8)]
    suggestions = list(dict.fromkeys(matches))[:3]
    hint = f"did you mean {' or '.join(suggestions)}? " if suggestions else ""
    name = name if 0 < len(name) <= _SHOWN else repr(name[:_SHOWN])
    return f"{name} is not a setting; {hint}{reword('python -m experiments.reference')} lists them all"


def leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields every setting by its dotted name."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
