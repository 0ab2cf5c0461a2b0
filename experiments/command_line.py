"""The command line of a command without configuration: its flags, and errors of one line."""

from __future__ import annotations

import argparse
from typing import NoReturn


class CommandLineParser(argparse.ArgumentParser):
    """Prints an error in one line, and exits with status 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}\n")
