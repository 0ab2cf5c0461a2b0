"""What the study's commands share: settings given as flags, a way to stop, and errors told in a line."""

from __future__ import annotations

import ast
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from cojax.run.checks import check
from cojax.settings import presets
from cojax.settings.reading import spelled_out
from cojax.storage.files import RunDirectoryError, StorageError
from .record import NotFinished
from .runs import StudyRun, configuration_of

_EXPECTED = (ValueError, KeyError, TypeError, OSError, NotFinished, RunDirectoryError, StorageError)


def stoppable(work: Callable[[threading.Event], int]) -> int:
    """The exit status of `work`, whose event SIGINT and SIGTERM set; 2 for wrong input, which is told in a line."""
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in before:
            signal.signal(number, lambda *received: stop.set())
        return work(stop)
    except _EXPECTED as error:
        print(f"error: {error.args[0] if isinstance(error, KeyError) else error}", file=sys.stderr)
        return 2
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def check_deadline(seconds: float) -> None:
    """Raises ValueError for a deadline that is not above 0."""
    if not seconds > 0:
        raise ValueError(f"--deadline={seconds:g}; expected seconds above 0")


def settings_of(arguments: Sequence[str]) -> dict[str, Any]:
    """--config.KEY=VALUE → settings. Raises ValueError for another argument."""
    found = {}
    for argument in arguments:
        name, is_one, value = spelled_out(argument).partition("=")
        setting = name.removeprefix("--config.")
        if not (name.startswith("--config.") and is_one):
            raise ValueError(f"unexpected argument {argument!r}; settings of all arms are given as --config.KEY=VALUE")
        try:
            found[setting] = ast.literal_eval(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError):  # the last two: nested too deep
            found[setting] = value
    return found


def check_settings(jobs: Sequence[StudyRun]) -> None:
    """Raises ValueError, KeyError or TypeError for a wrong setting of a run: it is an error before anything runs."""
    for job in jobs:
        job.config  # noqa: B018  raises for an unknown setting and for a wrong value
    for settings in {job.arm: job.settings for job in jobs}.values():
        check(presets.resolve(configuration_of(settings), settings))
