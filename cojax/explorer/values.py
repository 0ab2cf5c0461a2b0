"""What is known of the values in code that is followed and not run; see flow.py."""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

# Characters of a text that is made of known parts, and values that a known container holds in all.
LARGEST, _MOST_HELD = 20_000, 200

Frames = list[dict[str, "Value"]]


@dataclasses.dataclass(frozen=True)
class Value:
    """What is known of a value, if anything: that it is `worked` out, that it is this constant (a list or dict holds
    Values), that it is the environment's object of this `path`, or that it is this function with the `frames` that it
    sees and the defaults of its arguments."""

    worked: bool = False
    known: bool = False
    value: Any = None
    path: tuple[str, ...] = ()
    function: Any = None
    frames: Frames | None = dataclasses.field(default=None, compare=False)
    defaults: Mapping[str, Value] = dataclasses.field(default_factory=dict, compare=False)

    @functools.cached_property
    def leaves(self) -> tuple[Value, ...]:
        """The value, or those that it holds."""
        if not (self.known and isinstance(self.value, (list, dict))):
            return (self,)
        held = self.value.values() if isinstance(self.value, dict) else self.value
        return tuple(leaf for inner in held for leaf in inner.leaves)

    @functools.cached_property
    def rests(self) -> bool:
        """Whether it, or some of what it holds, is worked out."""
        return any(leaf.worked for leaf in self.leaves)


@dataclasses.dataclass(frozen=True)
class Answer:
    """What an ending call was given, and how the code spells it."""

    value: Value
    source: str

    @property
    def leaves(self) -> tuple[Value, ...]:
        return self.value.leaves


WORKED, NEITHER, NONE = Value(worked=True), Value(), Value(known=True)


def made(*parts: Value) -> Value:
    """What an expression makes of its parts, its value not being known."""
    return WORKED if any(part.rests for part in parts) else NEITHER


def held(inner: list[Value] | dict[Any, Value]) -> Value:
    """A container of these; one that holds very many is not kept apart."""
    parts = list(inner.values()) if isinstance(inner, dict) else inner
    if sum(len(part.leaves) for part in parts) > _MOST_HELD:
        return made(*parts)
    return Value(known=True, value=inner)


def either(one: Value, other: Value, chosen: bool) -> Value:
    """One of two values; `chosen` where a worked-out condition decides which."""
    if one == other:
        return one
    return WORKED if chosen or (one.rests and other.rests) else NEITHER


def element(value: Value) -> Value:
    """Any one of what a value holds."""
    if value.known and isinstance(value.value, list) and value.value:
        found = value.value[0]
        for inner in value.value[1:]:
            found = either(found, inner, chosen=False)
        return found
    return made(value)


def constant(value: Any) -> Value:
    return Value(known=True, value=value) if isinstance(value, (str, int, float, type(None))) else NEITHER


def scalar(value: Value) -> bool:
    return value.known and not isinstance(value.value, (list, dict))


def total(one: Value, other: Value) -> Value:
    """The sum of two values."""
    left, right = one.value, other.value
    if one.known and other.known:
        if isinstance(left, str) and isinstance(right, str):
            return Value(known=True, value=left + right) if len(left) + len(right) <= LARGEST else NEITHER
        if isinstance(left, list) and isinstance(right, list):
            return held(left + right)
        if all(isinstance(v, (int, float)) and abs(v) < 1e15 for v in (left, right)):
            return Value(known=True, value=left + right)
    return made(one, other)


def small(value: Value) -> bool:
    """Whether a value is known, and small enough to be written out."""
    return scalar(value) and (not isinstance(value.value, int) or abs(value.value) < 10**100)


def joined(parts: Sequence[Value], between: str) -> Value:
    """The text of known parts."""
    if not all(map(small, parts)):
        return made(*parts)
    text = between.join(str(part.value) for part in parts)
    return Value(known=True, value=text) if len(text) <= LARGEST else NEITHER


def entry(owner: Value, index: Value) -> Value:
    if owner.path:
        return Value(path=(*owner.path, str(index.value) if small(index) else "?"))
    if owner.known and scalar(index):
        try:
            found = owner.value[index.value]
        except (TypeError, LookupError, ValueError):
            return made(owner)
        return found if isinstance(found, Value) else constant(found)
    return made(owner, index)


def signed(value: Value, op: ast.unaryop) -> Value:
    if scalar(value):
        if isinstance(op, ast.Not):
            return Value(known=True, value=not value.value)
        if isinstance(op, ast.USub) and isinstance(value.value, (int, float)):
            return Value(known=True, value=-value.value)
    return made(value)


def compared(values: Sequence[Value], ops: Sequence[ast.cmpop]) -> Value:
    if len(values) == 2 and all(map(scalar, values)):
        one, other = values[0].value, values[1].value
        if isinstance(ops[0], (ast.Eq, ast.Is)):
            return Value(known=True, value=one == other)
        if isinstance(ops[0], (ast.NotEq, ast.IsNot)):
            return Value(known=True, value=one != other)
    return made(*values)


def spelled(node: ast.Call) -> str:
    """How the code gives its answer; only shown, so that what cannot be spelled is left out."""
    given = next((k.value for k in node.keywords if k.arg in ("answer", None)), node.args[0] if node.args else node)
    try:
        return ast.unparse(given)
    except (RecursionError, ValueError):
        return "…"
