"""Packs sequences into rows: several share a row, with a segment id each, so that little of it is padding."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Segment:
    """One sequence of n tokens before packing.

    Tokens with `weights` > 0 are learned from. `fields` are columns of the batch by name, each an array [n] or one
    number for all tokens. Segments of one `unit` share a micro-batch.
    """

    name: str
    tokens: Sequence[int]
    weights: np.ndarray
    fields: Mapping[str, Any]
    unit: int


def assign_rows(segments: Sequence[Segment], row_length: int, micro_rows: int) -> list[list[int]]:
    """Assigns segments to rows by first-fit-decreasing; returns the indices of the segments of each row.

    The longest unit comes first, ties in the order given; each goes into the first rows that have space. The result is
    deterministic. For units of one segment it has at most 11/9 of the fewest rows possible.

    Raises ValueError for a sequence longer than a row, and for a unit that no micro-batch of `micro_rows` rows holds.
    """
    units: dict[int, list[int]] = {}
    for index, segment in enumerate(segments):
        units.setdefault(segment.unit, []).append(index)
        if len(segment.tokens) > row_length:
            raise ValueError(
                f"{segment.name} has {len(segment.tokens)} tokens, a training row holds {row_length}; "
                "raise row_length to the engine's context length, or allow fewer turns or tokens an episode"
            )
    size = [len(segment.tokens) for segment in segments]
    rows: list[list[int]] = []
    free: list[int] = []
    for unit in sorted(units.values(), key=lambda unit: -sum(size[index] for index in unit)):
        found = _fit_unit(sorted(unit, key=lambda index: -size[index]), size, free, row_length, micro_rows)
        if found is None:
            raise ValueError(
                f"{segments[unit[0]].name} and those it is compared with have {sum(size[i] for i in unit)} tokens, and "
                f"must share a micro-batch of {micro_rows} × {row_length}; raise micro_rows to {len(unit)} or more"
            )
        for index, row in found:
            while row >= len(rows):
                rows.append([])
                free.append(row_length)
            rows[row].append(index)
            free[row] -= size[index]
    return rows


def _fit_unit(
    unit: Sequence[int], size: Sequence[int], free: Sequence[int], row_length: int, micro_rows: int
) -> list[tuple[int, int]] | None:
    """(index, row) for each segment of a unit, in the first micro-batch that holds all of them; None if none does."""
    for first in range(0, len(free) + micro_rows, micro_rows):
        left_in = [free[row] if row < len(free) else row_length for row in range(first, first + micro_rows)]
        found: list[tuple[int, int]] = []
        for index in unit:
            row = next((row for row, left in enumerate(left_in) if left >= size[index]), None)
            if row is None:
                break
            left_in[row] -= size[index]
            found.append((index, first + row))
        else:
            return found
    return None


def capacity(units: int, size: int, micro_rows: int) -> int:
    """The number of rows, a multiple of `micro_rows`, that suffices for any `units` units of `size` sequences.

    Each unit must fit into one micro-batch.
    """
    return -(-units // max(1, micro_rows // size)) * micro_rows
