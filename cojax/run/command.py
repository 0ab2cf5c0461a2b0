"""One run: python -m experiments.run --config=experiments/desk.py [--config.KEY=VALUE …] [--check]

The same command resumes a run that was stopped, prints the table of a finished run, and extends it if `--config.steps`
is larger. `--workdir=W` without --config does the same with the settings of the run in W. `--check` is a preflight: it
builds and checks every part, and trains nothing.

A configuration is Python, and is run. What is in W is data: code of one's own that its settings name is imported from
the current folder, PYTHONPATH and each `--trust-code=FOLDER`, from nowhere else.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from absl import app, flags

from cojax.settings.flags import parse

flags.DEFINE_string("workdir", None, "The run directory; without --config, of the run to go on with.")
_CHECK = flags.DEFINE_bool("check", False, "Preflight: build and try everything, train nothing.")


def main(argv: Sequence[str]) -> None:
    from cojax.run import train  # now, so that a wrong flag need not wait for JAX

    train.main(preflight_only=_CHECK.value)


def start() -> None:
    """Runs the command with the arguments of this process."""
    sys.modules["__main__"].__doc__ = __doc__  # which --help shows
    app.run(main, flags_parser=parse)
