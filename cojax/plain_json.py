"""Records as plain JSON values, and back."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any

_hints = functools.cache(typing.get_type_hints)


def to_json(record: Any) -> Any:
    """A record as plain JSON values."""
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        return {field.name: to_json(getattr(record, field.name)) for field in dataclasses.fields(record)}
    if isinstance(record, Mapping):
        return {str(key): to_json(value) for key, value in record.items()}
    if isinstance(record, (list, tuple)):
        return [to_json(item) for item in record]
    return record


def from_json(kind: Any, value: Any) -> Any:
    """The record of type `kind` that `to_json` wrote as `value`. Unknown keys raise TypeError."""
    origin = typing.get_origin(kind)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = _hints(kind)
        if unknown := set(value) - set(hints):
            raise TypeError(f"{kind.__name__} has no field {sorted(unknown)}; it has {sorted(hints)}")
        return kind(**{name: from_json(hints[name], item) for name, item in value.items()})
    if origin is tuple:
        return tuple(from_json(typing.get_args(kind)[0], item) for item in value)
    if origin in (types.UnionType, typing.Union):
        inner = next(arg for arg in typing.get_args(kind) if arg is not type(None))
        return None if value is None else from_json(inner, value)
    return value
