"""Whether every setting of a configuration is one, and in its range. Knows no entry; experiments/checks.py does."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from ml_collections import ConfigDict

from cojax.registry.annotations import RegistryError, convert_setting
from experiments.base import LEAVES, OPEN, RENAMED
from experiments.leaf import Names
from experiments.settings import choose

RANGES: dict[str, Any] = {name: leaf.range for name, leaf in LEAVES.items()}


def check_ranges(config: ConfigDict) -> None:
    """Raises RegistryError for an unknown setting, for one that is missing, and for a value out of its range."""
    given = dict(leaves(config.to_dict()))
    for name, value in given.items():
        if name in RANGES:
            convert_setting(name, RANGES[name], value)
            if names := [one.names for one in get_args(RANGES[name]) if isinstance(one, Names)]:
                choose(dict.fromkeys(names[0]), value, name)
        elif not is_open(name) and not (name in RENAMED and value is None):
            raise RegistryError(unknown(name))
    if missing := RANGES.keys() - given.keys():
        raise RegistryError(f"{min(missing)} is missing from the configuration; begin with base.get_config()")


def is_open(name: str) -> bool:
    """Whether the setting stands in a section whose settings an entry declares."""
    return any(name == section or name.startswith(f"{section}.") for section in OPEN)


def unknown(name: str) -> str:
    """The error for an unknown setting. Suggests those with the same last name first, then those spelled alike."""
    known = [*RANGES, *OPEN]
    last = name.rpartition(".")[2]
    near = [one for one in known if one.rpartition(".")[2] == last]
    near += difflib.get_close_matches(name, known, cutoff=0.75)
    near += [one for one in known if difflib.get_close_matches(last, [one.rpartition(".")[2]], cutoff=0.8)]
    found = list(dict.fromkeys(near))[:3]
    meant = f"did you mean {' or '.join(found)}? " if found else ""
    return f"{name} is not a setting; {meant}docs/settings.md lists them all"


def leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting by its dotted name."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
