"""The command line of a command without configuration: its flags, and errors of one line."""

import argparse
import difflib
import sys
from typing import Any, NoReturn

from cojax.command import worded


class CommandLineParser(argparse.ArgumentParser):
    """Prints an error in one line, and exits with status 2.

    `prog` and `description` name commands as python -m MODULE; started by `cojax`, they are shown as cojax NAME.
    """

    def __init__(self, *, prog: str, description: str | None, **options: Any) -> None:
        self._arguments: list[str] = []
        super().__init__(prog=worded(prog), description=worded(description or ""), **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._arguments = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """An unknown flag is named before what it leaves missing."""
        for argument in self._arguments:
            name = argument.partition("=")[0]
            if name.startswith("--") and not any(known.startswith(name) for known in self._option_string_actions):
                near = difflib.get_close_matches(name, self._option_string_actions, n=1, cutoff=0.7)
                message = f"{name} is no flag; {f'did you mean {near[0]}? ' if near else ''}--help lists the flags"
                break
        self.exit(2, f"error: {message}\n")
