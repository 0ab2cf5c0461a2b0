"""Records of a table's runs → NAME.json: a row for each arm, paired differences, budgets, versions, machines.

NAME.json → NAME.md: the table's page (page.md.jinja), with success in per cent and differences in points.
"""

import functools
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from cojax.environment import Charted, Environment
from cojax.registry.source import shorten_commit
from cojax.report.origins import PREDICTORS
from cojax.types import Task, content_hash
from .record import FAILURE_SHARES, ORIGIN_COUNTS, ORIGIN_MEASURES, Record, cross_table, least_popular, load_environment
from .statistics import (
    Successes,
    adjust_holm,
    compute_p_value,
    estimate,
    estimate_difference,
    list_differences,
    resample_seeds_and_tools,
)
from .tables import ARMS, START, TITLES, Table

# Solutions of this many actions or more count as one kind.
_OPEN_ROW = 6
# With this many tools, tasks are also grouped by tenths of the tools, and the page reports the worst tenth.
MIN_TOOLS_FOR_TENTHS = 60
LONG = 4  # a long task has at least this many actions, with the finish
MIN_LONG_TASKS = 30  # the fewest long tasks that a page reports


def break_down(arms: Mapping[str, Sequence[Record]]) -> dict[str, list[dict[str, Any]]]:
    """Criterion → one row for each kind of task: `kind`, number of `tasks`, and shares solved, as means over seeds.

    The shares are `zero_shot`, before training, and `arms`, after training by arm. The argument maps an arm to its
    records. Empty if the environment now has other held-out tasks than the records, or a run has an invalid episode.
    """
    all_records = [record for records in arms.values() for record in records]
    environment, tasks = load_held_out_tasks(all_records[0])
    task_sets = {(record["held_out"]["digest"], record["held_out"]["tasks"]) for record in all_records}
    if task_sets != {(content_hash([task.id for task in tasks]), len(tasks))}:
        return {}
    kind_lists: dict[str, list[tuple[Any, str]]] = {"actions": [_kind_by_actions(task) for task in tasks]}
    if isinstance(environment, Charted):
        tool_names, popularity = _find_tools(all_records[0])
        # The most popular ones first.
        kind_lists["tool"] = [(-popularity.get(tool_name, 1.0), tool_name) for tool_name in tool_names]
        tool_kinds = sorted(set(kind_lists["tool"]))
        if len(tool_kinds) >= MIN_TOOLS_FOR_TENTHS:
            tenths = {kind: 1 + 10 * index // len(tool_kinds) for index, kind in enumerate(tool_kinds)}
            kind_lists["popularity"] = [(tenths[kind], f"tenth {tenths[kind]}") for kind in kind_lists["tool"]]
    return {criterion: _make_rows(task_kinds, arms) for criterion, task_kinds in kind_lists.items()}


def _find_tools(record: Record) -> tuple[list[str], Mapping[str, float]]:
    """The least popular tool of each held-out task's solution, by task id, and the popularity of the tools."""
    environment, tasks = load_held_out_tasks(record)
    find_tool = least_popular(environment, record["config"]["explorer"]["ending"])
    return [find_tool(task) for task in tasks], environment.popularity() if isinstance(environment, Charted) else {}


def average_tools_weakest_after(records: Sequence[Record]) -> dict[int, float] | None:
    """Seed → mean success over the worst tenth of the tools after training; None with few tools.

    A task counts for the least popular tool of its solution. Each run has its own worst tenth, on the same held-out
    tasks, so the value is lower than these tools would reach on other tasks.
    """
    return _average_tenth(records, lambda zero_shot, final, popularity: final)


def average_tools_weakest_before(records: Sequence[Record]) -> dict[int, float] | None:
    """Like `average_tools_weakest_after`, over the tools of the lowest success before training.

    Of equal ones the least popular come first. So the same tools judge all arms of a seed, and no result after
    training decides which.
    """
    return _average_tenth(records, lambda zero_shot, final, popularity: (zero_shot, popularity))


def _average_tenth(records: Sequence[Record], order: Callable[[float, float, float], Any]) -> dict[int, float] | None:
    """Seed → mean success after training of the tenth of the tools that comes first by `order`.

    Its arguments are a tool's success before and after training, and its popularity.
    """
    tool_names, popularity = _find_tools(records[0])
    task_counts = Counter(tool_names)
    if len(task_counts) < MIN_TOOLS_FOR_TENTHS or any(
        record["held_out"]["tasks"] != len(tool_names) for record in records
    ):
        return None
    success_by_seed = {}
    for record in records:
        zero_shot, final = (_compute_shares(tool_names, record["held_out"][when]) for when in ("zero_shot", "final"))
        tools = sorted(
            task_counts, key=lambda tool: (order(zero_shot[tool], final[tool], popularity.get(tool, 0.0)), tool)
        )
        success_by_seed[record["seed"]] = _average([final[tool] for tool in tools[: max(1, round(len(tools) / 10))]])
    return success_by_seed


def long_tasks(records: Sequence[Record]) -> dict[int, float] | None:
    """Seed → success after training over the held-out tasks of at least LONG actions, with the finish.

    None if there are fewer than MIN_LONG_TASKS of them.
    """
    _, tasks = load_held_out_tasks(records[0])
    are_long = [len(task.solution) >= LONG for task in tasks]
    if sum(are_long) < MIN_LONG_TASKS or any(record["held_out"]["tasks"] != len(tasks) for record in records):
        return None
    return {record["seed"]: _compute_shares(are_long, record["held_out"]["final"])[True] for record in records}


def _compute_shares(kinds: Sequence[Any], bits: str) -> dict[Any, float]:
    """Kind → the share of its tasks that are solved. `kinds` holds the kind of each task, and `bits` its 1 or 0."""
    solved_counts = Counter(kind for kind, bit in zip(kinds, bits, strict=True) if bit == "1")
    return {kind: solved_counts[kind] / task_count for kind, task_count in Counter(kinds).items()}


def count_tasks_by_tool(arms: Mapping[str, Sequence[Record]]) -> dict[str, dict[str, float]]:
    """Least popular tool of a solution → arm → number of such tasks in the final set, mean over seeds.

    The most frequent tools over all arms come first. Empty if no tool's popularity is known.
    """
    counts_by_arm = {
        arm: Counter(tool for record in records for tool in record["tasks"]["tool"] if tool)
        for arm, records in arms.items()
    }
    tools = [tool for tool, _ in sum(counts_by_arm.values(), Counter()).most_common()]
    return {tool: {arm: counts_by_arm[arm][tool] / len(records) for arm, records in arms.items()} for tool in tools}


def estimate_prior_mastery(records: Sequence[Record], rows: Sequence[Mapping[str, Any]]) -> float | None:
    """How well the policy could use the tools of added tasks before training.

    It is the mean over added tasks of the zero-shot success on held-out tasks with the same least popular tool. `rows`,
    the breakdown by tool, has this success as a mean over the table's seeds. Tasks whose tool is not in `rows` are left
    out; None if all are.
    """
    success_by_tool = {row["kind"]: row["zero_shot"] for row in rows}
    pairs = (pair for record in records for pair in zip(record["tasks"]["tool"], record["tasks"]["step"], strict=True))
    return _average_known([success_by_tool.get(tool) for tool, step in pairs if step])


def cross_tables_by_coverage(records: Sequence[Record]) -> dict[str, dict[str, float]]:
    """Mean counts of `cross_table` over the held-out tasks that D_0 covers, and over the others.

    D_0 covers a task if solutions of its tasks use all tools of the task's solution. {} if a record does not say which
    tools these are, or has an invalid episode.
    """
    if any("initial_tools" not in record for record in records):
        return {}
    _, tasks = load_held_out_tasks(records[0])
    if any(record["held_out"]["tasks"] != len(tasks) for record in records):
        return {}
    task_tools = [{call.name for action in task.solution for call in action.calls} for task in tasks]
    tables_by_coverage: dict[bool, list[dict[str, int]]] = {True: [], False: []}
    for record in records:
        are_covered = [tools <= set(record["initial_tools"]) for tools in task_tools]
        for is_wanted, cross_tables in tables_by_coverage.items():
            bits = {
                when: "".join(itertools.compress(record["held_out"][when], (one == is_wanted for one in are_covered)))
                for when in ("zero_shot", "final")
            }
            cross_tables.append(cross_table(bits))
    return {"covered": _mean_counts(tables_by_coverage[True]), "others": _mean_counts(tables_by_coverage[False])}


def _make_rows(kinds: Sequence[tuple[Any, str]], arms: Mapping[str, Sequence[Record]]) -> list[dict[str, Any]]:
    """One row for each kind. `kinds` holds (sort key, name) of each task, in the order of task ids."""
    task_counts = Counter(kinds)

    def count_solved(records: Sequence[Record], evaluation: str) -> Counter:
        counts: Counter = Counter()
        for record in records:
            counts.update(kind for kind, bit in zip(kinds, record["held_out"][evaluation], strict=True) if bit == "1")
        return Counter({kind: count / len(records) for kind, count in counts.items()})

    zero_shot_counts = count_solved(next(iter(arms.values())), "zero_shot")
    final_counts = {arm: count_solved(records, "final") for arm, records in arms.items()}
    return [
        {
            "kind": kind[1],
            "tasks": task_count,
            "zero_shot": zero_shot_counts[kind] / task_count,
            "arms": {arm: counts[kind] / task_count for arm, counts in final_counts.items()},
        }
        for kind, task_count in sorted(task_counts.items())
    ]


def load_held_out_tasks(record: Record) -> tuple[Environment, list[Task]]:
    """The environment, and the tasks that the run was evaluated on, by id: the order of `held_out` in its record."""
    return _load_held_out(
        *(json.dumps(record["config"][section], sort_keys=True) for section in ("environment", "evaluation"))
    )


@functools.lru_cache(maxsize=8)
def _load_held_out(environment_json: str, evaluation_json: str) -> tuple[Environment, list[Task]]:
    """Cached, because a grown desk takes a second to make and every part of a table asks for it."""
    environment, settings = load_environment({"environment": json.loads(environment_json)}), json.loads(evaluation_json)
    tasks = environment.tasks(settings["split"], settings["tasks"], settings["seed"])
    return environment, sorted(tasks, key=lambda task: task.id)


def _kind_by_actions(task: Task) -> tuple[int, str]:
    action_count = len(task.solution)
    return (action_count, str(action_count)) if action_count < _OPEN_ROW else (_OPEN_ROW, f"{_OPEN_ROW} and more")


Records = Mapping[tuple[str, int], Record]  # (arm, seed) → record
_ByArm = Mapping[str, Sequence[Record]]
# The paper's metrics of the final pool; those that need evaluation tasks are None if there are none.
QUALITY: Mapping[str, Callable[[Mapping[str, Any]], float | None]] = {
    "sr_at_k": lambda quality: quality["sr_at_k"],
    "ed_rel": lambda quality: quality.get("ed_rel"),
    "max_similarity": lambda quality: quality.get("max_similarity", {}).get("mean"),
    "turns": lambda quality: quality["turns"],
}


# Examples of preference learning in the records of a step, with their titles.
EXAMPLES: Mapping[str, str] = {
    "own": "expert, own failure",
    "other": "expert, the other's failure",
    "failures": "two failures",
    "experts": "experts imitated",
    "successes": "own successes imitated",
}


def list_complete_seeds(table: Table, seeds: Sequence[int], records: Records) -> list[int]:
    """The seeds that have finished in every arm of the table."""
    return [seed for seed in seeds if all((arm, seed) in records for arm in table.arms)]


def summarise(table_name: str, table: Table, seeds: Sequence[int], records: Records) -> dict[str, Any]:
    """The content of NAME.json. Shares are in [0, 1]; intervals are 95 % intervals over seeds.

    Only complete seeds count; the others are listed. Raises ValueError if no seed is complete, or if the runs were not
    all evaluated on the same tasks.
    """
    common_seeds = list_complete_seeds(table, seeds, records)
    if not common_seeds:
        raise ValueError(f"no seed of table {table_name!r} has finished in every arm ({', '.join(table.arms)})")
    starts = [records[table.arms[0], seed] for seed in common_seeds]
    by_arm = {arm: [_begin_at(start, records[arm, start["seed"]]) for start in starts] for arm in table.arms}
    runs = [record for arm_records in zip(*by_arm.values(), strict=True) for record in arm_records]
    if len(task_sets := {(record["split"], record["held_out"]["digest"]) for record in runs}) > 1:
        raise ValueError(f"the runs of table {table_name!r} were evaluated on {len(task_sets)} different sets of tasks")
    zero_shot_successes = {start["seed"]: start["zero_shot"] for start in starts}
    breakdowns = break_down(by_arm)
    finals = {arm: {seed: records[arm, seed]["final"] for seed in common_seeds} for arm in table.arms}
    parts_by_name = {
        part: {
            arm: successes for arm, arm_records in by_arm.items() if breakdowns and (successes := score(arm_records))
        }
        for part, score in (
            ("weakest_tenth", average_tools_weakest_before),
            ("worst_tenth", average_tools_weakest_after),
            ("long_tasks", long_tasks),
        )
    }
    return {
        "name": table_name,
        "title": table.title,
        "reference": table.reference if table.reference in table.arms else None,
        "split": runs[0]["split"],
        "tasks": runs[0]["held_out"]["tasks"],
        "steps": sorted({record["steps"] for record in runs}),
        "seeds": common_seeds,
        "incomplete_seeds": [seed for seed in seeds if seed not in common_seeds],
        # The changes to experiments/desk.py that all runs share.
        "common_settings": dict(
            item for item in runs[0]["settings"].items() if all(item in record["settings"].items() for record in runs)
        ),
        "zero_shot": _estimate_by_seed(zero_shot_successes),
        # All arms of a seed share a warm start, so a different zero-shot success means other code or another machine.
        "seeds_with_several_zero_shots": [
            start["seed"] for start, *others in zip(*by_arm.values(), strict=True)
            if any(other["zero_shot"] != start["zero_shot"] for other in others)
        ],
        "arms": [
            _make_row(arm, by_arm[arm], finals[arm], zero_shot_successes, breakdowns.get("tool", ()))
            for arm in table.arms
        ],
        "differences": make_differences(
            table,
            {**finals, START: zero_shot_successes},
            {**by_arm, START: [_end_at_start(start) for start in starts]} if breakdowns else {},
        ),
        # Success over a part of the held-out tasks, by arm, and its paired differences.
        **{
            name: {
                "arms": {arm: _estimate_by_seed(by_seed) for arm, by_seed in successes.items()},
                "differences": make_differences(table, successes, {}),
            }
            for name, successes in parts_by_name.items() if successes
        },
        "breakdowns": breakdowns,
        "tasks_by_tool": count_tasks_by_tool(by_arm),
        "made_with": _describe_machines(runs),
    }  # fmt: skip


def _begin_at(start: Record, record: Record) -> Record:
    """The record, with the table's start as its own if its warm start is longer: what that taught is its gain."""
    if _list_warm_start_settings(start) == _list_warm_start_settings(record):
        return record
    held_out = {**record["held_out"], "zero_shot": start["held_out"]["zero_shot"]}
    return {**record, "zero_shot": start["zero_shot"], "held_out": held_out}


def _list_warm_start_settings(record: Record) -> dict[str, Any]:
    return {name: value for name, value in record["settings"].items() if name.startswith("warm_start.")}


def _end_at_start(record: Record) -> Record:
    return {**record, "held_out": {**record["held_out"], "final": record["held_out"]["zero_shot"]}}


def _make_row(
    arm: str, records: Sequence[Record], final: Successes, zero_shot: Successes, tool_rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    live_shares = [record["curves"]["live_groups"] for record in records]
    budgets = [{**record["budget"], "evaluation_episodes": _count_evaluation_episodes(record)} for record in records]
    learning_rows = [record.get("learning", {}) for record in records]
    metric_names = [name for name in learning_rows[0] if all(name in metrics for metrics in learning_rows)]
    return {
        "arm": arm,
        "title": TITLES[arm],
        "settings": dict(ARMS[arm]),
        "final": _estimate_by_seed(final),
        "gain": estimate_difference(final, zero_shot),
        "cross_table": _mean_counts([cross_table(record["held_out"]) for record in records]),
        "coverage": cross_tables_by_coverage(records),
        # None for an arm without steps.
        "live_groups": _average([_average(groups) for groups in live_shares]) if all(live_shares) else None,
        "budget": _mean_counts(budgets),
        # The metrics that all seeds have.
        "learning": _mean_counts([{metric: metrics[metric] for metric in metric_names} for metrics in learning_rows]),
        **{name: means for name, average in _OPTIONAL_MEANS.items() if (means := average(records))},
        "refused": dict(Counter(_mean_counts([record["refused"] for record in records])).most_common()),
        "quality": {name: _mean_if_known([find(row["quality"]) for row in records]) for name, find in QUALITY.items()},
        "mastered": estimate_prior_mastery(records, tool_rows),
        "seconds": _average([record["seconds"]["total"] for record in records]),
        "feedback_share": _average([record["evolution_seconds"] / record["seconds"]["total"] for record in records]),
    }


def _mean_counts(counts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each count over all records, in the counts' order; a missing count is 0."""
    count_names = dict.fromkeys(count_name for record in counts for count_name in record)
    return {count_name: _average([record.get(count_name, 0) for record in counts]) for count_name in count_names}


def _count_evaluation_episodes(record: Record) -> int:
    """Episodes of the final evaluation, which has more than one for a failed task that is tried again."""
    trials = record.get("trials")
    return sum(trial["episodes"] for trial in trials) if trials else record["held_out"]["tasks"]


def average_worth(records: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Means over an arm's records by origin; {} unless all records have the counts.

    A count is 0 in a record without the origin. A measure is a mean over the records that know it, and None if none
    does.
    """
    if not all("origins" in record for record in records):
        return {}
    origins = sorted({origin for record in records for origin in record["origins"]})
    rows_by_origin = {name: [record["origins"].get(name, {}) for record in records] for name in origins}
    return {
        origin: {
            **{name: _average([origin_row.get(name, 0) for origin_row in rows]) for name in ORIGIN_COUNTS},
            **{name: _average_known([origin_row.get(name) for origin_row in rows]) for name in ORIGIN_MEASURES},
        }
        for origin, rows in rows_by_origin.items()
    }


def average_rank_correlations(records: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float | None]]:
    """For each predictor: the mean `rho` over the runs that give one, their number, and the mean number of tasks."""
    means: dict[str, dict[str, float | None]] = {}
    for name in PREDICTORS:
        predictions = [by_name[name] for record in records if name in (by_name := record.get("predicted", {}))]
        ranks = [row for row in predictions if row["rho"] is not None]
        if predictions:
            tasks = _average([row["tasks"] for row in predictions])
            means[name] = {"rho": _average_known([row["rho"] for row in ranks]), "runs": len(ranks), "tasks": tasks}
    return means


def average_failures(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means over those of an arm's records that report failures, with their number; {} if none does."""
    failure_records = [record["failures"] for record in records if record.get("failures")]
    if not failure_records:
        return {}
    examples = _mean_counts([record["examples"] for record in failure_records])
    rows_by_agent = {
        agent: [record["agents"][agent] for record in failure_records]
        for agent in ("target", "second")
        if all(agent in record["agents"] for record in failure_records)
    }
    return {
        "records": len(failure_records),
        "examples": {name: examples[name] for name in EXAMPLES if name in examples},
        "agents": {
            agent: {name: _mean_if_known([record.get(name) for record in rows]) for name in itertools.chain(*rows)}
            for agent, rows in rows_by_agent.items()
        },
    }


# Keys of a row that not every record has, and the functions that average them over records.
_OPTIONAL_MEANS = {"origins": average_worth, "predicted": average_rank_correlations, "failures": average_failures}


def make_differences(table: Table, successes: Mapping[str, Successes], by_arm: _ByArm) -> list[dict[str, Any]]:
    """The paired differences of a table, as rows, of success over all held-out tasks or over a part of them.

    `by_arm`, empty for a part, are records: their intervals over seeds and tools are given too. `p_holm` is adjusted
    for the other differences of the table. A difference to START is left out unless `successes` has it.
    """
    rows = []
    for arm, other_arm in (pair for pair in table.differences if pair[1] in successes):
        by_seed = list_differences(successes[arm], successes[other_arm])
        rows.append(
            {
                "one": arm,
                "other": other_arm,
                **estimate(list(by_seed.values())),
                "over_tools": _resample(by_arm[arm], by_arm[other_arm]) if by_arm else {},
                "p": compute_p_value(list(by_seed.values())),
                "by_seed": {str(seed): value for seed, value in by_seed.items() if value is not None},
                "seeds_above_0": sum(value is not None and value > 0 for value in by_seed.values()),
            }
        )
    adjusted = adjust_holm([row["p"] for row in rows])
    return [{**row, "p_holm": p_holm} for row, p_holm in zip(rows, adjusted, strict=True)]


def _resample(records: Sequence[Record], other_records: Sequence[Record]) -> dict[str, float]:
    tools, _ = _find_tools(records[0])
    if any(record["held_out"]["tasks"] != len(tools) for record in (*records, *other_records)):
        return {}
    final_bits, other_bits = ([record["held_out"]["final"] for record in rows] for rows in (records, other_records))
    bounds = resample_seeds_and_tools(final_bits, other_bits, tools)
    return dict(zip(("low", "high"), bounds, strict=True)) if bounds else {}


def _estimate_by_seed(by_seed: Successes) -> dict[str, Any]:
    return {**estimate(list(by_seed.values())), "by_seed": {str(seed): value for seed, value in by_seed.items()}}


def _describe_machines(records: Sequence[Record]) -> dict[str, Any]:
    """The distinct processors, commits, versions and threads of the runs, and core-hours."""
    facts = [record["facts"] for record in records]
    return {
        "processors": sorted({fact["hardware"]["processor"] for fact in facts}),
        "commits": sorted({fact["commit"] for fact in facts}),
        "versions": [dict(items) for items in sorted({tuple(sorted(fact["versions"].items())) for fact in facts})],
        "threads": [dict(items) for items in sorted({tuple(sorted(record["threads"].items())) for record in records})],
        "core_hours": sum(record["seconds"]["total"] + record["seconds"]["warm_start"] for record in records) / 3600,
    }


def _mean_if_known(values: Sequence[float | None]) -> float | None:
    """The mean; None unless all are known."""
    return None if None in values else _average_known(values)


def _average_known(values: Sequence[float | None]) -> float | None:
    """The mean of the known values; None if there are none."""
    known_values = [value for value in values if value is not None]
    return _average(known_values) if known_values else None


def _average(values: Sequence[float]) -> float:
    return sum(values) / len(values)


# A table by tool with more rows is left out of the page; NAME.json has it.
_MAX_ROWS = 60
_PAGES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    trim_blocks=True,
    autoescape=False,  # a page of Markdown
)


def percent(share: Any, digits: int = 1, unknown: str = "–", unit: str = "") -> str:
    """A share in per cent, or `unknown`, a dash, if it is not known."""
    return _format(100 * share if isinstance(share, (int, float)) else None, f".{digits}f", unknown, unit)


def _format(value: Any, format_spec: str, unknown: str = "–", unit: str = "") -> str:
    """The value in this form, such as ".1f", with its unit, or `unknown`, a dash, if it is not known."""
    return f"{value:{format_spec}}{unit}" if isinstance(value, (int, float)) else unknown


def _interval(share: Mapping[str, Any]) -> str:
    """A mean share (keys mean, low, high) in per cent, with half the width of its interval if it has one."""
    half_text = "" if share["low"] is None else f" ± {100 * (share['high'] - share['mean']):.1f}"
    return percent(share["mean"]) + half_text


def _write_in_points(value: float | None) -> str:
    """A difference of shares in points, with its sign."""
    return _format(None if value is None else 100 * value, "+.1f")


def _bounds(row: Mapping[str, Any]) -> str:
    """The interval of a difference in points."""
    return "" if row.get("low") is None else f"[{_write_in_points(row['low'])}, {_write_in_points(row['high'])}]"


def _write_p_value(p: float | None) -> str:
    return "< 0.001" if p is not None and p < 0.001 else _format(p, ".3f")


def _compare_budget(arm: Mapping[str, Any], budget_name: str, reference: Mapping[str, Any] | None) -> str:
    """A budget of an arm, and in brackets how much it exceeds the reference's."""
    value = arm["budget"].get(budget_name, 0)
    reference_value = reference["budget"].get(budget_name, 0) if reference and reference is not arm else 0
    return f"{value:,.0f}" + (f" ({100 * (value / reference_value - 1):+.0f} %)" if reference_value else "")


def _rate(gain: float, unit: int, cost: float) -> str:
    """Points gained per `unit` of a cost; a dash if the arm cost nothing."""
    return _format(unit * (100 * gain) / cost if cost else None, ".2f")


def _one_line(text: str) -> str:
    return " ".join(text.split()) + "\n"


def _head(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n|{' --- |' * len(cells)}"


_PAGES.filters |= {
    "percent": percent, "told": _format, "interval": _interval, "points": _write_in_points, "bounds": _bounds,
    "p_value": _write_p_value, "compared": _compare_budget, "rate": _rate, "one_line": _one_line,
    "shortened": shorten_commit,
}  # fmt: skip
_PAGES.globals |= {
    "head": _head, "EXAMPLES": EXAMPLES, "FAILURE_SHARES": list(FAILURE_SHARES), "LONG": LONG, "MAX_ROWS": _MAX_ROWS,
}  # fmt: skip


def render_page(summary: Mapping[str, Any], figures: Sequence[str] = ()) -> str:
    """The text of the page; `figures` are names of pictures in the folder NAME/ beside it."""
    arms = summary["arms"]
    thread_counts = sorted({variables.get("NPROC", "1") for variables in summary["made_with"]["threads"]})
    page_text = _PAGES.get_template("page.md.jinja").render(
        summary,
        folder=summary["name"],
        figures=figures,
        titles={arm["arm"]: arm["title"] for arm in arms},
        given=next((arm for arm in arms if arm["arm"] == summary["reference"]), None),
        tried_again=any(arm["settings"].get("evaluation.trials", 1) > 1 for arm in arms),
        learned=lambda name: all(name in arm["learning"] for arm in arms),
        reasons=list(dict.fromkeys(reason for arm in arms for reason in arm["refused"])),
        threads=" or ".join("one thread" if count == "1" else f"{count} threads" for count in thread_counts),
    )
    return re.sub(r"\n{3,}", "\n\n", page_text.strip()) + "\n"
