"""Held-out success by tool, before training and after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from cojax.report.origins import tools_in
from cojax.report.run import Json, Run

_BY = "success/"


def gains(run: Run) -> Json:
    """A row for each tool: success before training and after it (`last`), in [0, 1], over how many evaluation tasks.

    A task counts for each tool that its solution calls. `added` is the number of synthesized tasks that call the tool.
    Where a run has no success by tool, the rows are of the kinds of `evaluation.by`: on the held-out split, or on the
    development split at its first and last evaluation. `added` and `tasks` are None there. `of` says which it is; there
    are no rows where a run has none of it, or only one evaluation so far.
    """
    first, last = (_by_tool(result) for result in (run.zero_shot, run.final))
    if first and last:
        added = Counter(tool for task in run.synthesized for tool in tools_in(run, task))
        rows = [
            {**_row(tool, first[tool][0], last[tool][0]), "tasks": last[tool][1], "added": added[tool]}
            for tool in sorted(first.keys() & last.keys())
        ]
        return {"of": "tool", "rows": rows}
    by = run.config.get("config", {}).get("evaluation", {}).get("by") or "kind"
    one, other = (run.zero_shot.get("by") or {}, run.final.get("by") or {})
    if one and other:
        return {"of": by, "rows": _rows(one, other)}
    dev = [row["dev"] for row in run.metrics if row.get("dev")]
    if len(dev) < 2:
        return {"of": by, "rows": []}
    return {"of": f"{by}, development split", "rows": _rows(_by_kind(dev[0]), _by_kind(dev[-1]))}


def _by_tool(result: Json) -> dict[str, tuple[float, int]]:
    found = result.get("by_tool") or {}
    return {tool: (one["success"], one["tasks"]) for tool, one in found.items()}


def _by_kind(dev: Mapping[str, Any]) -> dict[str, float]:
    return {name.removeprefix(_BY): success for name, success in dev.items() if name.startswith(_BY)}


def _rows(one: Mapping[str, float], other: Mapping[str, float]) -> list[Json]:
    return [
        {**_row(name, one[name], other[name]), "tasks": None, "added": None}
        for name in sorted(one.keys() & other.keys())
    ]


def _row(name: str, first: float, last: float) -> Json:
    return {"name": name, "first": first, "last": last, "gain": last - first}
