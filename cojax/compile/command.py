"""Compiles a configuration's learner ahead of time: python -m experiments.compile --target=v5e-16 --config=FILE …

No accelerator is needed. The command compiles the update, the reference's forward and every other program of a step for
the batch of the memory rehearsal. It prints whether they fit, what they move between devices, and the least time that a
step takes by the chip's published figures. A model folder needs only its config.json. The exit status is 0, 1 for an
error, or 3 if the programs do not fit.
"""

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from absl import flags
from absl import logging as absl_logging

from cojax.compile import targets
from cojax.environment import EnvironmentFailure, InstallError
from cojax.report.console import CONSOLE
from cojax.settings import flags as settings

_TARGET_FLAG = flags.DEFINE_string("target", None, f"What to compile for: {', '.join(targets.TARGETS)}.")
_JSON_FLAG = flags.DEFINE_bool("json", False, "Print one JSON object.")
UNFIT_STATUS = 3


def prepare_environment() -> None:
    """Lets compilers start without their hardware. Call this before JAX is imported."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    for variable, value in targets.TARGET_TABLES["environment"].items():
        os.environ.setdefault(variable, value)
    # Autotuning runs kernels on the card.
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_autotune_level=0".strip()


def main(argv: Sequence[str]) -> None:
    absl_logging.set_verbosity(absl_logging.ERROR)
    if _TARGET_FLAG.value is None:
        _exit_with_error(f"no target; name one: --target={' or --target='.join(targets.TARGETS)}")
    try:
        target = targets.find_target(_TARGET_FLAG.value)
    except ValueError as error:
        _exit_with_error(str(error))
    import jax  # now, so that a wrong flag need not wait for it

    from cojax.compile import programs
    from cojax.run.configuration import read_configuration

    try:
        config = read_configuration()
        # Libraries print to standard error, so that they do not mix with the figures.
        with contextlib.redirect_stdout(sys.stderr):
            report = programs.report_target(config, target)
    except (ValueError, OSError, ModuleNotFoundError, EnvironmentFailure, InstallError) as error:
        _exit_with_error(str(error))
    except (jax.errors.JaxRuntimeError, MemoryError) as error:
        reason = (str(error).splitlines() or [repr(error)])[0]
        _exit_with_error(f"the compiler for {target.name} failed: {reason}")
    if _JSON_FLAG.value:
        print(json.dumps(report))
    else:
        CONSOLE.print(programs.render_table(report))
        for advice_line in programs.list_advice(report):
            CONSOLE.print(advice_line)
    sys.exit(0 if report["fits"] else UNFIT_STATUS)


def _exit_with_error(reason: str) -> NoReturn:
    CONSOLE.print(f"error: {reason}", style="bold red")
    sys.exit(1)


def run_command() -> None:
    """Runs the command with the arguments of this process."""
    prepare_environment()
    settings.start_command(main, __doc__)
