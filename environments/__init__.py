"""Environments: the file name is the environment's name, and each file offers `make(*, …) -> Environment`.

One from outside is named as package.module:make, wherever a name stands.
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
_OTHERS = {"worker", "install", "check"}


def available() -> list[str]:
    """Names of the environments that can be loaded."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name not in _OTHERS)


def reserved(name: str) -> tuple[str, ...]:
    """The splits of which no task may be learned, whether or not it is evaluated: RESERVED in the environment's file.

    None where it has no such line, as where splits are generated without end. Of one from outside, the module that is
    named may have that line too: what it takes from elsewhere keeps it.
    """
    modules = [module(name), *([sys.modules[name.partition(":")[0]]] if ":" in name else [])]
    return tuple(dict.fromkeys(split for one in modules for split in vars(one).get("RESERVED", ())))


def module(name: str) -> ModuleType:
    """The file of the environment of that name. Raises RegistryError for an unknown one."""
    return sys.modules[maker(name).__module__]


def maker(name: str) -> Callable[..., Environment]:
    """What makes the environment of that name, by settings that are its keywords. Raises RegistryError."""
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
