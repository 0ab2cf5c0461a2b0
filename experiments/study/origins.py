"""What the tasks of each origin were worth: how many of their groups were live, and what finding them cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# Of an origin: groups played of its tasks, those of them that were live, and actions of the explorer to find them.
COUNTS = ("groups", "live", "actions")


def worth_of(
    metrics: Iterable[Mapping[str, Any]], expeditions: Iterable[Mapping[str, Any]]
) -> dict[str, dict[str, int]]:
    """The counts of a run by origin, from the lines of metrics.jsonl and expeditions.jsonl, D_0's included."""
    found: dict[str, Counter[str]] = {}
    for row in metrics:
        for origin, counts in row.get("origins", {}).items():
            found.setdefault(origin, Counter()).update(counts)
    for one in expeditions:
        found.setdefault(one["origin"], Counter())["actions"] += sum(run["actions"] for run in one["runs"])
    return {origin: {name: found[origin][name] for name in COUNTS} for origin in sorted(found)}


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
