"""How figures are written on a page: tables, shares in per cent with their interval, differences in points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown: the head, and rows of as many cells."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def interval(found: Mapping[str, Any]) -> str:
    """A mean share (keys mean, low, high) in per cent, with half the width of its interval where it has one."""
    if found["mean"] is None:
        return "–"
    mean = f"{100 * found['mean']:.1f}"
    return mean if found["low"] is None else f"{mean} ± {100 * (found['high'] - found['mean']):.1f}"


def percent(share: float | None, digits: int = 1) -> str:
    """A share in per cent; a dash where it is not known."""
    return "–" if share is None else f"{100 * share:.{digits}f}"


def points(value: float | None) -> str:
    """A difference of shares in points, with its sign."""
    return "–" if value is None else f"{100 * value:+.1f}"
