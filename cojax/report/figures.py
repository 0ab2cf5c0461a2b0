"""Data of the page's charts, from the logs of a run: its curves, its task set, and paired differences of results."""

import bisect
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scipy.special import stdtrit

from cojax.report.lineage import TaskHistory
from cojax.report.run import Json, Run, count_verdicts, describe_origin, find_expedition, find_join_step, read_scores
from cojax.storage.differences import value_at

MAX_POINTS = 1_500  # steps drawn at most
CURVE_NAMES = (
    "success", "reward", "partial", "live_groups", "loss", "grad_norm", "kl", "clip_fraction", "logprob_mismatch",
    "logprob_mismatch_max", "tasks", "turns",
)  # fmt: skip
MAX_BARS = 16  # actions of the longest solution with a bar of its own; longer ones share the last bar
# Name of a curve → its dotted name in a record of quality.
_PATHS = {"sr_at_k": "sr_at_k", "ed_rel": "ed_rel", "similarity": "max_similarity.mean", "turns": "turns"}
_POOL_PARTS = ("initial", "synthesized")
# The counts of each evolution and origin. An expedition is `fruitful` if it led to a task.
CONVERSION_COUNTS = ("expeditions", "fruitful", "drafts", "tasks")


def build_curves(metrics: Sequence[Json]) -> Json:
    """Columns over steps, with None for gaps; `dev` holds the steps evaluated on the development split."""
    records = evenly(metrics, MAX_POINTS)
    return {
        "step": [record["step"] for record in records],
        **{name: [_finite_or_none(record.get(name)) for record in records] for name in CURVE_NAMES},
        "dev": [[record["step"], _finite_or_none(record["dev"]["success"])] for record in metrics if record.get("dev")],
    }


def build_agent_curves(metrics: Sequence[Json]) -> Json:
    """Columns over steps of a run that learns in rounds, for each agent, with None for gaps; {} for any other run.

    `success` and `hard` (hard negatives) are shares of an agent's episodes. `partial` is their mean partial reward.
    """
    records = [record for record in evenly(metrics, MAX_POINTS) if "preference" in record]
    by_agent = {agent: [record["preference"].get(agent, {}) for record in records] for agent in ("target", "second")}
    columns_by_agent = {
        agent: {
            "success": [_finite_or_none(record.get("success")) for record in agent_rows],
            "partial": [_finite_or_none(record.get("partial")) for record in agent_rows],
            "hard": [record["hard"] / record["episodes"] if record.get("episodes") else None for record in agent_rows],
        }
        for agent, agent_rows in by_agent.items()
        if any(agent_rows)
    }
    if not columns_by_agent:
        return {}
    distances = [_finite_or_none(record.get("distance")) for record in by_agent["second"]]
    return {"step": [record["step"] for record in records], **columns_by_agent, "distance": distances}


def list_evolutions(run: Run) -> list[Json]:
    """One record per evolution: the signals since the last one, the verdicts, the new tasks by origin."""
    records: list[Json] = []
    signal_counts: Counter[str] = Counter()
    for step_record in run.metrics:
        evolution = step_record.get("evolution")
        # An evolution that ran in the background of this step has not seen its signals.
        is_background = evolution is not None and find_evolution_step(step_record) < step_record["step"]
        if not is_background:
            signal_counts.update(step_record.get("signals", {}))
        if evolution is not None:
            outcome_fields = {"verdicts": count_verdicts(evolution), "added": evolution["added"]}
            records.append({"step": find_evolution_step(step_record), "signals": dict(signal_counts), **outcome_fields})
            signal_counts.clear()
        if is_background:
            signal_counts.update(step_record.get("signals", {}))
    if signal_counts:  # no evolution has used these
        records.append({"step": run.metrics[-1]["step"], "signals": dict(signal_counts), "open": True})
    return records


def find_evolution_step(row: Json) -> int:
    """The last step whose signals the evolution in this row of metrics.jsonl had seen."""
    return row["evolution"].get("step", row["step"])


def count_pool(run: Run) -> Json:
    """Tasks of each origin in the pool at each step, from the pool's log."""
    origins: dict[str, list[int]] = {}
    for task in sorted(run.tasks.values(), key=find_join_step):
        origins.setdefault(task["origin"], []).append(find_join_step(task))
    steps = [0, *(record["step"] for record in evenly(run.metrics, MAX_POINTS))]
    task_counts = {origin: [bisect.bisect_right(joins, step) for step in steps] for origin, joins in origins.items()}
    return {"step": steps, "origins": task_counts}


def sum_totals(run: Run) -> Json:
    """Seconds, outcomes, signals and verdicts of the run, from its summary or summed over the steps so far."""
    counters: dict[str, Counter[str]] = {figure: Counter() for figure in ("seconds", "outcomes", "signals", "verdicts")}
    for record in run.metrics:
        for figure in ("seconds", "outcomes", "signals"):
            counters[figure].update(record.get(figure, {}))
        if "evolution" in record:
            counters["verdicts"].update(count_verdicts(record["evolution"]))
    for waited in ("trainer_waited", "sampler_waited"):  # beside the parts of the time
        del counters["seconds"][waited]
    return {figure: run.summary.get(figure) or dict(counts) for figure, counts in counters.items()}


def build_headline(run: Run) -> Json:
    """The figures at the top of the page; None for those that the run has not reached."""
    last_record = run.metrics[-1] if run.metrics else {}
    dev_successes = [record["dev"]["success"] for record in run.metrics if record.get("dev")]
    return {
        "finished": bool(run.summary),
        "policy": describe_origin(run.origin) if run.origin else "",
        "zero_shot": run.summary.get("zero_shot", run.zero_shot.get("success")),
        "final": run.summary.get("final", run.final.get("success")),
        "gain": paired_difference(read_scores(run.zero_shot), read_scores(run.final)),
        "dev": [dev_successes[0], dev_successes[-1] if len(dev_successes) > 1 else None] if dev_successes else None,
        "step": run.summary.get("steps", last_record.get("step", 0)),
        "steps": run.config.get("config", {}).get("steps"),
        "tasks_initial": run.summary.get("tasks_initial", len(run.tasks) - len(run.synthesized_tasks)),
        "tasks_final": run.summary.get("tasks_final", len(run.tasks)),
        "tokens": run.summary.get("tokens"),
    }


def average_first_and_last(histories: Iterable[TaskHistory]) -> list[Json]:
    """Mean success of the tasks at their first and at their last visit, by origin, of those visited at least twice."""
    successes_by_origin: dict[str, list[tuple[float, float]]] = {}
    for task in histories:
        if len(task.visits) >= 2:
            successes_by_origin.setdefault(task.origin, []).append((task.visits[0].success, task.visits[-1].success))
    rows = []
    for origin, successes in successes_by_origin.items():
        first_success, last_success = (sum(rewards) / len(rewards) for rewards in zip(*successes, strict=True))
        rows.append({"origin": origin, "tasks": len(successes), "first": first_success, "last": last_success})
    return rows


def evenly(items: Sequence[Any], count: int) -> list[Any]:
    """At most `count` items, evenly spaced, the first and the last among them."""
    if len(items) <= count:
        return list(items)
    return [items[round(index * (len(items) - 1) / (count - 1))] for index in range(count)]


def _finite_or_none(value: Any) -> float | None:
    """The number, or None, a gap, for NaN and infinity, which JSON cannot hold."""
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None


def build_quality_curves(run: Run) -> Json:
    """Curves over evolutions, from the start on, of the pool and of its synthesized tasks.

    Also the last distributions of similarity to the evaluation tasks, and the settings of the measurement. Empty where
    a run measured none.
    """
    measurements = [
        (row["step"], row["evolution"]["quality"]) for row in run.metrics if row.get("evolution", {}).get("quality")
    ]
    if not measurements:
        return {}
    settings = run.config.get("config", {}).get("quality", {})
    records = [entry for _, entry in measurements]
    initial, last_quality = records[0].get("initial", {}), records[-1]
    return {
        "step": [0, *(step for step, _ in measurements)],
        "pool": {name: [value_at(entry, path, None) for entry in (initial, *records)] for name, path in _PATHS.items()},
        "synthesized": {
            name: [None, *(value_at(entry, f"synthesized.{path}", None) for entry in records)]
            for name, path in _PATHS.items()
        },
        "histogram": {part: value_at(last_quality, f"{part}.max_similarity.histogram", None) for part in _POOL_PARTS},
        "greatest": {part: value_at(last_quality, f"{part}.max_similarity.max", None) for part in _POOL_PARTS},
        "compared": last_quality.get("tasks"),
        "tasks": run.metrics[-1].get("tasks"),
        "k": settings.get("k"),
        "embedding": settings.get("model") if settings.get("embedding") == "endpoint" else settings.get("embedding"),
    }


def count_lengths(run: Run) -> Json:
    """Initial and synthesized tasks by the number of actions of their solution: counts for 1 to MAX_BARS, and means."""
    lengths_by_part: dict[str, list[int]] = {part: [] for part in _POOL_PARTS}
    for task in run.tasks.values():
        if task.get("solution"):
            lengths_by_part["synthesized" if find_join_step(task) else "initial"].append(len(task["solution"]))
    counts = {part: Counter(min(length, MAX_BARS) for length in lengths) for part, lengths in lengths_by_part.items()}
    longest = max((length for lengths in lengths_by_part.values() for length in lengths), default=0)
    return {
        "actions": [str(n) if n < MAX_BARS else f"{MAX_BARS}+" for n in range(1, min(longest, MAX_BARS) + 1)],
        "counts": {part: [counts[part][n] for n in range(1, min(longest, MAX_BARS) + 1)] for part in _POOL_PARTS},
        "mean": {part: sum(lengths) / len(lengths) if lengths else None for part, lengths in lengths_by_part.items()},
    }


def build_conversion(run: Run) -> Json:
    """From signals to tasks.

    `funnel` counts, by origin, the signals raised (None if the origin is not a kind of signal), the expeditions, those
    that led to a task (`fruitful`), the drafts and the tasks. Over evolutions, `pass_rate` is the share of drafts that
    became tasks, and `fruitful` the share of expeditions that led to one.
    """
    signal_counts: Counter[str] = Counter()
    for record in run.metrics:
        signal_counts.update(record.get("signals", {}))
    counts_by_origin, counts_by_step = defaultdict[str, Counter[str]](Counter), defaultdict[int, Counter[str]](Counter)
    for (step, origin), counts in count_conversions(run).items():
        counts_by_origin[origin].update(counts)
        counts_by_step[step].update(counts)
    origins = [kind for kind in run.kinds if signal_counts[kind]]
    origins += sorted(counts_by_origin.keys() - set(origins))

    def compute_rates(part: str, whole: str) -> list[float | None]:
        return [counts[part] / counts[whole] if counts[whole] else None for _, counts in sorted(counts_by_step.items())]

    return {
        "funnel": [
            {
                "origin": origin,
                "signals": signal_counts[origin] if origin in run.kinds else None,
                **{name: counts_by_origin[origin][name] for name in CONVERSION_COUNTS},
            }
            for origin in origins
        ],
        "step": sorted(counts_by_step),
        "pass_rate": compute_rates("tasks", "drafts"),
        "fruitful": compute_rates("fruitful", "expeditions"),
    }


def count_conversions(run: Run) -> dict[tuple[int, str], Counter[str]]:
    """(step, origin) → the CONVERSION_COUNTS of that evolution; D_0's are left out."""
    counts = defaultdict[tuple[int, str], Counter[str]](Counter)
    fruitful_expeditions = {find_expedition(draft) for draft in run.drafts if draft.get("task")}
    for expedition, record in run.expeditions.items():
        if expedition[0]:
            is_fruitful = expedition in fruitful_expeditions
            counts[expedition[0], record["origin"]].update(expeditions=1, fruitful=int(is_fruitful))
    for draft in run.drafts:
        if draft["step"]:
            counts[draft["step"], draft["origin"]].update(drafts=1, tasks=int(bool(draft.get("task"))))
    return counts


def measure_feedback(run: Run) -> Json:
    """The share of feedback in the wall time so far, over the steps; None before anything was timed."""
    seconds = [record.get("seconds", {}) for record in run.metrics]
    sums = [list(itertools.accumulate(parts.get(name, 0.0) for parts in seconds)) for name in ("feedback", "total")]
    shares = [part / whole if whole > 0 else None for part, whole in zip(*sums, strict=True)]
    step_shares = evenly(list(zip((record["step"] for record in run.metrics), shares, strict=True)), MAX_POINTS)
    return {"step": [step for step, _ in step_shares], "share": [share for _, share in step_shares]}


def paired_difference(base_scores: Mapping[str, float], other_scores: Mapping[str, float]) -> Json | None:
    """The mean of other − base over shared tasks, by id, its 95 % interval, and on how many other is better or worse.

    Scores are in [0, 1]. The interval, Student's x̄ ± t₀.₉₇₅(n−1) · s/√n, is over tasks: it says nothing about other
    seeds of the two runs. If all differences are equal, it is x̄ ± 3/n, because a share of 3/n of the tasks may differ
    unseen (Hanley and Lippman-Hand 1983). Both ends stay within [−1, 1]. None for fewer than two shared tasks.
    """
    differences = [other_scores[task] - base_scores[task] for task in sorted(base_scores.keys() & other_scores.keys())]
    count = len(differences)
    if count < 2:
        return None
    mean, variance, half_width = compute_student(differences)
    half_width = half_width if variance > 1e-15 else 3 / count
    low, high = max(-1.0, mean - half_width), min(1.0, mean + half_width)
    better, worse = sum(difference > 0 for difference in differences), sum(difference < 0 for difference in differences)
    return {"mean": mean, "low": low, "high": high, "count": count, "better": better, "worse": worse}


def compute_student(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean, variance s² = Σ(x−x̄)²/(n−1), and half the 95 % interval, t₀.₉₇₅(n−1) · s/√n, of at least two values."""
    count = len(values)
    mean = math.fsum(values) / count
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return mean, variance, float(stdtrit(count - 1, 0.975)) * math.sqrt(variance / count)
