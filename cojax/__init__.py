"""cojax: agent and task set evolve together."""

import importlib
from typing import Any

__version__ = "0.1.0"
# The stable names; docs/api.md describes them, __init__.pyi has their types.
__all__ = ["OpenRun", "Records", "RunFailed", "Training", "evaluate", "load", "open_run", "steps", "train"]

# Public name → module, imported when the name is asked for: importing cojax.types must import no JAX. After a colon
# stands the name there, if it is another.
_PUBLIC = {
    "OpenRun": "cojax.api.runs",
    "Records": "cojax.api.runs",
    "RunFailed": "cojax.api.process",
    "Training": "cojax.api.training",
    "evaluate": "cojax.api.training",
    "load": "cojax.policy.pretrained",
    "load_environment": "cojax.worlds:load",
    "open_run": "cojax.api.runs",
    "steps": "cojax.api.training",
    "train": "cojax.api.training",
}


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        module, _, other = _PUBLIC[name].partition(":")
        return getattr(importlib.import_module(module), other or name)
    raise AttributeError(f"module 'cojax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
