"""Checks and converts the values of settings by their annotations.

An annotation is bool, int, float, str, Literal["a", "b"], tuple[...], an Optional of these, or
Annotated[float, Range(low, high)]. A text in an Annotated, such as "a share", describes the number in errors.
"""

import ast
import contextlib
import dataclasses
import functools
import math
import types
import typing
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:  # an environment's interpreter has no pydantic, so it is imported where values are checked
    import pydantic
    from pydantic_core import CoreSchema


class RegistryError(ValueError):
    """There is no such entry, it has no such setting, or the setting has no such value. The message is one line."""


@dataclasses.dataclass(frozen=True)
class Range:
    """The numbers from `low` to `high`. An open end is excluded; an end that is None sets no bound."""

    low: float | None = None
    high: float | None = None
    low_open: bool = False
    high_open: bool = False

    def __contains__(self, value: float) -> bool:
        """NaN is in no range. Infinity is in a range only where it is an end."""
        # A whole number is finite, and may be too large for a float.
        if not (isinstance(value, int) or math.isfinite(value) or value in (self.low, self.high)):
            return False
        is_above = self.low is None or value > self.low or (value == self.low and not self.low_open)
        is_below = self.high is None or value < self.high or (value == self.high and not self.high_open)
        return is_above and is_below

    def __get_pydantic_core_schema__(self, source: Any, handler: "pydantic.GetCoreSchemaHandler") -> "CoreSchema":
        from pydantic_core.core_schema import no_info_after_validator_function

        return no_info_after_validator_function(self._check_bounds, handler(source))

    def _check_bounds(self, value: Any) -> Any:
        """Returns the value. Raises ValueError for a number, or one of a tuple, out of range; text is never out."""
        numbers = value if isinstance(value, tuple) else (value,)
        if any(isinstance(number, (int, float)) and number not in self for number in numbers):
            raise ValueError
        return value

    def __str__(self) -> str:
        if None not in (self.low, self.high) and not (self.low_open or self.high_open):
            return f"from {self.low:g} to {self.high:g}"
        low = None if self.low is None else f"above {self.low:g}" if self.low_open else f"at least {self.low:g}"
        high = None if self.high is None else f"below {self.high:g}" if self.high_open else f"at most {self.high:g}"
        return " and ".join(bound for bound in (low, high) if bound)


def convert_setting(setting: str, annotation: Any, value: Any) -> Any:
    """Converts the value to the annotated type. Raises RegistryError, which names the setting, if it is not allowed."""
    try:
        return _convert(annotation, value)
    except ValueError:
        size_note = ", of 64 bits" if isinstance(value, int) and abs(value) > LARGEST_NUMBER else ""
        raise RegistryError(f"{setting} is {quote(value)}; expected {say_type(annotation)}{size_note}") from None


def quote(value: object) -> str:
    """Formats a value for an error: its repr, shortened if it is long."""
    if isinstance(value, int) and abs(value) > 10**_MAX_QUOTED:
        return "a whole number of very many digits"
    try:
        text = " ".join(repr(value).split())
    except (ValueError, RecursionError):  # a whole number in it has too many digits, or it is nested too deep
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= _MAX_QUOTED else f"{text[: _MAX_QUOTED // 2]}…{text[-_MAX_QUOTED // 4 :]}"


def from_text(annotation: Any, text: str) -> Any:
    """Parses the text of a flag as the value of a setting with this annotation."""
    if annotation is not Any:
        with contextlib.suppress(ValueError):
            _convert(annotation, text)
            return text
    if text.lower() in _FLAG_WORDS:
        return _FLAG_WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def say_type(annotation: Any) -> str:
    """Describes in words the values that an annotation allows."""
    outer_type, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if outer_type is typing.Annotated:
        texts = [argument for argument in arguments[1:] if isinstance(argument, str)] or [say_type(arguments[0])]
        return " ".join([texts[0], *(str(argument) for argument in arguments[1:] if isinstance(argument, Range))])
    if outer_type is Literal:
        return "one of " + ", ".join(map(repr, arguments)) if len(arguments) > 1 else repr(arguments[0])
    if outer_type in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(say_type, arguments)))
    if outer_type is tuple or annotation is tuple:
        if not arguments:
            return "a tuple"
        is_variadic = arguments[-1] is ...
        item_text = say_type(arguments[0]) if is_variadic else ", ".join(map(say_type, arguments))
        return f"a tuple, each of it {item_text}" if is_variadic else f"a tuple of {item_text}"
    return _TYPE_WORDS.get(annotation, f"a value that no flag can set ({annotation})")


# The largest whole number of a setting: nothing can compute with a larger one.
LARGEST_NUMBER = 2**63 - 1
# Characters of a value that an error shows.
_MAX_QUOTED = 200
# Words of flags for values that Python writes in another way.
_FLAG_WORDS = {"true": True, "false": False, "none": None}
_TYPE_WORDS = {
    bool: "True or False", int: "a whole number", float: "a number", str: "text", type(None): "None",
    None: "None", Any: "anything finite",
}  # fmt: skip


def _convert(annotation: Any, value: Any) -> Any:
    """Converts the value to the annotated type. Raises ValueError if it is not allowed.

    A whole number is also a float; True is neither. NaN and infinity are refused, because config.json cannot hold
    them, and whole numbers of more than 64 bits.
    """
    from pydantic.errors import PydanticUserError

    try:
        converted_value = _make_adapter(annotation).validate_python(value if annotation is Any else _to_tuples(value))
    except (PydanticUserError, RecursionError) as error:  # an annotation, or a value, that no flag has
        raise ValueError from error
    if not _is_allowed(value, converted_value):
        raise ValueError
    return converted_value


@functools.cache
def _make_adapter(annotation: Any) -> "pydantic.TypeAdapter[Any]":
    from pydantic import ConfigDict, TypeAdapter

    return TypeAdapter(annotation, config=ConfigDict(strict=True, allow_inf_nan=False))


def _to_tuples(value: Any) -> Any:
    """Lists as tuples, at every depth: JSON has no tuples."""
    return tuple(map(_to_tuples, value)) if isinstance(value, (list, tuple)) else value


def _is_allowed(value: Any, converted_value: Any) -> bool:
    """Whether a number is finite, has at most 64 bits, and was not made from a truth value or a fraction."""
    if isinstance(converted_value, (list, tuple)):
        return all(map(_is_allowed, value, converted_value))
    if isinstance(converted_value, float):
        return math.isfinite(converted_value) and not isinstance(value, bool)
    if isinstance(converted_value, int):
        is_same_kind = isinstance(value, bool) == isinstance(converted_value, bool) and not isinstance(value, float)
        return is_same_kind and -LARGEST_NUMBER - 1 <= converted_value <= LARGEST_NUMBER
    return True
