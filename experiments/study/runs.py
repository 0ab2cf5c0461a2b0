"""One run of the study, its configuration (experiments/desk.py with settings of an arm), and what commands share."""

import argparse
import ast
import dataclasses
import json
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from cojax.registry.annotations import RegistryError, convert_setting, shown
from cojax.run.checks import check
from cojax.settings import presets
from cojax.settings.base import put, spelled_out
from cojax.settings.command_line import CommandLineParser
from cojax.settings.ranges import RANGES, is_open, is_section, leaves, unknown
from cojax.storage.files import RunDirectoryError, StorageError
from .. import desk
from .launch import VARIABLES

ROOT = Path(__file__).parents[2]
# Sections of the configuration that decide the warm start, beside the seed.
_WARM_START = ("warm_start", "model", "environment")
Settings = Mapping[str, Any]  # dotted name of a leaf of experiments/desk.py → value


@dataclasses.dataclass(frozen=True)
class StudyRun:
    """One run of the main command. `settings` are all its changes to experiments/desk.py, the seed included.

    `variables` are those of its process that decide the bits; one of VARIABLES that is missing there is not set.
    """

    arm: str
    seed: int
    settings: Settings
    variables: Mapping[str, str] = dataclasses.field(default_factory=lambda: VARIABLES)

    @property
    def name(self) -> str:
        return f"{self.arm}-{self.seed}"

    @property
    def warm_start(self) -> tuple[Any, ...]:
        """Equal for runs that share a warm start."""
        deciding = [(name, value) for name, value in self.settings.items() if name.partition(".")[0] in _WARM_START]
        return (self.seed, *sorted((name, json.dumps(value)) for name, value in deciding))

    @property
    def config(self) -> dict[str, Any]:
        """The whole configuration. Raises RegistryError for an unknown setting and for a wrong value."""
        return plain_configuration(self.settings)


def plain_configuration(settings: Settings) -> dict[str, Any]:
    """`configuration_of` as a dict of JSON values."""
    return json.loads(json.dumps(configuration_of(settings).to_dict()))


def changes(config: ConfigDict, base: ConfigDict) -> dict[str, Any]:
    """Dotted names and values of the leaves of `config` that `base` has otherwise, but for the run directory."""
    before = dict(leaves(base.to_dict()))
    return {name: value for name, value in leaves(config.to_dict()) if value != before[name] and name != "workdir"}


def configuration_of(settings: Settings) -> ConfigDict:
    """experiments/desk.py with these settings. Raises RegistryError for an unknown one and for a wrong value."""
    config = desk.get_config()
    for name, value in settings.items():
        if name in RANGES:
            value = convert_setting(name, RANGES[name], value)
        elif is_section(name):
            raise RegistryError(
                f"{name} is a section, given {shown(value)}; set what stands in it: --config.{name}.NAME=VALUE"
            )
        elif not is_open(name):
            raise RegistryError(unknown(name))
        try:
            put(config, name, value)
        except (TypeError, ValueError) as error:
            raise RegistryError(f"{name} is {shown(value)}, which is of another type than its default") from error
    return config


_EXPECTED = (ValueError, KeyError, TypeError, OSError, RunDirectoryError, StorageError)


def command_parser(module: str, about: str | None) -> CommandLineParser:
    """The parser of the command `python -m MODULE`, without flags."""
    return CommandLineParser(
        prog=f"python -m {module}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


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
