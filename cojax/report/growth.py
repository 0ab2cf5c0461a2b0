"""The numbers behind the charts of the task set: quality, lengths, and what feedback brings and costs."""

from __future__ import annotations

from collections import Counter

from cojax.report.figures import POINTS, evenly
from cojax.report.run import Json, Run, birth, expedition_of

LONGEST = 16  # actions of a solution that have a bar of their own; longer ones share the last
# Of a record of quality: our name → where it stands.
_FIGURES = {
    "sr_at_k": ("sr_at_k",),
    "ed_rel": ("ed_rel",),
    "similarity": ("max_similarity", "mean"),
    "turns": ("turns",),
}
_PARTS = ("initial", "synthesized")


def quality(run: Run) -> Json:
    """Curves over evolutions, the start first, of the pool and of its synthesized tasks; the last distributions of
    similarity to the evaluation tasks; what they were measured with. Empty where a run measured none."""
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
    """Tasks by the actions of their solution, of the start and synthesized: counts by 1 to LONGEST, and means."""
    found: dict[str, list[int]] = {part: [] for part in _PARTS}
    for task in run.tasks.values():
        if task.get("solution"):
            found["synthesized" if birth(task) else "initial"].append(len(task["solution"]))
    counts = {part: Counter(min(length, LONGEST) for length in lengths) for part, lengths in found.items()}
    top = max((length for lengths in found.values() for length in lengths), default=0)
    return {
        "actions": [str(n) if n < LONGEST else f"{LONGEST}+" for n in range(1, min(top, LONGEST) + 1)],
        "counts": {part: [counts[part][n] for n in range(1, min(top, LONGEST) + 1)] for part in _PARTS},
        "mean": {part: sum(lengths) / len(lengths) if lengths else None for part, lengths in found.items()},
    }


def conversion(run: Run) -> Json:
    """From signals to tasks. `funnel`: by origin, signals raised (None where none led there), expeditions, those that
    brought a task, drafts, tasks. Over evolutions: `pass_rate`, tasks of drafts, and `fruitful`, expeditions that
    brought a task of all."""
    raised: Counter[str] = Counter()
    for row in run.metrics:
        raised.update(row.get("signals", {}))
    after = [draft for draft in run.drafts if draft["step"]]
    outings = {key: record for key, record in run.expeditions.items() if key[0]}
    brought = {expedition_of(draft) for draft in after if draft.get("task")}
    origins = [kind for kind in run.kinds if raised[kind]]
    origins += sorted({record["origin"] for record in (*after, *outings.values())} - set(origins))
    funnel = []
    for origin in origins:
        drafts = [draft for draft in after if draft["origin"] == origin]
        made = {key for key, record in outings.items() if record["origin"] == origin}
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
    steps = sorted({draft["step"] for draft in after} | {step for step, _ in outings})
    return {"funnel": funnel, "step": steps, **_rates(steps, after, outings, brought)}


def feedback(run: Run) -> Json:
    """The share of the wall time so far that went into feedback, over the steps; None before anything was timed."""
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
    steps: list[int], drafts: list[Json], outings: dict[tuple[int, int], Json], brought: set[tuple[int, int] | None]
) -> Json:
    examined = Counter(draft["step"] for draft in drafts)
    accepted = Counter(draft["step"] for draft in drafts if draft.get("task"))
    made = Counter(step for step, _ in outings)
    fruitful = Counter(key[0] for key in outings if key in brought)
    return {
        "pass_rate": [accepted[step] / examined[step] if examined[step] else None for step in steps],
        "fruitful": [fruitful[step] / made[step] if made[step] else None for step in steps],
    }


def _at(record: Json, path: tuple[str, ...]) -> float | list[int] | None:
    """What stands there, None where nothing does."""
    found: Json | float | list[int] | None = record
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return None if isinstance(found, dict) else found
