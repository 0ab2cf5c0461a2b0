"""cojax: agent and task set evolve together."""

import importlib
from typing import Any

__version__ = "0.1.0"

# Public name → module, imported when the name is asked for: importing cojax.types must import no JAX.
_PUBLIC = {"load": "cojax.policy.pretrained"}
__all__ = ["load"]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'cojax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
