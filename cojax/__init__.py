"""cojax: agent and task set evolve together."""

import importlib
from typing import Any

__version__ = "0.1.0"
# The stable names; docs/api.md describes them, __init__.pyi has their types.
__all__ = ["OpenRun", "Records", "RunFailed", "Training", "evaluate", "load", "open_run", "steps", "train"]

# Public name → module, imported when the name is asked for: importing cojax.types must import no JAX.
_MODULE_BY_NAME = {
    "OpenRun": "cojax.api.training",
    "Records": "cojax.api.training",
    "RunFailed": "cojax.api.process",
    "Training": "cojax.api.training",
    "evaluate": "cojax.api.training",
    "load": "cojax.policy.pretrained",
    "open_run": "cojax.api.training",
    "steps": "cojax.api.training",
    "train": "cojax.api.training",
}


def __getattr__(name: str) -> Any:
    if name in _MODULE_BY_NAME:
        return getattr(importlib.import_module(_MODULE_BY_NAME[name]), name)
    if name == "load_environment":  # beside the names of __all__, which stay as they are
        return importlib.import_module("cojax.worlds").load
    raise AttributeError(f"module 'cojax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_BY_NAME, "load_environment"})
