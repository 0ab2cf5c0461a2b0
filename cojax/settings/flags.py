"""Flags of the commands that take a configuration: --config=FILE, --config.KEY=VALUE and, of a run, --workdir=W."""

import difflib
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from absl import app, flags
from absl import logging as absl_logging
from ml_collections import config_flags

from cojax.command import reword
from cojax.host.same_bits import set_variables
from cojax.registry.annotations import RegistryError, convert_setting, from_text, say_type
from cojax.settings.base import expand_flag
from cojax.settings.compatibility import check_begun
from cojax.settings.config_file import EXPERIMENTS, ConfigFileParser, FlagError, require_config_file
from cojax.settings.ranges import RANGES, check_ranges, is_free_form, is_open, is_section, word_unknown_setting
from cojax.settings.tree import LEAVES
from cojax.storage.files import CheckpointError
from cojax.unicode_forms import plain

# One flag for all commands: a process may import several.
CONFIG = config_flags.DEFINE_config_file("config", None, "The experiment: a Python file with get_config(); it is run.")
flags.FLAGS["config"].parser = ConfigFileParser()
TRUST_FLAG = flags.DEFINE_multi_string(
    "trust-code", [], "A folder from which a run resumed by its folder may import its own code; may be repeated."
)
CONTINUED_FILE = str(EXPERIMENTS / "continued.py")
# Flags that set entries and their settings, whose types are not known before the entry is chosen: name → text.
ENTRY_FLAGS: dict[str, str] = {}


def start_command(main: Callable[[list[str]], None], help_text: str | None) -> None:
    """Runs a command that needs a configuration, with the arguments of this process; --help shows `help_text`."""
    sys.modules["__main__"].__doc__ = help_text
    flags.mark_flag_as_required("config")
    app.run(main, flags_parser=parse_flags)


def parse_flags(argv: list[str]) -> list[str]:
    """Parses the flags. A wrong flag ends the command with status 1 and a message of one line."""
    main_module = sys.modules["__main__"]
    if main_module.__doc__:  # what --help shows first
        main_module.__doc__ = reword(main_module.__doc__)
    try:
        # In place: the configuration's flags are read from this very list.
        argv[1:] = map(expand_flag, flags.FLAGS.read_flags_from_files(argv[1:], force_gnu=False))
        if "workdir" in flags.FLAGS:
            argv[1:] = _expand_workdir(argv[1:])
        if (config_value := _lookup("config", argv[1:])) is not None:
            require_config_file(config_value)
        argv[1:] = _move_entry_flags(argv[1:], ENTRY_FLAGS)
        _check_setting_names(argv[1:])
        positionals = flags.FLAGS(argv)
        absl_logging.set_verbosity(absl_logging.WARNING)  # Orbax logs every array
        if len(positionals) > 1:
            raise FlagError(f"unexpected argument {positionals[1]!r}; settings are given as --config.KEY=VALUE")
        if CONFIG.value is not None:
            # Before modules that take seconds to load can use a setting out of its range.
            check_ranges(CONFIG.value)
            for setting in (setting for setting in ENTRY_FLAGS if setting in LEAVES):
                convert_setting(setting, LEAVES[setting].range, from_text(LEAVES[setting].range, ENTRY_FLAGS[setting]))
            if "workdir" in flags.FLAGS:
                check_begun(Path(CONFIG.value.workdir))
            if CONFIG.value.same_bits:
                set_variables()
        return positionals
    except (FlagError, CheckpointError, RegistryError) as error:
        reason = str(error)
    except (flags.Error, ValueError) as error:  # absl raises a ValueError for --noNAME=VALUE
        reason = _reword_error(str(error))
    print(plain(f"error: {reason}"))
    sys.exit(1)


def _expand_workdir(arguments: Sequence[str]) -> list[str]:
    """Replaces --workdir by --config.workdir in the arguments of a run.

    Without --config, the configuration is that of the run in the folder. Raises FlagError if neither flag is given, if
    the folder holds no run, or if the flags name two folders.
    """
    workdir = _lookup("workdir", arguments)
    if workdir is None:
        if _lookup("config", arguments) is None and not any(flag.lstrip("-").startswith("help") for flag in arguments):
            _check_flags(arguments)
            if file_name := next((argument for argument in arguments if re.match(r"[^-].*\.py$", argument)), None):
                raise FlagError(f"unexpected argument {file_name!r}; an experiment is named by --config={file_name}")
            raise FlagError(
                "no experiment and no run: name an experiment, --config=experiments/desk.py, or the folder of a run to "
                "go on with, --workdir=runs/desk"
            )
        return list(arguments)
    if (config_workdir := _lookup(r"config\.workdir", arguments)) not in (None, workdir):
        raise FlagError(
            f"--workdir={workdir} and --config.workdir={config_workdir} name two run directories; leave one of them out"
        )
    remaining, argument_iterator = [], iter(arguments)
    for argument in argument_iterator:
        if argument in ("--workdir", "-workdir"):
            next(argument_iterator, "")
        elif not re.match(r"--?workdir=", argument):
            remaining.append(argument)
    config_flags = []
    if _lookup("config", arguments) is None:
        if not _exists(Path(workdir) / "config.json"):
            _check_flags(arguments)
            raise FlagError(
                f"{workdir or 'the empty --workdir'} holds no run to go on with (no config.json there); to begin one, "
                f"name its experiment too: --config=experiments/desk.py --workdir={workdir or 'runs/desk'}"
            )
        config_flags = [f"--config={CONTINUED_FILE}:{workdir}"]
    # After --config, whose value may be the next argument, and not after a flag that lacks its value.
    flag_index = next((index for index, argument in enumerate(remaining) if re.match(r"--?config(=|$)", argument)), -1)
    insert_index = flag_index + 1 + (flag_index >= 0 and "=" not in remaining[flag_index])
    return [*config_flags, *remaining[:insert_index], f"--config.workdir={workdir}", *remaining[insert_index:]]


def _exists(path: Path) -> bool:
    """Whether the file exists. Raises FlagError if the system refuses to say."""
    try:
        return path.exists()
    except OSError as error:
        raise FlagError(f"--workdir={path.parent}: {error.strerror}") from error


def _lookup(name_pattern: str, arguments: Sequence[str]) -> str | None:
    """Returns the value of a flag, the last one if it is given twice; None if it is not given.

    Raises FlagError for a flag without a value.
    """
    flag_value = None
    for index, argument in enumerate(_drop_positionals(arguments)):
        if match := re.match(rf"--?{name_pattern}(?:=(.*))?$", argument, re.DOTALL):
            if match[1] is None and re.match(r"--|$", "".join(arguments[index + 1 : index + 2])):
                raise FlagError(f"{argument} has no value; give it as {argument}=VALUE")
            flag_value = match[1] if match[1] is not None else arguments[index + 1]
    return flag_value


def _drop_positionals(arguments: Iterable[str]) -> Iterator[str]:
    """Returns the arguments before `--`; none after it is a flag."""
    return itertools.takewhile(lambda argument: argument != "--", arguments)


def _check_setting_names(arguments: Sequence[str]) -> None:
    """Raises FlagError for a --config.NAME that is neither a setting nor a section."""
    for argument in _drop_positionals(arguments):
        match = re.match(r"--?(?:no)?config\.([^=]*)", argument)
        if match and match[1] not in RANGES and not is_section(match[1]) and not is_open(match[1]):
            raise FlagError(word_unknown_setting(match[1]))


def _check_flags(arguments: Sequence[str]) -> None:
    """Raises FlagError for an unknown flag, and for an unknown setting."""
    _check_setting_names(arguments)
    for argument in _drop_positionals(arguments):
        match = re.match(r"--?([A-Za-z_][^=]*)", argument)
        name = match[1] if match else ""
        is_known = name in flags.FLAGS or name.removeprefix("no") in flags.FLAGS or re.match(r"(no)?config\.", name)
        if name and not is_known:
            raise FlagError(_word_unknown_flag(name))


def _word_unknown_flag(flag_name: str) -> str:
    """Words the error for an unknown flag; it suggests a flag, or a setting, with a similar name."""
    matches = difflib.get_close_matches(flag_name, [*flags.FLAGS, *(f"config.{setting}" for setting in RANGES)], n=1)
    matches = matches or [f"config.{setting}" for setting in difflib.get_close_matches(flag_name, RANGES, n=1)]
    return f"--{flag_name} is not a flag; {f'did you mean --{matches[0]}? ' if matches else ''}--help lists the flags"


def _reword_error(message: str) -> str:
    """Returns absl's message about a flag; if it is about a setting, in this project's words."""
    if match := re.match(r"flag --config\.([\w.]+)=(.*?): Failed to parse .* as a ConfigDict", message, re.DOTALL):
        section_name, value = match.groups()
        return f"{section_name} is a section, given {value}; set what stands in it: --config.{section_name}.NAME=VALUE"
    if (match := re.match(r"flag --config\.([\w.]+)=(.*?): ", message, re.DOTALL)) and match[1] in RANGES:
        return f"{match[1]} is {match[2]!r}; expected {say_type(RANGES[match[1]])}"
    if "Flag --config must have a value" in message:
        return "no experiment: name one, --config=experiments/desk.py"
    if match := re.match(r"flag --(\w+)=(.*?): (invalid literal for int|could not convert)", message, re.DOTALL):
        expected_kind = "a whole number" if match[3].startswith("invalid") else "a number"
        return f"--{match[1]} is {match[2]!r}; expected {expected_kind}"
    if match := re.match(r"Unknown command line flag '([^']+)'", message):
        return _word_unknown_flag(match[1])
    return f"{' '.join(message.split()).rstrip('.')}. --help lists the flags"


def _move_entry_flags(arguments: Sequence[str], entry_flags: dict[str, str]) -> list[str]:
    """Moves the flags of entries, --config.NAME=VALUE or --config.NAME VALUE, from the arguments to `entry_flags`.

    Raises FlagError for one without a value.
    """
    entry_flags.clear()
    remaining_arguments: list[str] = []
    argument_iterator = iter(arguments)
    for argument in argument_iterator:
        match = re.match(r"--?config\.([^=]+)(?:=(.*))?$", argument, re.DOTALL)
        if argument == "--" or not match or not is_free_form(match[1]):
            remaining_arguments += [argument, *argument_iterator] if argument == "--" else [argument]
        else:
            value_text = next(argument_iterator, "--") if match[2] is None else match[2]
            if match[2] is None and value_text.startswith("--"):
                raise FlagError(f"{argument} has no value; give it as {argument}=VALUE")
            entry_flags[match[1]] = value_text
    return remaining_arguments
