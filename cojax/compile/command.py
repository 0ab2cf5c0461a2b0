"""The command: flags, and what is printed."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from typing import Any

import jax
from absl import app, flags
from absl import logging as absl_logging

from cojax.compile import shown, targets
from cojax.compile.programs import examine
from cojax.environment import EnvironmentFailure, InstallError
from cojax.report.console import CONSOLE
from cojax.run.configuration import configuration
from cojax.settings.flags import parse

_TARGET = flags.DEFINE_string("target", None, f"What to compile for: {', '.join(targets.TARGETS)}.")
_JSON = flags.DEFINE_bool("json", False, "Print one JSON object.")
EXPECTED = (
    ValueError, OSError, ModuleNotFoundError, EnvironmentFailure, InstallError, jax.errors.JaxRuntimeError
)  # fmt: skip
DOES_NOT_FIT = 3


def main(argv: Sequence[str]) -> None:
    absl_logging.set_verbosity(absl_logging.ERROR)
    try:
        if _TARGET.value is None:
            raise ValueError(f"no target; name one: --target={' or --target='.join(targets.TARGETS)}")
        target = targets.find(_TARGET.value)
        config = configuration()
        # What a library prints goes to standard error, not among the figures.
        with contextlib.redirect_stdout(sys.stderr):
            found: dict[str, Any] = examine(config, target)
    except EXPECTED as error:
        reason = str(error)
        if isinstance(error, jax.errors.JaxRuntimeError):
            reason = f"the compiler for {_TARGET.value} failed: {reason.splitlines()[0]}"
        CONSOLE.print(f"error: {reason}", style="bold red", markup=False, soft_wrap=True)
        sys.exit(1)
    if _JSON.value:
        print(json.dumps(found))
    else:
        CONSOLE.print(shown.table(found))
        for line in shown.advice(found):
            CONSOLE.print(line, markup=False, soft_wrap=True)
    sys.exit(0 if found["fits"] else DOES_NOT_FIT)


def run() -> None:
    """Runs the command with the arguments of this process."""
    flags.mark_flag_as_required("config")
    app.run(main, flags_parser=parse)
