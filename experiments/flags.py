"""Flags of the commands that take a configuration."""

from __future__ import annotations

import re
import sys
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags

from cojax.report.console import CONSOLE
from experiments import entries, presets
from experiments.settings import spelled_out

# One flag for all commands: a process may import several.
_CONFIG = config_flags.DEFINE_config_file("config", None, "The experiment: a file with get_config().")


# What flags say of entries and their settings, which are no settings before an entry is chosen: name → text.
_OF_ENTRIES: dict[str, str] = {}


def configuration() -> ConfigDict:
    """The configuration that the flags give, its preset written in. Raises ValueError for an unknown preset, and for an
    entry that is not there."""
    typed = config_flags.get_override_values(flags.FLAGS["config"])
    return entries.overridden(presets.resolve(_CONFIG.value, (*typed, *_OF_ENTRIES)), _OF_ENTRIES)


def parse(argv: list[str]) -> list[str]:
    """Parses the flags; what is wrong with one is said in a line, and ends the command with status 1."""
    # In place: the configuration's flags are read from this very list.
    argv[1:] = map(spelled_out, flags.FLAGS.read_flags_from_files(argv[1:], force_gnu=False))
    argv[1:] = _without_entries(argv[1:], _OF_ENTRIES)
    try:
        return flags.FLAGS(argv)
    except (AttributeError, KeyError) as error:
        reason: Any = error
        while isinstance(reason, BaseException):
            reason = reason.args[0]
        name, *hint = str(reason).splitlines()
        told = f"{name} is not a setting of this experiment; experiments/base.py lists them all. {' '.join(hint)}"
    except flags.Error as error:
        told = _plainly(str(error))
    CONSOLE.print(f"error: {told}", style="bold red", markup=False, soft_wrap=True)
    sys.exit(1)


def _plainly(message: str) -> str:
    """What absl says of a flag; where a section was given a value, how it is set."""
    if section := re.match(r"flag --config\.([\w.]+)=(.*?): Failed to parse .* as a ConfigDict", message, re.DOTALL):
        name, value = section.groups()
        return f"{name} is a section, given {value}; set what stands in it: --config.{name}.NAME=VALUE"
    return f"{' '.join(message.split())}. --help lists the flags"


def _without_entries(arguments: list[str], found: dict[str, str]) -> list[str]:
    """The arguments without the flags of entries, which are `found`: --config.NAME=VALUE, or with VALUE after it."""
    found.clear()
    rest: list[str] = []
    following = iter(arguments)
    for argument in following:
        matched = re.match(r"--?config\.([^=]+)(?:=(.*))?$", argument, re.DOTALL)
        if argument == "--" or not matched or not entries.is_open(matched[1]):
            rest += [argument, *following] if argument == "--" else [argument]
        else:
            found[matched[1]] = next(following, "") if matched[2] is None else matched[2]
    return rest
