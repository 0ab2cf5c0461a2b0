"""The state of an API instance as JSON: equal instances give equal values, without memory addresses."""

import math
from typing import Any

from .calls import brief

# Calls can put a folder inside itself, or in others many times over: no more values than this are converted.
_DEPTH = 40
_VALUES = 20_000
# Python writes no number of more than 4,300 digits in decimals.
_DECIMAL = 10**4000


def portrait(instance: Any) -> dict[str, Any]:
    """The public attributes of an instance, which the official checker compares."""
    return _Painter().attributes(instance, 0)


class _Painter:
    """Converts one instance, and counts the values so far."""

    def __init__(self) -> None:
        self.values = 0

    def attributes(self, instance: Any, depth: int) -> dict[str, Any]:
        return {
            name: self.value(value, depth + 1)
            for name, value in vars(instance).items()
            # A folder's parent is known from its position.
            if not name.startswith("_") and name != "parent"
        }

    def value(self, value: Any, depth: int) -> Any:
        self.values += 1
        if depth > _DEPTH or self.values > _VALUES:
            return "..."
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            return value if abs(value) < _DECIMAL else hex(value)
        if isinstance(value, str):
            return brief(value)
        if isinstance(value, float):
            return value if math.isfinite(value) else f"float:{value!r}"
        if isinstance(value, dict):
            return {_key(key): self.value(item, depth + 1) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(item, depth + 1) for item in value]
        if isinstance(value, (set, frozenset)):
            return {"set": sorted(map(repr, value))}
        return {type(value).__name__: self.attributes(value, depth)}


def _key(key: Any) -> str:
    """A number and its digits are different keys."""
    return key if isinstance(key, str) else f"key:{key!r}"
