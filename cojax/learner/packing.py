"""Sequences → rows: several share a row, told apart by segment ids, so that little is spent on padding."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Segment:
    """One sequence of n tokens before packing. `weights` > 0 is what is learned from; `fields` are columns of the
    batch by name, each an array [n] or one number for all of them. Segments of one `unit` share a micro-batch."""

    name: str
    tokens: Sequence[int]
    weights: np.ndarray
    fields: Mapping[str, Any]
    unit: int


def assign_rows(segments: Sequence[Segment], row_length: int, micro_rows: int) -> list[list[int]]:
    """Rows of indices by first-fit-decreasing: longest unit first, ties in the order given, each into the first place
    with room. Deterministic; for units of one, never more than 11/9 of the fewest rows possible.

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
    room: list[int] = []
    for unit in sorted(units.values(), key=lambda unit: -sum(size[index] for index in unit)):
        found = _first(sorted(unit, key=lambda index: -size[index]), size, room, row_length, micro_rows)
        if found is None:
            raise ValueError(
                f"{segments[unit[0]].name} and what it is compared with have {sum(size[i] for i in unit)} tokens, and "
                f"must share a micro-batch of {micro_rows} × {row_length}; raise micro_rows to {len(unit)} or more"
            )
        for index, row in found:
            while row >= len(rows):
                rows.append([])
                room.append(row_length)
            rows[row].append(index)
            room[row] -= size[index]
    return rows


def _first(
    unit: Sequence[int], size: Sequence[int], room: Sequence[int], row_length: int, micro_rows: int
) -> list[tuple[int, int]] | None:
    """(index, row) for each of a unit, in the first micro-batch that holds all of it; None where none does."""
    for first in range(0, len(room) + micro_rows, micro_rows):
        free = [room[row] if row < len(room) else row_length for row in range(first, first + micro_rows)]
        found: list[tuple[int, int]] = []
        for index in unit:
            row = next((row for row, left in enumerate(free) if left >= size[index]), None)
            if row is None:
                break
            free[row] -= size[index]
            found.append((index, first + row))
        else:
            return found
    return None


def capacity(units: int, size: int, micro_rows: int) -> int:
    """How many rows hold any `units` of `size` sequences each, if a micro-batch holds one: a multiple of
    `micro_rows`."""
    return -(-units // max(1, micro_rows // size)) * micro_rows
