"""Checks and converts the values of settings by their annotations.

An annotation is bool, int, float, str, Literal["a", "b"], tuple[...], an Optional of these, or
Annotated[float, Range(low, high)]. A text in an Annotated, such as "a share", describes the number in errors.
"""

from __future__ import annotations

import ast
import dataclasses
import math
import types
import typing
from typing import Any, Literal


class RegistryError(ValueError):
    """There is no such entry, it has no such setting, or the setting has no such value. The message is one line."""


@dataclasses.dataclass(frozen=True)
class Range:
    """The numbers from `low` to `high`. An open end is excluded; an end that is None is no bound."""

    low: float | None = None
    high: float | None = None
    low_open: bool = False
    high_open: bool = False

    def __contains__(self, value: float) -> bool:
        """NaN is in no range. Infinity is in a range only where it is an end."""
        # A whole number is finite, and may be too large for a float.
        if not (isinstance(value, int) or math.isfinite(value) or value in (self.low, self.high)):
            return False
        above = self.low is None or value > self.low or (value == self.low and not self.low_open)
        below = self.high is None or value < self.high or (value == self.high and not self.high_open)
        return above and below

    def __str__(self) -> str:
        if None not in (self.low, self.high) and not (self.low_open or self.high_open):
            return f"from {self.low:g} to {self.high:g}"
        low = None if self.low is None else f"above {self.low:g}" if self.low_open else f"at least {self.low:g}"
        high = None if self.high is None else f"below {self.high:g}" if self.high_open else f"at most {self.high:g}"
        return " and ".join(end for end in (low, high) if end)


def convert_setting(name: str, annotation: Any, value: Any) -> Any:
    """The value converted to the annotated type. Raises RegistryError, naming the setting, if it is not allowed."""
    try:
        return _converted(annotation, value)
    except ValueError:
        largest = ", of 64 bits" if isinstance(value, int) and abs(value) > LARGEST else ""
        raise RegistryError(f"{name} is {shown(value)}; expected {description(annotation)}{largest}") from None


def shown(value: object) -> str:
    """A value in an error: its repr, shortened where it is long."""
    if isinstance(value, int) and abs(value) > 10**_SHOWN:
        return "a whole number of very many digits"
    try:
        text = " ".join(repr(value).split())
    except (ValueError, RecursionError):  # a whole number in it has too many digits, or it is nested too deep
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]}…{text[-_SHOWN // 4 :]}"


def from_text(annotation: Any, text: str) -> Any:
    """The value that the text of a flag means for a setting of this annotation."""
    if annotation is not Any and _converts(annotation, text):
        return text
    if text.lower() in _FLAG_WORDS:
        return _FLAG_WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def description(annotation: Any) -> str:
    """The values that an annotation allows, in words."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        words = [one for one in arguments[1:] if isinstance(one, str)] or [description(arguments[0])]
        return " ".join([words[0], *(str(one) for one in arguments[1:] if isinstance(one, Range))])
    if origin is Literal:
        return "one of " + ", ".join(map(repr, arguments)) if len(arguments) > 1 else repr(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(description, arguments)))
    if origin is tuple or annotation is tuple:
        if not arguments:
            return "a tuple"
        several = arguments[-1] is ...
        inner = description(arguments[0]) if several else ", ".join(map(description, arguments))
        return f"a tuple, each of it {inner}" if several else f"a tuple of {inner}"
    return _WORDS.get(annotation, f"what no flag can say ({annotation})")


# The largest whole number of a setting: more cannot be computed with.
LARGEST = 2**63 - 1
# Characters of a value that an error shows.
_SHOWN = 200
# Words of flags for values that Python writes in another way.
_FLAG_WORDS = {"true": True, "false": False, "none": None}
_WORDS = {
    bool: "True or False", int: "a whole number", float: "a number", str: "text", type(None): "None",
    None: "None", Any: "anything finite",
}  # fmt: skip


def _converted(annotation: Any, value: Any) -> Any:
    """The value converted to the annotated type. Raises ValueError where it is not allowed."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        inner = _converted(arguments[0], value)
        numbers = inner if isinstance(inner, tuple) else () if inner is None or isinstance(inner, str) else (inner,)
        if any(number not in one for one in arguments[1:] if isinstance(one, Range) for number in numbers):
            raise ValueError
        return inner
    if origin is Literal:
        if not any(value == one and type(value) is type(one) for one in arguments):
            raise ValueError
        return value
    if origin in (typing.Union, types.UnionType):
        return _first(arguments, value)
    if origin is tuple or annotation is tuple:
        return _tuple(arguments, value)
    if annotation is Any:
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError
        return value
    if annotation in (None, type(None)):
        if value is not None:
            raise ValueError
        return None
    return _scalar(annotation, value)


def _scalar(annotation: Any, value: Any) -> Any:
    """Converts a value to bool, int, float or str. Raises ValueError for any other value.

    A whole number is a float too; True is neither. NaN and infinity are refused, as config.json cannot hold them, and
    whole numbers of more than 64 bits.
    """
    if annotation not in (bool, int, float, str) or (isinstance(value, bool) and annotation is not bool):
        raise ValueError
    if annotation is float and isinstance(value, int):
        try:
            value = float(value)
        except OverflowError as error:
            raise ValueError from error
    if not isinstance(value, annotation) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError
    if isinstance(value, int) and not -LARGEST - 1 <= value <= LARGEST:
        raise ValueError
    return value


def _first(annotations: tuple[Any, ...], value: Any) -> Any:
    """The value by the first annotation that keeps its type, else by the first that converts it."""
    found = [_converted(one, value) for one in annotations if _converts(one, value)]
    exact = [one for one in found if type(one) is type(value)]
    if not found:
        raise ValueError
    return (exact or found)[0]


def _converts(annotation: Any, value: Any) -> bool:
    try:
        _converted(annotation, value)
    except ValueError:
        return False
    return True


def _tuple(arguments: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    if not isinstance(value, (tuple, list)):
        raise ValueError
    if not arguments:
        return tuple(value)
    if arguments == ((),):
        arguments = ()
    inner = (arguments[0],) * len(value) if arguments and arguments[-1] is ... else arguments
    if len(inner) != len(value):
        raise ValueError
    return tuple(_converted(one, item) for one, item in zip(inner, value, strict=True))
