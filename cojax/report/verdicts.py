"""What became of the drafts of an evolution, from its record in metrics.jsonl."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from cojax.types import Status

NOT_ADMITTED = "not admitted"


def verdicts_of(evolution: Mapping[str, Any]) -> dict[str, int]:
    """The number of drafts by verdict. With a probe, the valid tasks that it left out are NOT_ADMITTED.

    The record counts these among the discarded.
    """
    counts = {status: evolution[status] for status in get_args(Status)}
    if "candidates" not in (probe := evolution.get("probe") or {}):
        return counts
    left_out = probe["candidates"] - sum(evolution["added"].values())
    return {**counts, "discarded": counts["discarded"] - left_out, NOT_ADMITTED: left_out}


def probed(probe: Mapping[str, int]) -> str:
    """How much a probe tried, in words."""
    return f"{probe['candidates']:,} valid tasks tried in {probe['episodes']:,} episodes"
