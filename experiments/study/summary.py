"""Records of a table's runs → NAME.json: a row for each arm, paired differences, budgets, versions and machines.

NAME.json → NAME.md: the page of a table (page.md.jinja), with success in per cent and differences in points.
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
from cojax.registry.source import shortened
from cojax.report.figures import student
from cojax.report.origins import PREDICTORS
from cojax.types import Task, content_hash
from .record import FAILURE_SHARES, ORIGIN_COUNTS, ORIGIN_MEASURES, Record, cross_table, environment_of, least_popular
from .tables import ARMS, TITLES, Table

# Solutions of this many actions or more are one kind.
_OPEN_ROW = 6
# With this many tools, tasks are also grouped by tenths of the tools, and the worst tenth is told.
MANY = 60
LONG = 4  # a long task has at least as many actions, finish counted
ENOUGH = 30  # long tasks of which a page tells


def breakdowns(arms: Mapping[str, Sequence[Record]]) -> dict[str, list[dict[str, Any]]]:
    """Criterion → one row for each kind of task: `kind`, number of `tasks`, and shares solved, as means over seeds.

    The shares are `zero_shot` and after training, by arm, in `arms`; the argument maps an arm to its records. Empty
    where the environment now has other held-out tasks than the records, or where a run has an invalid episode.
    """
    used = [record for records in arms.values() for record in records]
    environment, tasks = held_out_tasks(used[0])
    known = {(record["held_out"]["digest"], record["held_out"]["tasks"]) for record in used}
    if known != {(content_hash([task.id for task in tasks]), len(tasks))}:
        return {}
    kinds: dict[str, list[tuple[Any, str]]] = {"actions": [_actions(task) for task in tasks]}
    if isinstance(environment, Charted):
        names, popularity = _tools_of(used[0])
        # The most popular ones first.
        kinds["tool"] = [(-popularity.get(name, 1.0), name) for name in names]
        found = sorted(set(kinds["tool"]))
        if len(found) >= MANY:
            tenths = {kind: 1 + 10 * place // len(found) for place, kind in enumerate(found)}
            kinds["popularity"] = [(tenths[kind], f"tenth {tenths[kind]}") for kind in kinds["tool"]]
    return {name: _rows(of, arms) for name, of in kinds.items()}


def _tools_of(record: Record) -> tuple[list[str], Mapping[str, float]]:
    """The least popular tool of each held-out task's solution, by task id, and the popularity of the tools."""
    environment, tasks = held_out_tasks(record)
    tool = least_popular(environment, record["config"]["explorer"]["ending"])
    return [tool(task) for task in tasks], environment.popularity() if isinstance(environment, Charted) else {}


def worst_tenth(records: Sequence[Record]) -> dict[int, float] | None:
    """Seed → mean success over the worst tenth of the tools after training; None with fewer than MANY tools.

    A task counts for the least popular tool of its solution. Which tenth is the worst is told from the same held-out
    tasks, for each run by itself: so the value is lower than what these tools would reach on other tasks.
    """
    return _tenth(records, lambda before, after, popularity: after)


def weakest_tenth(records: Sequence[Record]) -> dict[int, float] | None:
    """Like `worst_tenth`, over the tools of the lowest success before training; of equal ones, the least popular.

    So all arms of a seed are judged by the same tools, and no result after training decides which.
    """
    return _tenth(records, lambda before, after, popularity: (before, popularity))


def _tenth(records: Sequence[Record], order: Callable[[float, float, float], Any]) -> dict[int, float] | None:
    """Seed → mean success after training of the tenth of the tools that comes first by `order`.

    Its arguments are a tool's success before and after training, and its popularity.
    """
    names, popularity = _tools_of(records[0])
    sizes = Counter(names)
    if len(sizes) < MANY or any(record["held_out"]["tasks"] != len(names) for record in records):
        return None
    found = {}
    for record in records:
        before, after = (_shares(names, record["held_out"][when]) for when in ("zero_shot", "final"))
        ranked = sorted(sizes, key=lambda name: (order(before[name], after[name], popularity.get(name, 0.0)), name))
        found[record["seed"]] = _mean([after[name] for name in ranked[: max(1, round(len(ranked) / 10))]])
    return found


def long_tasks(records: Sequence[Record]) -> dict[int, float] | None:
    """Seed → success after training over the held-out tasks of at least LONG actions, finish counted.

    None where there are fewer than ENOUGH of them.
    """
    _, tasks = held_out_tasks(records[0])
    long = [len(task.solution) >= LONG for task in tasks]
    if sum(long) < ENOUGH or any(record["held_out"]["tasks"] != len(tasks) for record in records):
        return None
    return {record["seed"]: _shares(long, record["held_out"]["final"])[True] for record in records}


def _shares(kinds: Sequence[Any], bits: str) -> dict[Any, float]:
    """Kind → the share of its tasks that are solved. `kinds` holds that of each task, and `bits` 1 or 0 for each."""
    solved = Counter(kind for kind, bit in zip(kinds, bits, strict=True) if bit == "1")
    return {kind: solved[kind] / size for kind, size in Counter(kinds).items()}


def tasks_by_tool(arms: Mapping[str, Sequence[Record]]) -> dict[str, dict[str, float]]:
    """Least popular tool of a solution → arm → number of such tasks in the final set, mean over seeds.

    The most frequent tools over all arms come first. Empty where no tool's popularity is known.
    """
    counts = {
        arm: Counter(tool for record in records for tool in record["tasks"]["tool"] if tool)
        for arm, records in arms.items()
    }
    order = [tool for tool, _ in sum(counts.values(), Counter()).most_common()]
    return {tool: {arm: counts[arm][tool] / len(records) for arm, records in arms.items()} for tool in order}


def prior_mastery(records: Sequence[Record], rows: Sequence[Mapping[str, Any]]) -> float | None:
    """How well the policy could use the tools of added tasks before training.

    That is the mean over added tasks of the zero-shot success on held-out tasks with the same least popular tool, which
    `rows`, the breakdown by tool, has as a mean over the table's seeds. Tasks whose tool is not in `rows` are
    left out; None where all are.
    """
    known = {row["kind"]: row["zero_shot"] for row in rows}
    added = (
        tool
        for record in records
        for tool, step in zip(record["tasks"]["tool"], record["tasks"]["step"], strict=True)
        if step
    )
    return _mean_of_known([known.get(tool) for tool in added])


def _rows(kinds: Sequence[tuple[Any, str]], arms: Mapping[str, Sequence[Record]]) -> list[dict[str, Any]]:
    """One row for each kind. `kinds` holds (sort key, name) of each task, in the order of task ids."""
    sizes = Counter(kinds)

    def solved(records: Sequence[Record], when: str) -> Counter:
        counts: Counter = Counter()
        for record in records:
            counts.update(kind for kind, bit in zip(kinds, record["held_out"][when], strict=True) if bit == "1")
        return Counter({kind: count / len(records) for kind, count in counts.items()})

    start = solved(next(iter(arms.values())), "zero_shot")
    finals = {arm: solved(records, "final") for arm, records in arms.items()}
    return [
        {
            "kind": kind[1],
            "tasks": size,
            "zero_shot": start[kind] / size,
            "arms": {arm: found[kind] / size for arm, found in finals.items()},
        }
        for kind, size in sorted(sizes.items())
    ]


def held_out_tasks(record: Record) -> tuple[Environment, list[Task]]:
    """The environment, and the tasks that the run was evaluated on, by id: the order of `held_out` in its record."""
    return _held_out(
        *(json.dumps(record["config"][section], sort_keys=True) for section in ("environment", "evaluation"))
    )


@functools.lru_cache(maxsize=8)
def _held_out(environment: str, evaluation: str) -> tuple[Environment, list[Task]]:
    """A grown desk takes a second to make, and every part of a table asks for it."""
    made, section = environment_of({"environment": json.loads(environment)}), json.loads(evaluation)
    found = made.tasks(section["split"], section["tasks"], section["seed"])
    return made, sorted(found, key=lambda task: task.id)


def _actions(task: Task) -> tuple[int, str]:
    count = len(task.solution)
    return (count, str(count)) if count < _OPEN_ROW else (_OPEN_ROW, f"{_OPEN_ROW} and more")


Successes = Mapping[int, float | None]  # seed → success; None where there was nothing to evaluate on


def estimate(values: Sequence[float | None]) -> dict[str, Any]:
    """The `mean` over `count` seeds, and `low` and `high`, its 95 % interval, which are None for one seed.

    All three are None where a run was not evaluated. The interval is Student's (1908), x̄ ± t₀.₉₇₅(n−1) · s/√n with
    s² = Σ(x−x̄)²/(n−1). Raises ValueError for no values.
    """
    if not values:
        raise ValueError("no value to estimate from; run at least one seed")
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return {"mean": None, "low": None, "high": None, "count": len(values)}
    if len(known) == 1:
        return {"mean": known[0], "low": None, "high": None, "count": 1}
    mean, _, half = student(known)
    return {"mean": mean, "low": mean - half, "high": mean + half, "count": len(known)}


def paired_difference(one: Successes, other: Successes) -> dict[str, Any]:
    """`estimate` of one − other over the seeds that both have.

    Effects of the seed, above all of its warm start, cancel out. Raises ValueError where they share none.
    """
    pairs = [(one[seed], other[seed]) for seed in sorted(one.keys() & other.keys())]
    return estimate([None if ours is None or theirs is None else ours - theirs for ours, theirs in pairs])


Records = Mapping[tuple[str, int], Record]  # (arm, seed) → record
# The paper's task-set metrics of the pool at the end; None for what needs evaluation tasks, where there are none.
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
    by_arm = {arm: [records[arm, seed] for seed in complete] for arm in table.arms}
    if len(sets := {(record["split"], record["held_out"]["digest"]) for record in used}) > 1:
        raise ValueError(f"the runs of table {name!r} were evaluated on {len(sets)} different sets of tasks")
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
        # The changes to experiments/desk.py that all runs have.
        "common_settings": dict(
            one for one in used[0]["settings"].items() if all(one in record["settings"].items() for record in used)
        ),
        "zero_shot": _estimate(zero_shot),
        # All arms of a seed share a warm start: another zero-shot success means other code or another machine.
        "seeds_with_several_zero_shots": [
            seed for seed in complete if len({records[arm, seed]["zero_shot"] for arm in table.arms}) > 1
        ],
        "arms": [
            _row(arm, by_arm[arm], finals[arm], zero_shot, by_kind.get("tool", ())) for arm in table.arms
        ],
        "differences": [_difference(one, other, finals) for one, other in table.differences],
        # Success over a part of the held-out tasks, by arm, and its paired differences.
        **{
            name: {
                "arms": {arm: _estimate(one) for arm, one in found.items()},
                "differences": [_difference(one, other, found) for one, other in table.differences],
            }
            for name, found in parts.items() if found
        },
        "breakdowns": by_kind,
        "tasks_by_tool": tasks_by_tool(by_arm),
        "made_with": _made_with(used),
    }  # fmt: skip


def _row(
    arm: str, records: Sequence[Record], final: Successes, zero_shot: Successes, by_tool: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    live = [record["curves"]["live_groups"] for record in records]
    budgets = [{**record["budget"], "evaluation_episodes": _evaluation_episodes(record)} for record in records]
    learning = [record.get("learning", {}) for record in records]
    learned = [name for name in learning[0] if all(name in one for one in learning)]
    return {
        "arm": arm,
        "title": TITLES[arm],
        "settings": dict(ARMS[arm]),
        "final": _estimate(final),
        "gain": paired_difference(final, zero_shot),
        "cross_table": _mean_counts([cross_table(record["held_out"]) for record in records]),
        # None for an arm without steps.
        "live_groups": _mean([_mean(groups) for groups in live]) if all(live) else None,
        "budget": _mean_counts(budgets),
        # The metrics that all seeds have.
        "learning": _mean_counts([{n: one[n] for n in learned} for one in learning]),
        **{name: found for name, mean in _SOME.items() if (found := mean(records))},
        "refused": dict(Counter(_mean_counts([record["refused"] for record in records])).most_common()),
        "quality": {name: _mean_if_known([find(one["quality"]) for one in records]) for name, find in QUALITY.items()},
        "mastered": prior_mastery(records, by_tool),
        "seconds": _mean([record["seconds"]["total"] for record in records]),
        "feedback_share": _mean([record["evolution_seconds"] / record["seconds"]["total"] for record in records]),
    }


def _mean_counts(counts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Means of counts over all records, in their order; a record without a count has 0."""
    names = dict.fromkeys(name for one in counts for name in one)
    return {name: _mean([one.get(name, 0) for one in counts]) for name in names}


def _evaluation_episodes(record: Record) -> int:
    """Episodes of the final evaluation: more than tasks where a failed task is tried again."""
    trials = record.get("trials")
    return sum(trial["episodes"] for trial in trials) if trials else record["held_out"]["tasks"]


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
            **{name: _mean([one.get(name, 0) for one in of]) for name in ORIGIN_COUNTS},
            **{name: _mean_of_known([one.get(name) for one in of]) for name in ORIGIN_MEASURES},
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
            tasks = _mean([one["tasks"] for one in known])
            found[name] = {"rho": _mean_of_known([one["rho"] for one in given]), "runs": len(given), "tasks": tasks}
    return found


def mean_failures(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means over those of an arm's records that tell of failures, with their number; {} if none does."""
    known = [record["failures"] for record in records if record.get("failures")]
    if not known:
        return {}
    examples = _mean_counts([one["examples"] for one in known])
    agents = {
        agent: [one["agents"][agent] for one in known]
        for agent in ("target", "second")
        if all(agent in one["agents"] for one in known)
    }
    return {
        "records": len(known),
        "examples": {name: examples[name] for name in EXAMPLES if name in examples},
        "agents": {
            agent: {name: _mean_if_known([one.get(name) for one in of]) for name in dict.fromkeys(itertools.chain(*of))}
            for agent, of in agents.items()
        },
    }


# What not every record tells: the keys of a row, and its means over records.
_SOME = {"origins": mean_worth, "predicted": mean_predicted, "failures": mean_failures}


def _difference(one: str, other: str, finals: Mapping[str, Successes]) -> dict[str, Any]:
    by_seed = {
        str(seed): ours - theirs
        for seed, ours in finals[one].items()
        if ours is not None and (theirs := finals[other].get(seed)) is not None
    }
    return {
        "one": one,
        "other": other,
        **paired_difference(finals[one], finals[other]),
        "by_seed": by_seed,
        "seeds_above_0": sum(value > 0 for value in by_seed.values()),
    }


def _estimate(by_seed: Successes) -> dict[str, Any]:
    return {**estimate(list(by_seed.values())), "by_seed": {str(seed): value for seed, value in by_seed.items()}}


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
    """The mean; None unless all are known."""
    return None if None in values else _mean_of_known(values)


def _mean_of_known(values: Sequence[float | None]) -> float | None:
    """The mean of those that are known; None if none is."""
    known = [value for value in values if value is not None]
    return _mean(known) if known else None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


# A table by tool is left out of the page where it has more rows; NAME.json has it.
_MOST_ROWS = 60
_PAGES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    trim_blocks=True,
    autoescape=False,  # a page of Markdown
)


def percent(share: Any, digits: int = 1, unknown: str = "–", unit: str = "") -> str:
    """A share in per cent; `unknown`, a dash, where it is not known."""
    return _told(100 * share if isinstance(share, (int, float)) else None, f".{digits}f", unknown, unit)


def _told(value: Any, form: str, unknown: str = "–", unit: str = "") -> str:
    """The value in this form, such as ".1f", with its unit; `unknown`, a dash, where it is not known."""
    return f"{value:{form}}{unit}" if isinstance(value, (int, float)) else unknown


def _interval(found: Mapping[str, Any]) -> str:
    """A mean share (keys mean, low, high) in per cent, with half the width of its interval where it has one."""
    half = "" if found["low"] is None else f" ± {100 * (found['high'] - found['mean']):.1f}"
    return percent(found["mean"]) + half


def _points(value: float | None) -> str:
    """A difference of shares in points, with its sign."""
    return _told(None if value is None else 100 * value, "+.1f")


def _bounds(row: Mapping[str, Any]) -> str:
    """The interval of a difference in points."""
    return "" if row["low"] is None else f"[{_points(row['low'])}, {_points(row['high'])}]"


def _compared(arm: Mapping[str, Any], name: str, reference: Mapping[str, Any] | None) -> str:
    """A budget of an arm; in brackets how much more it is than the reference's."""
    value = arm["budget"].get(name, 0)
    against = reference["budget"].get(name, 0) if reference and reference is not arm else 0
    return f"{value:,.0f}" + (f" ({100 * (value / against - 1):+.0f} %)" if against else "")


def _rate(gain: float, unit: int, cost: float) -> str:
    """Points gained per `unit` of a cost; a dash where an arm cost nothing."""
    return _told(unit * (100 * gain) / cost if cost else None, ".2f")


def _one_line(text: str) -> str:
    return " ".join(text.split()) + "\n"


def _head(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n|{' --- |' * len(cells)}"


_PAGES.filters |= {
    "percent": percent, "told": _told, "interval": _interval, "points": _points, "bounds": _bounds,
    "compared": _compared, "rate": _rate, "one_line": _one_line, "shortened": shortened,
}  # fmt: skip
_PAGES.globals |= {
    "head": _head, "EXAMPLES": EXAMPLES, "FAILURE_SHARES": list(FAILURE_SHARES), "LONG": LONG, "MOST_ROWS": _MOST_ROWS,
}  # fmt: skip


def render_page(summary: Mapping[str, Any], figures: Sequence[str] = ()) -> str:
    """The text of the page; `figures` are names of pictures in the folder NAME/ beside it."""
    arms = summary["arms"]
    counts = sorted({one.get("NPROC", "1") for one in summary["made_with"]["threads"]})
    text = _PAGES.get_template("page.md.jinja").render(
        summary,
        folder=summary["name"],
        figures=figures,
        titles={arm["arm"]: arm["title"] for arm in arms},
        given=next((arm for arm in arms if arm["arm"] == summary["reference"]), None),
        tried_again=any(arm["settings"].get("evaluation.trials", 1) > 1 for arm in arms),
        learned=lambda name: all(name in arm["learning"] for arm in arms),
        reasons=list(dict.fromkeys(reason for arm in arms for reason in arm["refused"])),
        threads=" or ".join("one thread" if count == "1" else f"{count} threads" for count in counts),
    )
    return re.sub(r"\n{3,}", "\n\n", text.strip()) + "\n"
