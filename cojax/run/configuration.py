"""Builds a command's configuration from its flags: the file, its preset, and the settings that other flags override.

A run directory is trusted only as data. Code that its config.json names runs only if the command line allows it.

A user's entry is taken from the folders that the command started with, which include the current one and PYTHONPATH,
and from those of --trust-code, provided that it is defined there. An entry from anywhere else must be named on the
command line itself, as must a setting that starts a program or names an address or a folder. docs/threat-model.md
states the rule, and what it leaves open.
"""

import functools
import inspect
import os
import shlex
import site
import sys
import sysconfig
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags

from cojax import imports, worlds
from cojax.registry.annotations import RegistryError, quote
from cojax.run import entries
from cojax.run.entries import CHOICES, SIGNAL, shorten_signal
from cojax.settings import compatibility, presets
from cojax.settings.base import at
from cojax.settings.config_file import EXPERIMENTS, locate_file, record_source
from cojax.settings.flags import CONFIG, CONTINUED_FILE, ENTRY_FLAGS, TRUST_FLAG
from cojax.settings.tree import LEAVES, SETTING_NAMES
from cojax.storage.files import read_json


def read_configuration() -> ConfigDict:
    """Returns the configuration that the flags give, with its preset applied.

    Raises ValueError for an unknown preset or a missing folder, and RegistryError for an unknown entry or for code that
    the run directory names but the flags do not.
    """
    config_flag = flags.FLAGS["config"]
    flag_names = (*config_flags.get_override_values(config_flag), *ENTRY_FLAGS)
    config = CONFIG.value
    make_importable(TRUST_FLAG.value)
    workdir = _find_continued_run()
    if workdir:
        check_trust(config, workdir, flag_names, TRUST_FLAG.value)
    # The configuration of a resumed run already holds its preset's settings, or what flags once set instead.
    if not workdir or config.policy != compatibility.read_run_settings(workdir)["policy"]:
        config = presets.apply_preset(config, flag_names)
    return entries.apply_flags(config, ENTRY_FLAGS)


def make_file_record() -> dict[str, dict[str, str]]:
    """Records for config.json where the configuration's file comes from. A run resumed by its folder keeps its record.

    The record is empty if the user gave no file, as when a program passes an object.
    """
    config_flag = flags.FLAGS["config"]
    if not config_flag.present:
        return {}
    if workdir := _find_continued_run():
        record = read_json(workdir / "config.json").get("file")
        return {"file": record} if isinstance(record, dict) else {}
    file_path = locate_file(config_flags.get_config_filename(config_flag).partition(":")[0])
    return {} if file_path.resolve() == (EXPERIMENTS / "given.py").resolve() else {"file": record_source(file_path)}


def _find_continued_run() -> Path | None:
    """Returns the folder of the run that is resumed with its own settings; None for an experiment's file."""
    experiment_file, _, workdir = config_flags.get_config_filename(flags.FLAGS["config"]).partition(":")
    return Path(workdir) if locate_file(experiment_file).resolve() == Path(CONTINUED_FILE).resolve() else None


# Settings that a run directory alone may not decide, and why.
_REFUSAL_REASONS = {
    **dict.fromkeys(SETTING_NAMES["programs"], "decides which program runs"),
    **dict.fromkeys(SETTING_NAMES["places"], "decides where data and keys go, or what else is read and written"),
}
# Settings of cojax's own environments that may name a function as package.module:function.
_FUNCTION_SETTINGS = ("environment.affordances", "environment.state")
_MAX_FOLDER_LENGTH = 300  # an error quotes a folder of at most this many characters unchanged
_OUR_PACKAGES = ("cojax", *imports.SHARED_NAMES)


def make_importable(folders: Sequence[str]) -> None:
    """Appends the folders of --trust-code to the import path. Raises ValueError for one that does not exist."""
    for folder in folders:
        if not os.path.isdir(folder):
            raise ValueError(f"--trust-code={folder}: there is no such folder; name one that holds the modules")
        if os.path.abspath(folder) not in sys.path:
            sys.path.append(os.path.abspath(folder))


def check_trust(config: ConfigDict, workdir: Path, flag_names: Collection[str], folders: Sequence[str]) -> None:
    """Raises RegistryError if the configuration of the run in `workdir` names code that is not trusted.

    `flag_names` are the settings on the command line, `folders` those of --trust-code. Nothing is imported until every
    name is known to come from a trusted folder.
    """
    imports.add_current_folder()
    trusted_folders = {*_list_start_folders(), *(os.path.realpath(folder) for folder in folders)}
    path = workdir / "config.json"
    outside_entries = [item for item in _list_outside_entries(config) if item[0].partition(" ")[0] not in flag_names]
    for setting, entry, _ in outside_entries:
        module_name = entry.partition(":")[0]
        if module_name.partition(".")[0] in sys.stdlib_module_names or _is_our_module(module_name):
            raise _make_refusal(path, setting, entry, "is code of this installation, and no entry that it lists")
        module_folders = imports.find_folders(module_name)
        if not module_folders:
            raise RegistryError(
                f"{path}: {setting} is {quote(entry)}, which is in no folder of code that this command is to trust; if "
                f"you trust the one that it came from, add --trust-code={_quote_folder(_code_folder(path, setting))}"
            )
        if foreign_folders := [folder for folder in module_folders if folder not in trusted_folders]:
            raise _make_refusal(path, setting, entry, f"lies in {foreign_folders[0]}, a folder that is not trusted")
        if any(_package_holds_run(folder, module_name, workdir) for folder in module_folders):
            raise _make_refusal(path, setting, entry, "is of a package that holds the run's own folder")
    for setting, reason in _REFUSAL_REASONS.items():
        is_applicable = setting in LEAVES or _is_own_world(config)
        if setting not in flag_names and (value := _read_setting(config, setting)) and is_applicable:
            raise _make_refusal(path, setting, value, reason)
    for setting, entry, find_entry in outside_entries:
        if not _is_defined_in(find_entry(entry), trusted_folders):
            raise _make_refusal(path, setting, entry, "is defined elsewhere than in a folder that is trusted")


def _list_outside_entries(config: ConfigDict) -> Iterator[tuple[str, str, Callable[[str], Any]]]:
    """Yields each entry from outside: its setting (followed by a signal's name), its name, and what finds it."""
    for setting, choice in CHOICES.items():
        entry_name = at(config, setting)
        if entry_name and entry_name not in choice.list_names():
            full_name = worlds.complete_name(entry_name) if setting == "environment.name" else entry_name
            if ":" in full_name:
                yield setting, full_name, choice.find
    for entry_name in filter(None, map(str.strip, config.signals.split(","))):
        if ":" in entry_name:
            yield f"signals {shorten_signal(entry_name)}", entry_name, SIGNAL.find
    for setting in _FUNCTION_SETTINGS if _is_own_world(config) else ():
        value = _read_setting(config, setting)
        if isinstance(value, str) and ":" in value and value[0] not in "{[":  # JSON is a call to the server
            yield setting, value, functools.partial(worlds.find_function, setting)


def _is_own_world(config: ConfigDict) -> bool:
    """Whether the environment is one of cojax's, which may run what its settings name; any other is trusted code."""
    environment_name = config.environment.name
    return environment_name in worlds.available() or _is_our_module(environment_name.partition(":")[0])


def _is_our_module(module_name: str) -> bool:
    return module_name.partition(".")[0] in _OUR_PACKAGES


def _package_holds_run(folder: str, module_name: str, workdir: Path) -> bool:
    """Whether the module's package in that folder is or contains the run directory: any folder can be a package."""
    package_folder = os.path.realpath(os.path.join(folder, module_name.partition(".")[0]))
    return os.path.join(os.path.realpath(workdir), "").startswith(os.path.join(package_folder, ""))


def _is_defined_in(function: Any, trusted_folders: Collection[str]) -> bool:
    """Whether a function or class is defined in the trusted folders, not merely imported by a module there."""
    if not inspect.isroutine(function) and not inspect.isclass(function):
        return True  # an object, such as a partial, that the module created
    module_name = str(function.__module__)
    module_folders = imports.find_folders(module_name)
    return bool(module_folders) and set(module_folders) <= set(trusted_folders) and not _is_our_module(module_name)


def _list_start_folders() -> set[str]:
    """Returns the import path's folders, without those of the standard library and of installed packages."""
    installed_folders = [sysconfig.get_path(scheme) for scheme in ("stdlib", "platstdlib", "purelib", "platlib")]
    installed_folders += [*site.getsitepackages(), site.getusersitepackages()]
    prefixes = tuple(os.path.join(os.path.realpath(installed_folder), "") for installed_folder in installed_folders)
    folders = {os.path.realpath(folder) for folder in sys.path if isinstance(folder, str)}
    return {folder for folder in folders if not os.path.join(folder, "").startswith(prefixes)} | {os.path.realpath("")}


def _read_setting(config: ConfigDict, setting: str) -> Any:
    section, _, setting_name = setting.partition(".")
    return config[section].get(setting_name)


def _make_refusal(config_path: Path, entry_setting: str, value: object, reason: str) -> RegistryError:
    setting = entry_setting.partition(" ")[0]
    return RegistryError(
        f"{config_path}: {setting} is {quote(value)}, which {reason}; if you mean it, say so on the command line: "
        f"--config.{setting}=VALUE, or the run's experiment, --config=FILE"
    )


def _code_folder(config_path: Path, entry_setting: str) -> object:
    """Returns the folder of an entry's code that config.json records; None if it records none."""
    code_records = read_json(config_path).get("code")
    code_record = code_records.get(entry_setting.replace(" ", ".")) if isinstance(code_records, dict) else None
    return code_record.get("folder") if isinstance(code_record, dict) else None


def _quote_folder(folder: object) -> str:
    """Quotes a folder for a shell; FOLDER and a shortened text if it is long or holds control characters."""
    if not isinstance(folder, str) or not folder:
        return "FOLDER"
    is_plain = folder.isprintable() and len(folder) <= _MAX_FOLDER_LENGTH
    return shlex.quote(folder) if is_plain else f"FOLDER; it says {quote(folder)}"
