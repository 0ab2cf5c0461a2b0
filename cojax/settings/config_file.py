"""Loads and checks the file that --config names. Every error is one line with the place in the file."""

import contextlib
import difflib
import hashlib
import importlib
import importlib.machinery
import importlib.util
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType

from absl import flags
from ml_collections import ConfigDict

from cojax import imports
from cojax.registry.annotations import quote, say_type
from cojax.registry.source import commit
from cojax.settings.ranges import RANGES, check_kinds, is_open, is_section
from cojax.storage.files import CheckpointError

EXPERIMENTS = imports.FOLDERS["experiments"]
# What ml_collections says about a value that a setting cannot take.
_TYPE_ERROR_PATTERN = re.compile(
    r"Could not override field '(?P<field>\w+)' \(reference\)\. (?P<value>.*) "
    r"is of original type <class '(?P<of>[^']*)'> and cannot be casted to type <class '(?P<wanted>[^']*)'>",
    re.DOTALL,
)


class FlagError(Exception):
    """An error of the command line or of the file that it names: one line, with the fix.

    It is not a ValueError, because absl would put words of its own before the message.
    """


class ConfigFileParser(flags.ArgumentParser):
    """Reads --config=FILE or --config=FILE:ARGUMENT."""

    def parse(self, argument: str) -> ConfigDict:
        return load_config(argument).lock()

    def flag_type(self) -> str:
        return "config object"


def load_config(flag: str) -> ConfigDict:
    """Loads the configuration of FILE or FILE:ARGUMENT; see `locate_file`.

    Raises FlagError for any exception of the file, for unknown settings, and for values of the wrong type.
    """
    require_config_file(flag)
    file_name, *arguments = flag.split(":", 1)
    path = str(locate_file(file_name))
    try:
        module = _import_file(path)
        if not callable(getattr(module, "get_config", None)):
            raise FlagError(f"{path} defines no function get_config(); see experiments/desk.py for one")
        config = module.get_config(*arguments)
        if not isinstance(config, ConfigDict):
            raise FlagError(
                f"{path}: get_config() returns {quote(config)}; expected a configuration made from base.get_config()"
            )
    except FlagError:
        raise
    except CheckpointError as error:
        raise FlagError(str(error)) from error
    except (Exception, SystemExit) as error:  # a file may raise anything
        raise FlagError(_word_error(error, path)) from error
    try:
        check_kinds(config)
    except (ValueError, RecursionError) as error:
        raise FlagError(f"{path}: {error}") from error
    return config


def record_source(path: Path) -> dict[str, str]:
    """Records for config.json the file of a configuration, its SHA-256, and the commit of its repository."""
    return {"path": str(path.absolute()), "hash": hashlib.sha256(path.read_bytes()).hexdigest(), "commit": commit(path)}


def require_config_file(flag: str) -> None:
    """Raises FlagError for a --config that names no file."""
    path = Path(flag.partition(":")[0])
    try:
        if flag and locate_file(flag.partition(":")[0]).is_file():
            return
        match = _find_similar_experiment(path)
    except OSError as error:
        raise FlagError(f"--config={flag}: {error.strerror}") from error
    hint = f"did you mean {match}?" if match else "expected a file with get_config(), such as experiments/desk.py"
    raise FlagError(f"--config={flag}: there is no such file; {hint}" if flag else f"--config is empty; {hint}")


# Modules of this project whose get_config() is not an experiment's.
_OTHER_MODULES = ("base", "continued", "given")


def _find_similar_experiment(path: Path) -> Path | None:
    """Finds the experiment with the most similar file name, in that folder or among ours; None if there is none."""
    our_folder = EXPERIMENTS
    for folder in (path.parent, Path(our_folder.name)):
        searched_folders = [folder, our_folder] if folder == Path(our_folder.name) else [folder]
        files = [file for directory in searched_folders if directory.is_dir() for file in directory.glob("*.py")]
        experiment_names = [file.stem for file in files if _is_experiment(file)]
        if matches := difflib.get_close_matches(path.stem, experiment_names, n=1, cutoff=0.7):
            return folder / f"{matches[0]}.py"
    return None


def _is_experiment(path: Path) -> bool:
    """Whether the file defines get_config(), as far as can be seen without running it."""
    with contextlib.suppress(OSError):
        if path.stem not in _OTHER_MODULES and path.is_file():
            return bool(re.search(r"^def get_config\(", path.read_text(errors="replace"), re.MULTILINE))
    return False


def locate_file(path: str) -> Path:
    """Resolves a path to a file; outside the checkout, experiments/NAME.py is ours if there is no such file."""
    file = Path(path)
    our_path = EXPERIMENTS / file.name
    return our_path if file.parent == Path(our_path.parent.name) and not file.exists() and our_path.is_file() else file


def _import_file(file_path: str) -> ModuleType:
    """Imports the file as a module: ours by its name, so that it can import others of ours."""
    imports.add_current_folder()
    if Path(file_path).resolve().parent == EXPERIMENTS:
        return importlib.import_module(f"{imports.resolve('experiments')}.{Path(file_path).stem}")
    loader = importlib.machinery.SourceFileLoader("config_config", file_path)
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module  # a dataclass of the file looks for its module there
    loader.exec_module(module)
    return module


def _word_error(error: BaseException, file_path: str) -> str:
    """Formats the error as one line, after the place of the file's last line that was running."""
    if isinstance(error, SyntaxError) and _is_same_file(error.filename or file_path, file_path):
        return f"{file_path}:{error.lineno or 1}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    file_frames = [frame for frame in frames if _is_same_file(frame.filename, file_path)]
    position = f"{file_path}:{file_frames[-1].lineno}" if file_frames else file_path
    cause: BaseException = error
    while cause.args and isinstance(cause.args[0], BaseException):
        cause = cause.args[0]
    message = str(cause.args[0] if isinstance(cause, (AttributeError, KeyError)) and cause.args else cause)
    line = " ".join(message.split())
    if file_frames and "ml_collections" in frames[-1].filename:
        if match := _TYPE_ERROR_PATTERN.match(line):
            return f"{position}: {_word_type_error(match, file_frames[-1].line or '')}"
        if isinstance(error, (AttributeError, KeyError)):
            first_line, *hint_lines = message.splitlines() or [""]
            return " ".join(f"{position}: {first_line} is not a setting. {' '.join(hint_lines)}".split())
    type_name = type(error).__name__
    return f"{position}: {type_name}: {line}" if line and line != type_name else f"{position}: it ends with {type_name}"


def _word_type_error(match: re.Match[str], file_line: str) -> str:
    """Words the error for a value of the wrong type that this line of the file gives to a setting."""
    field_name, value = match["field"], match["value"]
    setting_match = re.search(rf"((?:\w+\.)*){field_name}\b", file_line)
    full_name = f"{setting_match[1]}{field_name}" if setting_match else field_name
    name_endings = [full_name[word_match.start() :] for word_match in re.finditer(r"\b\w", full_name)]
    setting = next((name for name in name_endings if name in RANGES or is_section(name) or is_open(name)), field_name)
    if setting in RANGES:
        allowed_values = say_type(RANGES[setting])
    elif match["wanted"].endswith("ConfigDict"):
        allowed_values = "a section"
    else:
        allowed_values = say_type({"int": int, "float": float, "bool": bool, "str": str}.get(match["wanted"], tuple))
    type_note = f", of the type {match['of']}" if "." in match["of"] else ""
    return f"{setting} is {quote(value) if match['of'] == 'str' else value}{type_note}; expected {allowed_values}"


def _is_same_file(path: str, other_path: str) -> bool:
    return Path(path).resolve() == Path(other_path).resolve()
