"""Flags of the commands that take a configuration."""

from __future__ import annotations

import sys
from typing import Any

from absl import app, flags
from ml_collections import ConfigDict, config_flags

from cojax.console import CONSOLE
from experiments import presets
from experiments.settings import spelled_out

# One flag for all commands: a process may import several.
_CONFIG = config_flags.DEFINE_config_file("config", None, "The experiment: a file with get_config().")


def configuration() -> ConfigDict:
    """The configuration that the flags give, its preset written in. Raises ValueError for an unknown preset."""
    return presets.resolve(_CONFIG.value, config_flags.get_override_values(flags.FLAGS["config"]))


def parse(argv: list[str]) -> list[str]:
    """Parses the flags; a setting that does not exist is named instead of traced."""
    # In place: the configuration's flags are read from this very list.
    argv[1:] = map(spelled_out, argv[1:])
    try:
        return app.parse_flags_with_usage(argv)
    except (AttributeError, KeyError) as error:
        reason: Any = error
        while isinstance(reason, BaseException):
            reason = reason.args[0]
        name, *hint = str(reason).splitlines()
        CONSOLE.print(
            f"error: {name} is not a setting of this experiment; experiments/base.py lists them all. {' '.join(hint)}",
            style="bold red",
            markup=False,
            soft_wrap=True,
        )
        sys.exit(1)
