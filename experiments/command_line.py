"""The command line of a command without configuration: its flags, and errors of one line."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from cojax.command import worded


class CommandLineParser(argparse.ArgumentParser):
    """Prints an error in one line, and exits with status 2.

    `prog` and `description` name commands as python -m MODULE; started by `cojax`, they are shown as cojax NAME.
    """

    def __init__(self, *, prog: str, description: str | None, **options: Any) -> None:
        super().__init__(prog=worded(prog), description=worded(description or ""), **options)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}\n")
