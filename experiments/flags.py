"""Flags of the commands that take a configuration."""

from __future__ import annotations

import sys
from typing import Any

from absl import app

from cojax.console import CONSOLE
from experiments.settings import spelled_out


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
