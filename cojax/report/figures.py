"""Data of the page's charts, from the logs of a run."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cojax.report.lineage import TaskHistory
from cojax.report.paired import paired
from cojax.report.run import Json, Run, joined_at, origin_line, task_scores
from cojax.report.verdicts import verdicts_of

POINTS = 1_500  # steps drawn at most
CURVES = (
    "success", "reward", "partial", "live_groups", "loss", "grad_norm", "kl", "clip_fraction", "logprob_mismatch",
    "logprob_mismatch_max", "tasks", "turns",
)  # fmt: skip


def curves(metrics: Sequence[Json]) -> Json:
    """Columns over steps, with None for gaps; `dev` holds the steps evaluated on the development split."""
    rows = evenly(metrics, POINTS)
    return {
        "step": [row["step"] for row in rows],
        **{name: [_number(row.get(name)) for row in rows] for name in CURVES},
        "dev": [[row["step"], _number(row["dev"]["success"])] for row in metrics if row.get("dev")],
    }


def agents(metrics: Sequence[Json]) -> Json:
    """Columns over steps of a run that learns in rounds: shares of what each agent played, None for gaps; else {}.

    `success` and `hard` (hard negatives) are shares of an agent's episodes, `partial` is their mean partial reward.
    """
    rows = [row for row in evenly(metrics, POINTS) if "preference" in row]
    found = {name: [row["preference"].get(name, {}) for row in rows] for name in ("target", "second")}
    columns = {
        name: {
            "success": [_number(one.get("success")) for one in played],
            "partial": [_number(one.get("partial")) for one in played],
            "hard": [one["hard"] / one["episodes"] if one.get("episodes") else None for one in played],
        }
        for name, played in found.items()
        if any(played)
    }
    if not columns:
        return {}
    distance = [_number(one.get("distance")) for one in found["second"]]
    return {"step": [row["step"] for row in rows], **columns, "distance": distance}


def evolutions(run: Run) -> list[Json]:
    """One record per evolution: the signals since the last one, the verdicts, the new tasks by origin."""
    records: list[Json] = []
    detected: Counter[str] = Counter()
    for row in run.metrics:
        evolution = row.get("evolution")
        # An evolution that ran in the background of this step has not seen its signals.
        in_background = evolution is not None and evolution_step(row) < row["step"]
        if not in_background:
            detected.update(row.get("signals", {}))
        if evolution is not None:
            records.append(
                {
                    "step": evolution_step(row),
                    "signals": dict(detected),
                    "verdicts": verdicts_of(evolution),
                    "added": evolution["added"],
                }
            )
            detected.clear()
        if in_background:
            detected.update(row.get("signals", {}))
    if detected:  # no evolution has used them, or not yet
        records.append({"step": run.metrics[-1]["step"], "signals": dict(detected), "open": True})
    return records


def evolution_step(row: Json) -> int:
    """The last step whose signals the evolution in this row of metrics.jsonl had seen."""
    return row["evolution"].get("step", row["step"])


def pool(run: Run) -> Json:
    """Tasks of each origin in the pool at each step, from the pool's log."""
    joined = [(joined_at(task), task["origin"]) for task in run.tasks.values()]
    steps = [0, *(row["step"] for row in evenly(run.metrics, POINTS))]
    origins = list(dict.fromkeys(origin for _, origin in sorted(joined, key=lambda item: item[0])))
    added = {origin: Counter(step for step, source in joined if source == origin) for origin in origins}
    return {"step": steps, "origins": {origin: _cumulative(added[origin], steps) for origin in origins}}


def totals(run: Run) -> Json:
    """Seconds, outcomes, signals and verdicts of the run, from its summary or summed over the steps so far."""
    summed: dict[str, Counter[str]] = {name: Counter() for name in ("seconds", "outcomes", "signals", "verdicts")}
    for row in run.metrics:
        for name in ("seconds", "outcomes", "signals"):
            summed[name].update(row.get(name, {}))
        if "evolution" in row:
            summed["verdicts"].update(verdicts_of(row["evolution"]))
    return {name: run.summary.get(name) or dict(counts) for name, counts in summed.items()}


def headline(run: Run) -> Json:
    """The figures at the top of the page; None for those that the run has not reached."""
    last = run.metrics[-1] if run.metrics else {}
    dev = [row["dev"]["success"] for row in run.metrics if row.get("dev")]
    gain = paired(task_scores(run.zero_shot), task_scores(run.final))
    return {
        "finished": bool(run.summary),
        "policy": origin_line(run.origin) if run.origin else "",
        "zero_shot": run.summary.get("zero_shot", run.zero_shot.get("success")),
        "final": run.summary.get("final", run.final.get("success")),
        "gain": dataclasses.asdict(gain) if gain else None,
        "dev": [dev[0], dev[-1] if len(dev) > 1 else None] if dev else None,
        "step": run.summary.get("steps", last.get("step", 0)),
        "steps": run.config.get("config", {}).get("steps"),
        "tasks_initial": run.summary.get("tasks_initial", len(run.tasks) - len(run.synthesized)),
        "tasks_final": run.summary.get("tasks_final", len(run.tasks)),
        "tokens": run.summary.get("tokens"),
    }


def first_and_last_success(histories: Iterable[TaskHistory]) -> list[Json]:
    """Mean success of the tasks at their first and at their last visit, by origin, of those visited at least twice."""
    pairs: dict[str, list[tuple[float, float]]] = {}
    for task in histories:
        if len(task.visits) >= 2:
            pairs.setdefault(task.origin, []).append((task.visits[0].success, task.visits[-1].success))
    return [
        {
            "origin": origin,
            "tasks": len(found),
            "first": sum(first for first, _ in found) / len(found),
            "last": sum(last for _, last in found) / len(found),
        }
        for origin, found in pairs.items()
    ]


def evenly(items: Sequence[Any], count: int) -> list[Any]:
    """At most `count` items, evenly spaced, the first and the last among them."""
    if len(items) <= count:
        return list(items)
    return [items[round(place * (len(items) - 1) / (count - 1))] for place in range(count)]


def _cumulative(added: Mapping[int, int], steps: Sequence[int]) -> list[int]:
    """The number of tasks added up to each of these steps; `added` counts them by step."""
    joined = sorted(added)
    total, place, counts = 0, 0, []
    for step in steps:
        while place < len(joined) and joined[place] <= step:
            total += added[joined[place]]
            place += 1
        counts.append(total)
    return counts


def _number(value: Any) -> float | None:
    """The number, or None, a gap, for NaN and infinity, which JSON cannot hold."""
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None
