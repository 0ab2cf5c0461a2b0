"""What an API instance holds, as JSON: equal instances are equal values, without memory addresses."""

from __future__ import annotations

import math
from typing import Any

from environments.bfcl.calls import brief

# A folder inside itself has no end; what lies deeper is not told.
_DEPTH = 40
_DECIMAL = 10**4000


def portrait(instance: Any) -> dict[str, Any]:
    """The public attributes of an instance, the ones that the official checker compares."""
    return _attributes(instance, 0)


def _attributes(instance: Any, depth: int) -> dict[str, Any]:
    return {
        name: _value(value, depth + 1)
        for name, value in vars(instance).items()
        # A folder's way up is known from where it lies.
        if not name.startswith("_") and name != "parent"
    }


def _value(value: Any, depth: int) -> Any:
    if depth > _DEPTH:
        return "..."
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        # Python writes no number of more than 4,300 digits in decimals.
        return value if abs(value) < _DECIMAL else hex(value)
    if isinstance(value, str):
        return brief(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else f"float:{value!r}"
    if isinstance(value, dict):
        return {key if isinstance(key, str) else f"key:{key!r}": _value(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_value(item, depth + 1) for item in value]
    if isinstance(value, (set, frozenset)):
        return {"set": sorted(map(repr, value))}
    try:
        return {type(value).__name__: _attributes(value, depth)}
    except TypeError:
        return f"{type(value).__name__}:{value!r}"
