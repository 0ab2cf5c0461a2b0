"""One run: python -m experiments.run --config=experiments/desk.py [--config.KEY=VALUE …] [--check]

The same command resumes a run that was stopped, prints the table of a finished run, and extends it if `--config.steps`
is larger. `--workdir=W` without --config does the same with the settings of the run in W. `--check` is a preflight: it
builds and checks every part, and trains nothing.

A configuration is Python, and is run. What is in W is only data: user code that its settings name is imported from the
current folder, PYTHONPATH and each `--trust-code=FOLDER`, and from nowhere else.
"""

import functools
import logging
import sys
from collections.abc import Sequence

from absl import app, flags

from cojax.host.processes import end_descendants_at_exit
from cojax.settings.flags import parse_flags

flags.DEFINE_string("workdir", None, "The run directory; without --config, that of the run to resume.")
_CHECK_FLAG = flags.DEFINE_bool("check", False, "Preflight: build and try everything, train nothing.")


def train(argv: Sequence[str]) -> None:
    """Runs the experiment that the flags name, or only its preflight; then the process exits."""
    # Imported here, so that a wrong flag need not wait for JAX.
    from cojax.report.console import CONSOLE
    from cojax.run import configuration, hosts, preflight
    from cojax.run.processes import EXPECTED_ERRORS, describe_error, keep_programs
    from cojax.run.train import run

    end_descendants_at_exit()
    try:
        keep_programs()
        config = configuration.read_configuration()
        with hosts.connect_together(config, preflight=_CHECK_FLAG.value) as processes:
            if isinstance(processes, hosts.Following):
                sys.exit(processes.follow(config))
            sys.exit(preflight.run_preflight(config, processes) if _CHECK_FLAG.value else run(config, processes))
    except EXPECTED_ERRORS as error:
        logging.getLogger("cojax").info("the run ended", exc_info=True)
        CONSOLE.print(f"error: {describe_error(error)}", style="bold red")
        sys.exit(1)


main = functools.partial(app.run, train, flags_parser=parse_flags)
