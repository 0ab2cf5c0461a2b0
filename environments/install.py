"""python -m environments.install NAME: installs an environment's packages in a virtual environment, and its data.

A second run continues where the first one stopped, or reports that all is installed. The exit code is 0 if all is
installed, 1 if not, 2 for bad arguments.
"""

import argparse
import functools
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType

from cojax import worlds
from cojax.command import reword
from .worker.venv import InstallError, install, interpreter

say = functools.partial(print, flush=True)


def _import_data(module: ModuleType) -> ModuleType | None:
    """The environment's module `data` (ROOTS, the default first, and provide()), if it has one."""
    if "__path__" not in vars(module) or importlib.util.find_spec(f"{module.__name__}.data") is None:
        return None
    return importlib.import_module(f"{module.__name__}.data")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog=reword("python -m environments.install"), description=reword(__doc__.partition("\n")[0])
    )
    parser.add_argument("name", help=f"one of {', '.join(worlds.available())}, or package.module from outside")
    parser.add_argument("--python", help="interpreter to build on (default: this one, or a measured one on PATH)")
    parser.add_argument("--data", help="which data, where an environment needs some and there is a choice")
    options = parser.parse_args(arguments)
    try:
        module = worlds.module(options.name)
    except ValueError as error:
        parser.error(str(error))
    data_module = _import_data(module)
    if options.data is not None and options.data not in (data_module.ROOTS if data_module else ()):
        choices = f"one of {', '.join(data_module.ROOTS)}" if data_module else "none: it needs no data"
        parser.error(f"--data is {options.data!r}; for the environment {options.name!r} expected {choices}")
    if "RECIPE" not in vars(module):
        print(f"{options.name}: needs nothing installed")
        return 0
    try:
        install(options.name, module.RECIPE, options.python, say)
        if data_module:
            data_module.provide(options.data or data_module.ROOTS[0], interpreter(options.name, module.RECIPE), say)
    except InstallError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
