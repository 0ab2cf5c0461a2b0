"""Finds and loads environments: each file here is one, by its name, and offers `make(*, …) -> Environment`.

An environment from outside is named package.module:make, wherever a name is expected.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from cojax import registry
from cojax.environment import Environment

# Modules of this folder that are not environments.
_OTHERS = {"worker", "tools", "install", "check"}


def available() -> list[str]:
    """Names of the environments that can be loaded."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name not in _OTHERS)


def reserved(name: str) -> tuple[str, ...]:
    """The splits from which nothing may be learned, even if they are not evaluated: RESERVED in the environment's file.

    There are none without such a line, as where splits are generated without end. For an environment from outside both
    the named module and the module that defines its `make` are read.
    """
    modules = [module(name), *([sys.modules[name.partition(":")[0]]] if ":" in name else [])]
    return tuple(dict.fromkeys(split for one in modules for split in vars(one).get("RESERVED", ())))


def module(name: str) -> ModuleType:
    """The file of the environment of that name. Raises RegistryError for an unknown one."""
    return sys.modules[maker(name).__module__]


def maker(name: str) -> Callable[..., Environment]:
    """The function that makes the environment of that name; its keywords are the settings. Raises RegistryError."""
    if ":" in name:
        return registry.find("environment", name, {})
    if name not in available():
        raise registry.RegistryError(
            f"environment {name!r} not found; available: {', '.join(available())}, or package.module:make from outside"
        )
    return importlib.import_module(f"environments.{name}").make


def load(name: str, **settings: Any) -> Environment:
    """The environment of that name. Raises RegistryError for an unknown one."""
    return maker(name)(**settings)
