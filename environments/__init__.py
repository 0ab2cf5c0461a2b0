"""Environments: the file name is the environment's name, and each file offers `make(**settings) -> Environment`."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from cojax.environment import Environment

# Modules of this folder that are not environments.
_OTHERS = {"worker", "install", "check"}


def available() -> list[str]:
    """Names of the environments that can be loaded."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name not in _OTHERS)


def reserved(name: str) -> tuple[str, ...]:
    """The splits of which no task may be learned, whether or not it is evaluated: RESERVED in the environment's file.

    None where it has no such line, as where splits are generated without end.
    """
    return tuple(vars(importlib.import_module(f"environments.{name}")).get("RESERVED", ()))


def load(name: str, **settings: Any) -> Environment:
    """The environment of that name. Raises ValueError for an unknown one."""
    if name not in available():
        raise ValueError(
            f"environment {name!r} not found; available: {', '.join(available())}. "
            f"Add environments/{name}.py with make()."
        )
    return importlib.import_module(f"environments.{name}").make(**settings)
