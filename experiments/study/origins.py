"""What the tasks of each origin were worth, what finding them cost, and how well their success was predicted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cojax.report.lineage import histories
from cojax.report.origins import PREDICTORS, worth
from cojax.report.run import Run

# Of an origin: groups played of its tasks, those of them that were live, and actions of the explorer to find them.
ORIGIN_COUNTS = ("groups", "live", "actions")
# Of an origin, where it is known: how many tools its tasks were the first to solve, and the mean norm of the gradient
# of the steps that its live groups were in.
ORIGIN_MEASURES = ("solved", "norm")
WORTH_HEAD = (
    "arm", "origin", "groups", "live", "share", "explorer's actions", "a live group", "tools first solved",
    "norm of its steps",
)  # fmt: skip
PREDICTED_HEAD = ("arm", "predicted by", "rank correlation", "runs", "tasks")
_DIGITS = 6


def worth_of(run: Run) -> dict[str, Any]:
    """The keys `origins` and `predicted` of a run's record, D_0's tasks included.

    `origins` has ORIGIN_COUNTS and ORIGIN_MEASURES by origin; a measure that is not known is None. `predicted` has for
    each of PREDICTORS that predicted the success of a task Spearman's `rho` of predicted and realised success, None
    where it is not given, and the number of `tasks`.
    """
    found = worth(run, histories(run))
    return {
        "origins": {
            row["origin"]: {
                "groups": row["groups"] or 0,
                "live": row["live"] or 0,
                "actions": row["explored"][1],
                "solved": None if row["solved"] is None else len(row["solved"]),
                "norm": None if row["norm"] is None else round(row["norm"], _DIGITS),
            }
            for row in found["rows"]
        },
        "predicted": {
            name: {"rho": None if one["rho"] is None else round(one["rho"], _DIGITS), "tasks": one["pairs"]}
            for name, one in found["ranks"].items()
            if one["pairs"]
        },
    }


def mean_worth(records: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Means over an arm's records by origin; {} unless all records have the counts.

    A count is 0 where a record does not have the origin. A measure is a mean over the records that know it, and None
    where none does.
    """
    if not all("origins" in record for record in records):
        return {}
    names = sorted({origin for record in records for origin in record["origins"]})
    every = {name: [record["origins"].get(name, {}) for record in records] for name in names}
    return {
        origin: {
            **{name: sum(one.get(name, 0) for one in of) / len(records) for name in ORIGIN_COUNTS},
            **{name: _mean([one.get(name) for one in of]) for name in ORIGIN_MEASURES},
        }
        for origin, of in every.items()
    }


def mean_predicted(records: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float | None]]:
    """For each predictor: the mean `rho` over the runs that give one, their number, and the mean number of tasks."""
    found: dict[str, dict[str, float | None]] = {}
    for name in PREDICTORS:
        known = [one[name] for record in records if name in (one := record.get("predicted", {}))]
        given = [one for one in known if one["rho"] is not None]
        if known:
            tasks = sum(one["tasks"] for one in known) / len(known)
            found[name] = {"rho": _mean([one["rho"] for one in given]), "runs": len(given), "tasks": tasks}
    return found


def worth_rows(arms: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """For each arm and origin: groups, live groups and their share, actions of the explorer, those a live group, tools
    first solved, the norm."""
    return [
        (
            arm["title"],
            origin,
            f"{one['groups']:,.0f}",
            f"{one['live']:,.0f}",
            f"{100 * one['live'] / one['groups']:.0f} %" if one["groups"] else "–",
            f"{one['actions']:,.0f}",
            f"{one['actions'] / one['live']:.1f}" if one["live"] else "–",
            "–" if one.get("solved") is None else f"{one['solved']:.1f}",
            "–" if one.get("norm") is None else f"{one['norm']:.3f}",
        )
        for arm in arms
        for origin, one in arm.get("origins", {}).items()
    ]


def predicted_rows(arms: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """For each arm and predictor: the mean rank correlation, the runs that give one, and how many tasks a run has."""
    return [
        (
            arm["title"],
            name,
            "–" if one["rho"] is None else f"{one['rho']:+.2f}",
            f"{one['runs']}",
            f"{one['tasks']:,.0f}",
        )
        for arm in arms
        for name, one in arm.get("predicted", {}).items()
    ]


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean of those that are known; None if none is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
