"""Finds and loads environments: each file of the folder `environments` is one, by its name, and offers `make(*, …)`.

An environment from outside is named package.module:make, wherever a name is expected; `:make` may be left out. A name
that the folder has too means the folder's environment. The folder is the package `environments` in a checkout, and
`cojax.environments` in a wheel.
"""

import contextlib
import functools
import importlib.machinery
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from cojax import imports, registry
from cojax.environment import CALLS_IN_TEXT, Environment
from cojax.types import Group

FOLDER = imports.FOLDERS["environments"]
# Modules of the folder that are not environments.
_OTHER_MODULES = {"worker", "cluster", "tools", "install", "check", "audit", "soundness", "advice", "differences"}


def available() -> list[str]:
    """Names of the environments that can be loaded."""
    return sorted(module.name for module in pkgutil.iter_modules([str(FOLDER)]) if module.name not in _OTHER_MODULES)


def import_part(module_name: str) -> Any:
    """Imports a module of the folder. Raises RegistryError if a user's package is in the folder's place."""
    return registry.import_own_module(f"environments.{module_name}")


def list_reserved(name: str) -> tuple[str, ...]:
    """The splits that must not be learned from, even if they are not evaluated: RESERVED in the environment's file.

    Without such a line there are none, as for splits that are generated without end. For an environment from outside,
    both the named module and the module that defines its `make` are read.
    """
    modules = [module(name), *([sys.modules[complete_name(name).partition(":")[0]]] if name not in available() else [])]
    return tuple(dict.fromkeys(split for source_module in modules for split in vars(source_module).get("RESERVED", ())))


def measures(environment_name: str, groups: Sequence[Group]) -> Mapping[str, Mapping[str, Any]]:
    """Computes further measures of a split's tasks, by `measures` in the file of an environment of the folder.

    Each has `values`, a share for each unit that is drawn, over which its interval is taken, and their number of
    `episodes`. `value` and `count` are those of another mean that it stands for, if there is one.
    """
    return read_own_names(environment_name).get("measures", lambda groups: {})(groups)


def read_own_names(environment_name: str) -> Mapping[str, Any]:
    """What the file of an environment of the folder defines; {} for others, whose names may mean something else."""
    return vars(module(environment_name)) if environment_name in available() else {}


@functools.cache
def register_calls(environment_name: str) -> None:
    """Finds how the text of an action calls a tool in an environment of the folder, for `cojax.signals.tools_of`.

    Making the environment finds it too: this is for programs that only read a run.
    """
    if environment_name in available():
        with contextlib.suppress(ImportError, registry.RegistryError):
            maker(environment_name)


def module(environment_name: str) -> ModuleType:
    """Returns the module of the environment of that name. Raises RegistryError for an unknown one."""
    return sys.modules[maker(environment_name).__module__]


def complete_name(name: str) -> str:
    """Adds `:make` to a name without it; an environment of the folder keeps its own name."""
    return name if ":" in name or name in available() else f"{name}:make"


def maker(name: str) -> Callable[..., Environment]:
    """The function that makes the environment of that name; its keywords are the settings. Raises RegistryError."""
    if name in available():
        CALLS_IN_TEXT[name] = vars(import_part(name)).get("CALL_IN_TEXT", "")
        return import_part(name).make
    if "." not in name and ":" not in name and not _is_module(name):
        hint = registry.suggest_names(name, available())
        raise registry.RegistryError(
            f"environment {name!r} not found; {hint}available: {', '.join(available())}, or package.module:make"
            f" from outside; there is no module {name!r} in {os.getcwd()} or among the installed packages either"
        )
    make: Callable[..., Environment] = registry.find("environment", complete_name(name), {})
    CALLS_IN_TEXT[name] = vars(sys.modules[complete_name(name).partition(":")[0]]).get("CALL_IN_TEXT", "")
    return make


def load(name: str, **settings: Any) -> Environment:
    """Makes the environment of that name. Raises RegistryError if it is unknown, or `make` returns something else."""
    make = maker(name)
    registry.check_call("environment", name, make, (), settings)
    environment = make(**settings)
    if not all(callable(getattr(environment, method, None)) for method in ("tools", "tasks", "start", "phrase")):
        raise registry.RegistryError(
            f"environment {name!r} is of type {type(environment).__name__}; expected what its `make` returns to have "
            "tools, tasks, start and phrase, as ToolEnvironment(…) has"
        )
    return environment


def load_from_json(name: str, settings: Mapping[str, Any]) -> Environment:
    """Makes the environment of that name, from settings as JSON holds them. Raises RegistryError."""
    return load(name, **registry.check_settings("environment", name, maker(name), settings))


def find_function(setting: str, function_name: str) -> Callable[..., Any]:
    """Finds the function that a setting names as package.module:function. Raises RegistryError."""
    if ":" not in function_name:
        raise registry.RegistryError(f"{setting} is {function_name!r}; expected package.module:function")
    return registry.find(setting, function_name, {})


def parse_settings(environment_name: str, text_by_setting: Mapping[str, str]) -> dict[str, Any]:
    """Parses settings of an environment from the texts of flags. Raises RegistryError for one that it does not take."""
    declarations = registry.settings(maker(environment_name))
    value_by_setting = {
        setting: registry.from_text(declarations[setting].annotation, text) if setting in declarations else text
        for setting, text in text_by_setting.items()
    }
    return registry.check_settings("environment", environment_name, maker(environment_name), value_by_setting)


def check_settings(name: str, settings: Mapping[str, Any]) -> None:
    """Raises ValueError for settings from which no environment may be made, and which must not be stored.

    The function `check_settings` of the environment's module decides, if there is one. It gets all settings of `make`,
    with the defaults of those that are not given.
    """
    default_settings = {setting: declaration.default for setting, declaration in registry.settings(maker(name)).items()}
    vars(module(name)).get("examine", lambda **settings: None)(**{**default_settings, **settings})


def _is_module(module_name: str) -> bool:
    """Whether a module of that name can be imported, also from the current folder."""
    try:
        spec = importlib.util.find_spec(module_name) if module_name else None
    except (ValueError, ImportError):
        return False
    return spec is not None or importlib.machinery.PathFinder.find_spec(module_name, [os.getcwd()]) is not None
