"""python -m environments.install NAME: the packages of an environment, in a virtual environment of its own.

Run again, it goes on where it stopped, or says that all is there. Exit code 0 if installed, 1 if not, 2 for bad
arguments.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

import environments
from environments.worker.venv import InstallError, install


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m environments.install", description=__doc__.partition("\n")[0])
    parser.add_argument("name", help=f"one of {', '.join(environments.available())}")
    parser.add_argument("--python", help="interpreter to build on (default: this one, or a measured one on PATH)")
    options = parser.parse_args(arguments)
    if options.name not in environments.available():
        parser.error(f"environment {options.name!r} not found; available: {', '.join(environments.available())}")
    module = importlib.import_module(f"environments.{options.name}")
    if "RECIPE" not in vars(module):
        print(f"{options.name}: needs nothing installed")
        return 0
    try:
        install(options.name, module.RECIPE, options.python, lambda line: print(line, flush=True))
    except InstallError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
