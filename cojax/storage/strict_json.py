"""Strict JSON: refuses what Python's reader takes and the format has not, such as NaN, and nesting beyond a bound."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any, NoReturn


class NestedTooDeeply(ValueError):
    """Brackets nest deeper than the bound of the reader."""


def parse_json(text: str, *, depth: int | None = None, finite: bool = True) -> Any:
    """The value of a JSON text.

    Numbers beyond the range of a float, such as 1e999, are refused if `finite`; the check costs time at every float.
    Raises NestedTooDeeply where brackets nest deeper than `depth`, and ValueError for any other text that is not JSON.
    """
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite if finite else None)
    except RecursionError as error:
        raise ValueError("its JSON is too deep") from error
    if depth is not None and _nesting(text) > depth:
        raise NestedTooDeeply(f"nested deeper than {depth}")
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number} is too large")
    return value


def _nesting(text: str) -> int:
    """How deep brackets nest. Those inside strings count too, so it is never too small."""
    return max(itertools.accumulate(1 if c in "[{" else -1 if c in "]}" else 0 for c in text), default=0)
