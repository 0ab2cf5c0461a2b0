"""Data of the charts about the task set: quality, lengths, the yield of feedback and its share of the time."""

from __future__ import annotations

from collections import Counter

from cojax.report.figures import POINTS, evenly
from cojax.report.run import Json, Run, expedition_of, joined_at

LONGEST = 16  # actions of a solution that have a bar of their own; longer ones share the last
# Name of a curve → its path in a record of quality.
_FIGURES = {
    "sr_at_k": ("sr_at_k",),
    "ed_rel": ("ed_rel",),
    "similarity": ("max_similarity", "mean"),
    "turns": ("turns",),
}
_PARTS = ("initial", "synthesized")


def quality(run: Run) -> Json:
    """Curves over evolutions, from the start on, of the pool and of its synthesized tasks.

    Also the last distributions of similarity to the evaluation tasks, and the settings of the measurement. Empty where
    a run measured none.
    """
    rows = [
        (row["step"], row["evolution"]["quality"]) for row in run.metrics if row.get("evolution", {}).get("quality")
    ]
    if not rows:
        return {}
    settings = run.config.get("config", {}).get("quality", {})
    last = rows[-1][1]
    start = rows[0][1].get("initial", {})
    return {
        "step": [0, *(step for step, _ in rows)],
        "pool": {name: [_at(start, path), *(_at(row, path) for _, row in rows)] for name, path in _FIGURES.items()},
        "synthesized": {
            name: [None, *(_at(row.get("synthesized", {}), path) for _, row in rows)] for name, path in _FIGURES.items()
        },
        "histogram": {part: _at(last.get(part, {}), ("max_similarity", "histogram")) for part in _PARTS},
        "greatest": {part: _at(last.get(part, {}), ("max_similarity", "max")) for part in _PARTS},
        "compared": last.get("tasks"),
        "tasks": run.metrics[-1].get("tasks"),
        "k": settings.get("k"),
        "embedding": settings.get("model") if settings.get("embedding") == "endpoint" else settings.get("embedding"),
    }


def lengths(run: Run) -> Json:
    """Initial and synthesized tasks by the number of actions of their solution: counts for 1 to LONGEST, and means."""
    found: dict[str, list[int]] = {part: [] for part in _PARTS}
    for task in run.tasks.values():
        if task.get("solution"):
            found["synthesized" if joined_at(task) else "initial"].append(len(task["solution"]))
    counts = {part: Counter(min(length, LONGEST) for length in lengths) for part, lengths in found.items()}
    top = max((length for lengths in found.values() for length in lengths), default=0)
    return {
        "actions": [str(n) if n < LONGEST else f"{LONGEST}+" for n in range(1, min(top, LONGEST) + 1)],
        "counts": {part: [counts[part][n] for n in range(1, min(top, LONGEST) + 1)] for part in _PARTS},
        "mean": {part: sum(lengths) / len(lengths) if lengths else None for part, lengths in found.items()},
    }


def conversion(run: Run) -> Json:
    """From signals to tasks.

    `funnel` counts, by origin, the signals raised (None where the origin is no signal), the expeditions, those that
    brought a task (`fruitful`), the drafts and the tasks. Over evolutions, `pass_rate` is the share of drafts that
    became tasks, and `fruitful` the share of expeditions that brought one.
    """
    raised: Counter[str] = Counter()
    for row in run.metrics:
        raised.update(row.get("signals", {}))
    after = [draft for draft in run.drafts if draft["step"]]
    expeditions = {key: record for key, record in run.expeditions.items() if key[0]}
    brought = {expedition_of(draft) for draft in after if draft.get("task")}
    origins = [kind for kind in run.kinds if raised[kind]]
    origins += sorted({record["origin"] for record in (*after, *expeditions.values())} - set(origins))
    funnel = []
    for origin in origins:
        drafts = [draft for draft in after if draft["origin"] == origin]
        made = {key for key, record in expeditions.items() if record["origin"] == origin}
        funnel.append(
            {
                "origin": origin,
                "signals": raised[origin] if origin in run.kinds else None,
                "expeditions": len(made),
                "fruitful": len(made & brought),
                "drafts": len(drafts),
                "tasks": sum(bool(draft.get("task")) for draft in drafts),
            }
        )
    steps = sorted({draft["step"] for draft in after} | {step for step, _ in expeditions})
    return {"funnel": funnel, "step": steps, **_rates(steps, after, expeditions, brought)}


def feedback(run: Run) -> Json:
    """The share of feedback in the wall time so far, over the steps; None before anything was timed."""
    shares: list[float | None] = []
    spent = total = 0.0
    for row in run.metrics:
        seconds = row.get("seconds", {})
        spent += seconds.get("feedback", 0.0)
        total += seconds.get("total", 0.0)
        shares.append(spent / total if total > 0 else None)
    pairs = evenly(list(zip((row["step"] for row in run.metrics), shares, strict=True)), POINTS)
    return {"step": [step for step, _ in pairs], "share": [share for _, share in pairs]}


def _rates(
    steps: list[int], drafts: list[Json], expeditions: dict[tuple[int, int], Json], brought: set[tuple[int, int] | None]
) -> Json:
    examined = Counter(draft["step"] for draft in drafts)
    accepted = Counter(draft["step"] for draft in drafts if draft.get("task"))
    made = Counter(step for step, _ in expeditions)
    fruitful = Counter(key[0] for key in expeditions if key in brought)
    return {
        "pass_rate": [accepted[step] / examined[step] if examined[step] else None for step in steps],
        "fruitful": [fruitful[step] / made[step] if made[step] else None for step in steps],
    }


def _at(record: Json, path: tuple[str, ...]) -> float | list[int] | None:
    """The value at this path; None where there is none."""
    found: Json | float | list[int] | None = record
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return None if isinstance(found, dict) else found
