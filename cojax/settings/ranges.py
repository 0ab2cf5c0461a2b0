"""Checks that every setting of a configuration exists and is in its range. cojax/run/checks.py checks its entries."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from cojax.command import reword
from cojax.registry.annotations import RegistryError, convert_setting, quote, say_type
from cojax.settings.tree import LEAVES, OPEN_SECTIONS, SETTING_NAMES

# Characters of an unknown name that an error shows.
_MAX_NAME_LENGTH = 100
# The settings that our own entries declare, and those of older releases.
ENTRY_SETTINGS = tuple(f"{section}.{name}" for section, names in SETTING_NAMES["declared"].items() for name in names)
GONE_SETTINGS: Mapping[str, Sequence[Any]] = SETTING_NAMES["gone"]
# Settings that choose an entry with settings of its own.
_ENTRY_CHOICES = {words.partition(",")[0] for words in OPEN_SECTIONS.values()} & LEAVES.keys()
RANGES: dict[str, Any] = {name: leaf.range for name, leaf in LEAVES.items()}


def check_ranges(config: ConfigDict) -> None:
    """Raises RegistryError for an unknown setting, for one that is missing, and for a value out of its range."""
    value_by_setting = dict(leaves(config.to_dict()))
    for setting, value in value_by_setting.items():
        if setting in RANGES:
            convert_setting(setting, RANGES[setting], value)
        elif not is_open(setting):
            raise RegistryError(word_unknown_setting(setting))
    _check_complete(value_by_setting)


def check_kinds(config: ConfigDict) -> None:
    """Raises RegistryError where the shape is wrong (`check_shape`), and for a value of another type than the default.

    ml_collections refuses a flag for a setting whose value has the wrong type, and would then blame the flag.
    """
    check_shape(config.to_dict())
    for setting, value in leaves(config.to_dict()):
        default = LEAVES[setting].default if setting in LEAVES else value
        types = (int, float) if isinstance(default, float) else (int, type(None)) if default is None else type(default)
        if not isinstance(value, types) or isinstance(value, bool) != isinstance(default, bool):
            convert_setting(setting, RANGES[setting], value)


def check_shape(config: Mapping[str, Any]) -> None:
    """Raises RegistryError for an unknown or missing setting, and for a value in place of a section or the reverse."""
    node: Any
    for section in sorted({*OPEN_SECTIONS, *(setting.rpartition(".")[0] for setting in RANGES)} - {""}):
        node = config
        for section_key in section.split("."):
            if not isinstance(node, Mapping) or section_key not in node:
                raise RegistryError(f"{section} is missing from the configuration; begin with base.get_config()")
            node = node[section_key]
        if not isinstance(node, Mapping):
            raise RegistryError(f"{section} is {quote(node)}; expected a section")
    for setting, value in config.get("signal_settings", {}).items():
        if not isinstance(value, Mapping):
            raise RegistryError(f"signal_settings.{setting} is {quote(value)}; expected the section of a signal")
    value_by_setting = dict(leaves(config))
    for setting in value_by_setting:
        parents = [parent for parent in RANGES if setting.startswith(f"{parent}.")]
        if parents and parents[0] not in OPEN_SECTIONS:
            raise RegistryError(f"{parents[0]} is a section; expected {say_type(RANGES[parents[0]])}")
        if setting not in RANGES and not is_open(setting):
            raise RegistryError(word_unknown_setting(setting))
    _check_complete(value_by_setting)


def _check_complete(value_by_setting: Mapping[str, Any]) -> None:
    """Raises RegistryError for a setting that is not given."""
    if missing_settings := RANGES.keys() - value_by_setting.keys():
        raise RegistryError(f"{min(missing_settings)} is missing from the configuration; begin with base.get_config()")


def is_section(section_name: str) -> bool:
    """Whether `section_name` is a section, not a setting."""
    return section_name in OPEN_SECTIONS or any(setting.startswith(f"{section_name}.") for setting in RANGES)


def is_open(setting: str) -> bool:
    """Whether the setting is in a section whose settings an entry declares."""
    return any(setting == section or setting.startswith(f"{section}.") for section in OPEN_SECTIONS)


def is_free_form(setting: str) -> bool:
    """Whether cojax.run.entries, and not ml_collections, must apply a flag for this setting.

    It must if the setting chooses an entry with settings, is a setting of an entry, or may be None.
    """
    if setting in LEAVES and LEAVES[setting].default is None:
        return True
    return setting in _ENTRY_CHOICES or (is_open(setting) and setting not in OPEN_SECTIONS)


def word_unknown_setting(name: str) -> str:
    """Words the error for an unknown setting: it suggests settings with the same last name first, then similar ones."""
    if name in GONE_SETTINGS:
        value, advice = GONE_SETTINGS[name]
        section = name.rpartition(".")[0]
        keys = ", ".join(setting for setting in RANGES if setting.rpartition(".")[0] == section)
        return f"{name} is no longer a setting: it is always {value!r}; {advice}. The settings of {section} are {keys}"
    known_names = [*RANGES, *OPEN_SECTIONS, *ENTRY_SETTINGS]
    lower_name, last_key = name.lower(), name.lower().rpartition(".")[2]
    matches = [key for key in known_names if key.lower() == lower_name]
    matches += [key for key in known_names if key.rpartition(".")[2] == last_key]
    matches += difflib.get_close_matches(lower_name, known_names, cutoff=0.75)
    matches += [key for key in known_names if difflib.get_close_matches(last_key, [key.rpartition(".")[2]], cutoff=0.8)]
    suggestions = list(dict.fromkeys(matches))[:3]
    hint = f"did you mean {' or '.join(suggestions)}? " if suggestions else ""
    name = name if 0 < len(name) <= _MAX_NAME_LENGTH else repr(name[:_MAX_NAME_LENGTH])
    return f"{name} is not a setting; {hint}{reword('python -m experiments.reference')} lists them all"


def leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields every setting by its dotted name."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
