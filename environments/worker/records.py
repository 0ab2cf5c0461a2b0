"""Reads the values of a worker, which is not trusted, as records; a value must match its record exactly."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any

from cojax.environment import EpisodeFailure
from cojax.types import Message


class Malformed(EpisodeFailure):
    """A reply is not a record of the expected kind."""


@dataclasses.dataclass(frozen=True)
class Opening:
    """The reply to `reset`."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]


def read(kind: Any, value: Any) -> Any:
    """The JSON value of a worker as a record of type `kind`. Raises Malformed where it is none."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if dataclasses.is_dataclass(kind):
        return _record(typing.cast(type, kind), value)
    if origin is tuple:
        return tuple(read(inner[0], item) for item in _checked(list, value))
    if origin in (types.UnionType, typing.Union):
        return None if value is None else read(next(one for one in inner if one is not type(None)), value)
    if origin is typing.Literal:
        if not isinstance(value, str) or value not in inner:
            raise Malformed(f"found {value!r:.50}, expected one of {', '.join(map(str, inner))}")
        return value
    if origin is not None:
        return _checked(dict, value)
    return value if kind is float and type(value) is int else _checked(kind, value)


def _record(kind: type, value: Any) -> Any:
    hints = _hints(kind)
    if unknown := _checked(dict, value).keys() - hints:
        raise Malformed(f"{kind.__name__} has no field {min(unknown)!r:.50}; it has {', '.join(hints)}")
    try:
        return kind(**{name: read(hints[name], item) for name, item in value.items()})
    except TypeError as error:
        raise Malformed(str(error)[:200]) from error


def _checked(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise Malformed(f"found {type(value).__name__}, expected {kind.__name__}")
    return value


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)
