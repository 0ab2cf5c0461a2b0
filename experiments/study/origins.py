"""What the tasks of each origin were worth: how many of their groups were live, and what finding them cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cojax.report.origins import explored_by_origin, groups_by_origin

# Of an origin: groups played of its tasks, those of them that were live, and actions of the explorer to find them.
COUNTS = ("groups", "live", "actions")


def worth_of(
    metrics: Iterable[Mapping[str, Any]], expeditions: Iterable[Mapping[str, Any]]
) -> dict[str, dict[str, int]]:
    """The counts of a run by origin, from the lines of metrics.jsonl and expeditions.jsonl, D_0's included."""
    parts = groups_by_origin(metrics), explored_by_origin(expeditions)
    names = sorted({origin for part in parts for origin in part})
    return {origin: {name: sum(part[origin][name] for part in parts if origin in part) for name in COUNTS}
            for origin in names}  # fmt: skip


def mean_worth(records: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Means over an arm's records by origin, 0 where a record has none; {} unless all records have the counts."""
    if not all("origins" in record for record in records):
        return {}
    names = sorted({origin for record in records for origin in record["origins"]})
    return {
        origin: {
            name: sum(record["origins"].get(origin, {}).get(name, 0) for record in records) / len(records)
            for name in COUNTS
        }
        for origin in names
    }


def worth_rows(arms: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """For each arm and origin: groups, live groups and their share, actions of the explorer, and those a live group."""
    return [
        (
            arm["title"],
            origin,
            f"{one['groups']:,.0f}",
            f"{one['live']:,.0f}",
            f"{100 * one['live'] / one['groups']:.0f} %" if one["groups"] else "–",
            f"{one['actions']:,.0f}",
            f"{one['actions'] / one['live']:.1f}" if one["live"] else "–",
        )
        for arm in arms
        for origin, one in arm.get("origins", {}).items()
    ]


WORTH_HEAD = ("arm", "origin", "groups", "live", "share", "explorer's actions", "a live group")
