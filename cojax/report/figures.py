"""Data of the page's charts, from the logs of a run: its curves, its task set, and paired differences of results."""

import bisect
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scipy.special import stdtrit

from cojax.report.lineage import TaskHistory
from cojax.report.run import Json, Run, expedition_of, joined_at, origin_line, task_scores, verdicts_of
from cojax.storage.differences import value_at

POINTS = 1_500  # steps drawn at most
CURVES = (
    "success", "reward", "partial", "live_groups", "loss", "grad_norm", "kl", "clip_fraction", "logprob_mismatch",
    "logprob_mismatch_max", "tasks", "turns",
)  # fmt: skip
LONGEST = 16  # actions of the longest solution with a bar of its own; longer ones share the last bar
# Name of a curve → its dotted name in a record of quality.
_FIGURES = {"sr_at_k": "sr_at_k", "ed_rel": "ed_rel", "similarity": "max_similarity.mean", "turns": "turns"}
_PARTS = ("initial", "synthesized")
# The counts of each evolution and origin. An expedition is `fruitful` if it led to a task.
CONVERSION = ("expeditions", "fruitful", "drafts", "tasks")


def curves(metrics: Sequence[Json]) -> Json:
    """Columns over steps, with None for gaps; `dev` holds the steps evaluated on the development split."""
    rows = evenly(metrics, POINTS)
    return {
        "step": [row["step"] for row in rows],
        **{name: [_number(row.get(name)) for row in rows] for name in CURVES},
        "dev": [[row["step"], _number(row["dev"]["success"])] for row in metrics if row.get("dev")],
    }


def agents(metrics: Sequence[Json]) -> Json:
    """Columns over steps of a run that learns in rounds, for each agent, with None for gaps; {} for any other run.

    `success` and `hard` (hard negatives) are shares of an agent's episodes. `partial` is their mean partial reward.
    """
    rows = [row for row in evenly(metrics, POINTS) if "preference" in row]
    by_agent = {name: [row["preference"].get(name, {}) for row in rows] for name in ("target", "second")}
    columns = {
        name: {
            "success": [_number(row.get("success")) for row in agent_rows],
            "partial": [_number(row.get("partial")) for row in agent_rows],
            "hard": [row["hard"] / row["episodes"] if row.get("episodes") else None for row in agent_rows],
        }
        for name, agent_rows in by_agent.items()
        if any(agent_rows)
    }
    if not columns:
        return {}
    distance = [_number(row.get("distance")) for row in by_agent["second"]]
    return {"step": [row["step"] for row in rows], **columns, "distance": distance}


def evolutions(run: Run) -> list[Json]:
    """One record per evolution: the signals since the last one, the verdicts, the new tasks by origin."""
    records: list[Json] = []
    signal_counts: Counter[str] = Counter()
    for row in run.metrics:
        evolution = row.get("evolution")
        # An evolution that ran in the background of this step has not seen its signals.
        in_background = evolution is not None and evolution_step(row) < row["step"]
        if not in_background:
            signal_counts.update(row.get("signals", {}))
        if evolution is not None:
            results = {"verdicts": verdicts_of(evolution), "added": evolution["added"]}
            records.append({"step": evolution_step(row), "signals": dict(signal_counts), **results})
            signal_counts.clear()
        if in_background:
            signal_counts.update(row.get("signals", {}))
    if signal_counts:  # no evolution has used these
        records.append({"step": run.metrics[-1]["step"], "signals": dict(signal_counts), "open": True})
    return records


def evolution_step(row: Json) -> int:
    """The last step whose signals the evolution in this row of metrics.jsonl had seen."""
    return row["evolution"].get("step", row["step"])


def pool(run: Run) -> Json:
    """Tasks of each origin in the pool at each step, from the pool's log."""
    origins: dict[str, list[int]] = {}
    for task in sorted(run.tasks.values(), key=joined_at):
        origins.setdefault(task["origin"], []).append(joined_at(task))
    steps = [0, *(row["step"] for row in evenly(run.metrics, POINTS))]
    counts = {origin: [bisect.bisect_right(joins, step) for step in steps] for origin, joins in origins.items()}
    return {"step": steps, "origins": counts}


def totals(run: Run) -> Json:
    """Seconds, outcomes, signals and verdicts of the run, from its summary or summed over the steps so far."""
    sums: dict[str, Counter[str]] = {name: Counter() for name in ("seconds", "outcomes", "signals", "verdicts")}
    for row in run.metrics:
        for name in ("seconds", "outcomes", "signals"):
            sums[name].update(row.get(name, {}))
        if "evolution" in row:
            sums["verdicts"].update(verdicts_of(row["evolution"]))
    return {name: run.summary.get(name) or dict(counts) for name, counts in sums.items()}


def headline(run: Run) -> Json:
    """The figures at the top of the page; None for those that the run has not reached."""
    last = run.metrics[-1] if run.metrics else {}
    dev = [row["dev"]["success"] for row in run.metrics if row.get("dev")]
    return {
        "finished": bool(run.summary),
        "policy": origin_line(run.origin) if run.origin else "",
        "zero_shot": run.summary.get("zero_shot", run.zero_shot.get("success")),
        "final": run.summary.get("final", run.final.get("success")),
        "gain": paired_difference(task_scores(run.zero_shot), task_scores(run.final)),
        "dev": [dev[0], dev[-1] if len(dev) > 1 else None] if dev else None,
        "step": run.summary.get("steps", last.get("step", 0)),
        "steps": run.config.get("config", {}).get("steps"),
        "tasks_initial": run.summary.get("tasks_initial", len(run.tasks) - len(run.synthesized_tasks)),
        "tasks_final": run.summary.get("tasks_final", len(run.tasks)),
        "tokens": run.summary.get("tokens"),
    }


def first_and_last_success(histories: Iterable[TaskHistory]) -> list[Json]:
    """Mean success of the tasks at their first and at their last visit, by origin, of those visited at least twice."""
    pairs: dict[str, list[tuple[float, float]]] = {}
    for task in histories:
        if len(task.visits) >= 2:
            pairs.setdefault(task.origin, []).append((task.visits[0].success, task.visits[-1].success))
    rows = []
    for origin, successes in pairs.items():
        first, last = (sum(values) / len(values) for values in zip(*successes, strict=True))
        rows.append({"origin": origin, "tasks": len(successes), "first": first, "last": last})
    return rows


def evenly(items: Sequence[Any], count: int) -> list[Any]:
    """At most `count` items, evenly spaced, the first and the last among them."""
    if len(items) <= count:
        return list(items)
    return [items[round(place * (len(items) - 1) / (count - 1))] for place in range(count)]


def _number(value: Any) -> float | None:
    """The number, or None, a gap, for NaN and infinity, which JSON cannot hold."""
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None


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
    entries = [entry for _, entry in rows]
    start, last = entries[0].get("initial", {}), entries[-1]
    return {
        "step": [0, *(step for step, _ in rows)],
        "pool": {name: [value_at(entry, path, None) for entry in (start, *entries)] for name, path in _FIGURES.items()},
        "synthesized": {
            name: [None, *(value_at(entry, f"synthesized.{path}", None) for entry in entries)]
            for name, path in _FIGURES.items()
        },
        "histogram": {part: value_at(last, f"{part}.max_similarity.histogram", None) for part in _PARTS},
        "greatest": {part: value_at(last, f"{part}.max_similarity.max", None) for part in _PARTS},
        "compared": last.get("tasks"),
        "tasks": run.metrics[-1].get("tasks"),
        "k": settings.get("k"),
        "embedding": settings.get("model") if settings.get("embedding") == "endpoint" else settings.get("embedding"),
    }


def lengths(run: Run) -> Json:
    """Initial and synthesized tasks by the number of actions of their solution: counts for 1 to LONGEST, and means."""
    by_part: dict[str, list[int]] = {part: [] for part in _PARTS}
    for task in run.tasks.values():
        if task.get("solution"):
            by_part["synthesized" if joined_at(task) else "initial"].append(len(task["solution"]))
    counts = {part: Counter(min(size, LONGEST) for size in sizes) for part, sizes in by_part.items()}
    top = max((size for sizes in by_part.values() for size in sizes), default=0)
    return {
        "actions": [str(n) if n < LONGEST else f"{LONGEST}+" for n in range(1, min(top, LONGEST) + 1)],
        "counts": {part: [counts[part][n] for n in range(1, min(top, LONGEST) + 1)] for part in _PARTS},
        "mean": {part: sum(sizes) / len(sizes) if sizes else None for part, sizes in by_part.items()},
    }


def conversion(run: Run) -> Json:
    """From signals to tasks.

    `funnel` counts, by origin, the signals raised (None if the origin is not a kind of signal), the expeditions, those
    that led to a task (`fruitful`), the drafts and the tasks. Over evolutions, `pass_rate` is the share of drafts that
    became tasks, and `fruitful` the share of expeditions that led to one.
    """
    signal_counts: Counter[str] = Counter()
    for row in run.metrics:
        signal_counts.update(row.get("signals", {}))
    by_origin, by_step = defaultdict[str, Counter[str]](Counter), defaultdict[int, Counter[str]](Counter)
    for (step, origin), counts in conversions(run).items():
        by_origin[origin].update(counts)
        by_step[step].update(counts)
    origins = [kind for kind in run.kinds if signal_counts[kind]]
    origins += sorted(by_origin.keys() - set(origins))

    def rates(part: str, whole: str) -> list[float | None]:
        return [counts[part] / counts[whole] if counts[whole] else None for _, counts in sorted(by_step.items())]

    return {
        "funnel": [
            {
                "origin": origin,
                "signals": signal_counts[origin] if origin in run.kinds else None,
                **{name: by_origin[origin][name] for name in CONVERSION},
            }
            for origin in origins
        ],
        "step": sorted(by_step),
        "pass_rate": rates("tasks", "drafts"),
        "fruitful": rates("fruitful", "expeditions"),
    }


def conversions(run: Run) -> dict[tuple[int, str], Counter[str]]:
    """(step, origin) → the counts CONVERSION of that evolution; D_0's are left out."""
    counts = defaultdict[tuple[int, str], Counter[str]](Counter)
    fruitful = {expedition_of(draft) for draft in run.drafts if draft.get("task")}
    for key, record in run.expeditions.items():
        if key[0]:
            counts[key[0], record["origin"]].update(expeditions=1, fruitful=key in fruitful)
    for draft in run.drafts:
        if draft["step"]:
            counts[draft["step"], draft["origin"]].update(drafts=1, tasks=bool(draft.get("task")))
    return counts


def feedback(run: Run) -> Json:
    """The share of feedback in the wall time so far, over the steps; None before anything was timed."""
    seconds = [row.get("seconds", {}) for row in run.metrics]
    sums = [list(itertools.accumulate(parts.get(name, 0.0) for parts in seconds)) for name in ("feedback", "total")]
    shares = [part / whole if whole > 0 else None for part, whole in zip(*sums, strict=True)]
    pairs = evenly(list(zip((row["step"] for row in run.metrics), shares, strict=True)), POINTS)
    return {"step": [step for step, _ in pairs], "share": [share for _, share in pairs]}


def paired_difference(base: Mapping[str, float], other: Mapping[str, float]) -> Json | None:
    """The mean of other − base over shared tasks, by id, its 95 % interval, and on how many other is better or worse.

    Scores are in [0, 1]. The interval, Student's x̄ ± t₀.₉₇₅(n−1) · s/√n, is over tasks: it says nothing about other
    seeds of the two runs. If all differences are equal, it is x̄ ± 3/n, because a share of 3/n of the tasks may differ
    unseen (Hanley and Lippman-Hand 1983). Both ends stay within [−1, 1]. None for fewer than two shared tasks.
    """
    differences = [other[task] - base[task] for task in sorted(base.keys() & other.keys())]
    count = len(differences)
    if count < 2:
        return None
    mean, variance, half = student(differences)
    half = half if variance > 1e-15 else 3 / count
    low, high = max(-1.0, mean - half), min(1.0, mean + half)
    better, worse = sum(value > 0 for value in differences), sum(value < 0 for value in differences)
    return {"mean": mean, "low": low, "high": high, "count": count, "better": better, "worse": worse}


def student(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean, variance s² = Σ(x−x̄)²/(n−1), and half the 95 % interval, t₀.₉₇₅(n−1) · s/√n, of at least two values."""
    count = len(values)
    mean = math.fsum(values) / count
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return mean, variance, float(stdtrit(count - 1, 0.975)) * math.sqrt(variance / count)
