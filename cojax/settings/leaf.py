"""What a setting is: a leaf with its default, its range and its meaning; and the ranges by name."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal

from cojax.registry.annotations import Range


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One setting. `range` is an annotation as cojax.registry.annotations reads it."""

    default: Any
    range: Any
    meaning: str


Section = Mapping[str, Leaf]


@dataclasses.dataclass(frozen=True)
class Names:
    """In an annotation: the text is one of these names."""

    names: tuple[str, ...]


def one_of(table: Iterable[str]) -> Any:
    """The range of a setting that names an entry of a table."""
    return Annotated[str, Names(tuple(table))]


def defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """The defaults of a function's keywords, or of a dataclass's fields, by name: a leaf takes its own from here."""
    parameters = inspect.signature(function).parameters.values()
    return {one.name: one.default for one in parameters if one.default is not one.empty}


Count = Annotated[int, Range(1)]
Number = Annotated[int, Range(0)]
Share = Annotated[float, "a share", Range(0.0, 1.0)]
PositiveShare = Annotated[float, "a share", Range(0.0, 1.0, low_open=True)]
Above0 = Annotated[float, Range(0.0, low_open=True)]
AtLeast0 = Annotated[float, Range(0.0)]
AtLeast2 = Annotated[int, Range(2)]
Seconds = Annotated[float, "a number of seconds", Range(0.0, low_open=True)]
Cosine = Annotated[float, "a cosine", Range(0.0, 1.0)]
DType = Literal["", "float32", "bfloat16"]
Matrix = Literal["query", "key", "value", "output", "gate", "up", "down"]
Devices = Annotated[int, Range(1)] | Literal[-1]
