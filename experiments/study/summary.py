"""Records of a table's runs → NAME.json: a row for each arm, paired differences, budgets, versions and machines."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .arms import ARMS
from .breakdown import (
    breakdowns,
    long_tasks,
    prior_mastery,
    tasks_by_tool,
    weakest_tenth,
    worst_tenth,
)
from .failures import mean_failures
from .origins import mean_predicted, mean_worth
from .record import Record, cross_table
from .statistics import SeedEstimate, estimate, paired_difference
from .table import Table

Records = Mapping[tuple[str, int], Record]  # (arm, seed) → record
# The paper's task-set metrics of the pool at the end; None for what needs evaluation tasks, where there are none.
QUALITY: Mapping[str, Callable[[Mapping[str, Any]], float | None]] = {
    "sr_at_k": lambda quality: quality["sr_at_k"],
    "ed_rel": lambda quality: quality.get("ed_rel"),
    "max_similarity": lambda quality: quality.get("max_similarity", {}).get("mean"),
    "turns": lambda quality: quality["turns"],
}


Successes = Mapping[int, float | None]  # seed → success; None where there was nothing to evaluate on


@dataclasses.dataclass(frozen=True)
class Unknown:
    """In place of an estimate, where a run was not evaluated."""

    count: int
    mean: None = None
    low: None = None
    high: None = None


def complete_seeds(table: Table, seeds: Sequence[int], records: Records) -> list[int]:
    """The seeds of which every arm of the table has finished."""
    return [seed for seed in seeds if all((arm, seed) in records for arm in table.arms)]


def summarise(name: str, table: Table, seeds: Sequence[int], records: Records) -> dict[str, Any]:
    """The content of NAME.json. Shares are in [0, 1]; intervals are 95 % intervals over seeds.

    Only complete seeds count; the others are listed. Raises ValueError where no seed is complete, and where the runs
    were not evaluated on one set of tasks.
    """
    complete = complete_seeds(table, seeds, records)
    if not complete:
        raise ValueError(f"no seed of table {name!r} has finished in every arm ({', '.join(table.arms)})")
    used = [records[arm, seed] for seed in complete for arm in table.arms]
    if len(sets := {(record["split"], record["held_out"]["digest"]) for record in used}) > 1:
        raise ValueError(f"the runs of table {name!r} were evaluated on {len(sets)} different sets of tasks")
    by_arm = {arm: [records[arm, seed] for seed in complete] for arm in table.arms}
    zero_shot = {seed: records[table.arms[0], seed]["zero_shot"] for seed in complete}
    by_kind = breakdowns(by_arm)
    finals = {arm: {seed: records[arm, seed]["final"] for seed in complete} for arm in table.arms}
    parts = {
        name: {arm: found for arm, some in by_arm.items() if by_kind and (found := of(some))}
        for name, of in (("weakest_tenth", weakest_tenth), ("worst_tenth", worst_tenth), ("long_tasks", long_tasks))
    }
    return {
        "name": name,
        "title": table.title,
        "reference": table.reference if table.reference in table.arms else None,
        "split": used[0]["split"],
        "tasks": used[0]["held_out"]["tasks"],
        "steps": sorted({record["steps"] for record in used}),
        "seeds": complete,
        "incomplete_seeds": [seed for seed in seeds if seed not in complete],
        "common_settings": _common([record["settings"] for record in used]),
        "zero_shot": _estimate(zero_shot),
        # All arms of a seed share a warm start: another zero-shot success means other code or another machine.
        "seeds_with_several_zero_shots": [
            seed for seed in complete if len({records[arm, seed]["zero_shot"] for arm in table.arms}) > 1
        ],
        "arms": [
            _row(arm, by_arm[arm], finals[arm], zero_shot, by_kind.get("tool", ())) for arm in table.arms
        ],
        "differences": [_difference(one, other, finals) for one, other in table.differences],
        **{name: _of_part(table, found) for name, found in parts.items() if found},
        "breakdowns": by_kind,
        "tasks_by_tool": tasks_by_tool(by_arm),
        "made_with": _made_with(used),
    }  # fmt: skip


def _of_part(table: Table, found: Mapping[str, Successes]) -> dict[str, Any]:
    """Success over a part of the held-out tasks, by arm, and its paired differences."""
    return {
        "arms": {arm: _estimate(one) for arm, one in found.items()},
        "differences": [_difference(one, other, found) for one, other in table.differences],
    }


def _common(settings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The changes to experiments/desk.py that all runs have."""
    return {name: value for name, value in settings[0].items() if all(one.get(name) == value for one in settings)}


def _row(
    arm: str,
    records: Sequence[Record],
    final: Successes,
    zero_shot: Successes,
    by_tool: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    crosses = [cross_table(record["held_out"]) for record in records]
    seconds = [record["seconds"] for record in records]
    live = [record["curves"]["live_groups"] for record in records]
    budgets = [{**record["budget"], "evaluation_episodes": _evaluation_episodes(record)} for record in records]
    return {
        "arm": arm,
        "title": ARMS[arm].title,
        "settings": dict(ARMS[arm].settings),
        "final": _estimate(final),
        "gain": dataclasses.asdict(_paired(final, zero_shot)),
        "cross_table": {name: _mean([cross[name] for cross in crosses]) for name in crosses[0]},
        # None for an arm without steps.
        "live_groups": _mean([_mean(groups) for groups in live]) if all(live) else None,
        "budget": _mean_counts(budgets),
        "learning": _learning([record.get("learning", {}) for record in records]),
        **({"origins": worth} if (worth := mean_worth(records)) else {}),
        **({"predicted": predicted} if (predicted := mean_predicted(records)) else {}),
        **({"failures": failures} if (failures := mean_failures(records)) else {}),
        "refused": _means([record["refused"] for record in records]),
        "quality": {name: _mean_if_known([find(one["quality"]) for one in records]) for name, find in QUALITY.items()},
        "mastered": prior_mastery(records, by_tool),
        "seconds": _mean([one["total"] for one in seconds]),
        "feedback_share": _mean(
            [record["evolution_seconds"] / one["total"] for record, one in zip(records, seconds, strict=True)]
        ),
    }


def _mean_counts(counts: Sequence[Mapping[str, int]]) -> dict[str, float]:
    """Means of counts over all records, in their order; a record without a count has 0."""
    names = dict.fromkeys(name for one in counts for name in one)
    return {name: _mean([one.get(name, 0) for one in counts]) for name in names}


def _means(counts: Sequence[Mapping[str, int]]) -> dict[str, float]:
    """Means of counts over all records, the greatest first; a record without a count has 0."""
    total = sum((Counter(one) for one in counts), Counter())
    return {name: count / len(counts) for name, count in total.most_common()}


def _learning(records: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Means over seeds of the metrics that all of them have."""
    return {name: _mean([one[name] for one in records]) for name in records[0] if all(name in one for one in records)}


def _evaluation_episodes(record: Record) -> int:
    """Episodes of the final evaluation: more than tasks where a failed task is tried again."""
    trials = record.get("trials")
    return sum(trial["episodes"] for trial in trials) if trials else record["held_out"]["tasks"]


def _difference(one: str, other: str, finals: Mapping[str, Successes]) -> dict[str, Any]:
    ours, theirs = _known(finals[one]), _known(finals[other])
    by_seed = {str(seed): ours[seed] - theirs[seed] for seed in ours if seed in theirs}
    return {
        "one": one,
        "other": other,
        **dataclasses.asdict(_paired(finals[one], finals[other])),
        "by_seed": by_seed,
        "seeds_above_0": sum(value > 0 for value in by_seed.values()),
    }


def _paired(one: Successes, other: Successes) -> SeedEstimate | Unknown:
    """The paired difference; unknown where a run was not evaluated."""
    if None in (*one.values(), *other.values()):
        return Unknown(len(one))
    found = paired_difference(_known(one), _known(other))
    assert found is not None, "complete seeds are shared"
    return found


def _known(by_seed: Successes) -> dict[int, float]:
    return {seed: value for seed, value in by_seed.items() if value is not None}


def _estimate(by_seed: Successes) -> dict[str, Any]:
    whole = None not in by_seed.values()
    found = dataclasses.asdict(estimate(list(_known(by_seed).values())) if whole else Unknown(len(by_seed)))
    return {**found, "by_seed": {str(seed): value for seed, value in by_seed.items()}}


def _made_with(records: Sequence[Record]) -> dict[str, Any]:
    """Processors, commits, versions and threads of the runs, each once, and core-hours."""
    facts = [record["facts"] for record in records]
    return {
        "processors": sorted({fact["hardware"]["processor"] for fact in facts}),
        "commits": sorted({fact["commit"] for fact in facts}),
        "versions": [dict(pairs) for pairs in sorted({tuple(sorted(fact["versions"].items())) for fact in facts})],
        "threads": [dict(pairs) for pairs in sorted({tuple(sorted(record["threads"].items())) for record in records})],
        "core_hours": sum(record["seconds"]["total"] + record["seconds"]["warm_start"] for record in records) / 3600,
    }


def _mean_if_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return _mean(known) if len(known) == len(values) else None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
