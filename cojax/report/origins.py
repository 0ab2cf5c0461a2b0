"""What the tasks of each origin were worth: groups, live groups, tools first solved, costs, and what was predicted.

An origin is what a task came from: a kind of signal, `uniform`, `unguided`, … The tasks of D_0 are among them.
"""

import bisect
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from cojax import worlds
from cojax.report.lineage import TaskHistory, TaskVisit
from cojax.report.run import Json, Run
from cojax.signals.tools import tools_of
from cojax.types import Action, Call

Record = Mapping[str, Any]
Counts = dict[str, Counter[str]]  # by origin
Pair = tuple[float, float]  # predicted and realised success, in [0, 1]

_BY = "success/"
# Pairs below which a rank correlation is not given.
LEAST = 5
# What predicts the success of a draft, in words.
PREDICTORS = {"beliefs": "beliefs", "probe": "a probe"}
_ATTEMPTS = re.compile(r"solved without hints: \d+ of (\d+) attempts")


def _sums(counted: Iterable[tuple[str, Mapping[str, int]]]) -> Counts:
    """The sums of the counts of each origin."""
    found: Counts = defaultdict(Counter)
    for origin, counts in counted:
        found[origin].update(counts)
    return found


def groups_by_origin(metrics: Iterable[Record]) -> Counts:
    """`groups` of the origin's tasks with two valid episodes, and `live` ones among them: rewards differ."""
    return _sums(counted for row in metrics for counted in row.get("origins", {}).items())


def explored_by_origin(expeditions: Iterable[Record]) -> Counts:
    """The explorer's `episodes` (runs of its expeditions) and `actions` (their environment steps)."""
    runs = ((one["origin"], one.get("runs", ())) for one in expeditions)
    return _sums(
        (origin, {"episodes": len(some), "actions": sum(run["actions"] for run in some)}) for origin, some in runs
    )


def probed_by_origin(metrics: Iterable[Record]) -> Counts | None:
    """`episodes` of probes before admission, and `actions` (their environment steps).

    None where a probe was made by a version that did not count by origin.
    """
    probes = [probe for row in metrics if (probe := row.get("evolution", {}).get("probe"))]
    if not all("origins" in probe for probe in probes):
        return None
    counted = (of_origin for probe in probes for of_origin in probe["origins"].items())
    return _sums((origin, {"episodes": one["episodes"], "actions": one["turns"]}) for origin, one in counted)


def attempted_by_origin(drafts: Iterable[Record]) -> Counts:
    """`episodes` of validation's attempts on the query alone that came to an end, as the evidence tells them."""
    lines = ((draft.get("origin", ""), line) for draft in drafts for line in draft["verdict"]["evidence"])
    told = ((origin, _ATTEMPTS.match(line)) for origin, line in lines)
    return _sums((origin, {"episodes": int(found[1])}) for origin, found in told if found)


def gradient_norms(metrics: Iterable[Record]) -> dict[str, float]:
    """Origin → mean `grad_norm` of steps, weighted by the origin's live groups in each.

    A step's norm is that of its whole update, in which the groups of all origins are. Steps without a norm are left
    out, and origins without a live group in the others.
    """
    total: Counter[str] = Counter()
    weights: Counter[str] = Counter()
    for row in metrics:
        norm = row.get("grad_norm")
        for origin, counts in row.get("origins", {}).items():
            if isinstance(norm, (int, float)) and counts["live"]:
                total[origin] += norm * counts["live"]
                weights[origin] += counts["live"]
    return {origin: total[origin] / weights[origin] for origin in weights}


def first_solved(visits: Iterable[tuple[str, Iterable[str], Sequence[TaskVisit]]]) -> dict[str, list[str]]:
    """Origin → the tools that its tasks were the first to solve, sorted.

    `visits` has (origin, tools of the solution, visits) of each task. A tool is solved by the first episode with full
    reward of a task whose solution calls it. In one step there is no order: a tool that tasks of several origins solve
    first in the same step counts for each of them.
    """
    first: dict[str, tuple[int, set[str]]] = {}
    for origin, tools, of_task in visits:
        step = min((visit.step for visit in of_task if visit.successes), default=None)
        if step is None:
            continue
        for tool in tools:
            best, origins = first.get(tool, (step, set()))
            if step < best:
                first[tool] = step, {origin}
            elif step == best:
                first[tool] = best, {*origins, origin}
    found: dict[str, list[str]] = defaultdict(list)
    for tool, (_, origins) in sorted(first.items()):
        for origin in origins:
            found[origin].append(tool)
    return found


def rank_correlation(pairs: Sequence[Pair]) -> Json:
    """Spearman's ρ: Pearson's correlation of the ranks, equal values having the mean of their ranks.

    `rho` of the number `pairs`, in [−1, 1], is None where it is not given; then `why` says the reason.
    """
    unknown = {"rho": None, "pairs": len(pairs)}
    if len(pairs) < LEAST:
        found = f"{len(pairs)} task{'' if len(pairs) == 1 else 's'}"
        return {**unknown, "why": f"{found} with a prediction and a known first visit; {LEAST} are needed"}
    for name, values in zip(("predicted", "realised"), zip(*pairs, strict=True), strict=True):
        if len(set(values)) == 1:
            return {**unknown, "why": f"the {name} success of all {len(pairs)} tasks is {values[0]:.2f}"}
    one, other = (_ranks(values) for values in zip(*pairs, strict=True))
    return {"rho": max(-1.0, min(1.0, statistics.correlation(one, other))), "pairs": len(pairs), "why": ""}


def _ranks(values: Sequence[float]) -> list[float]:
    """Twice the rank of each value among them; equal values have the mean of their ranks."""
    order = sorted(values)
    return [float(bisect.bisect_left(order, value) + bisect.bisect_right(order, value)) for value in values]


def predictions(
    drafts: Iterable[Record], predictor: str, realised: Callable[[str], float | None]
) -> dict[str, list[Pair]]:
    """Origin → (predicted, realised) of the drafts that became tasks, for one of PREDICTORS.

    `realised` gives the success of a task, by its id, at its first visit; None if it is not known. A record of an older
    version, without `predicted`, has no pair.
    """
    found: dict[str, list[Pair]] = defaultdict(list)
    for draft in drafts:
        guess = draft.get("predicted", {}).get(predictor)
        if guess is not None and draft.get("task") and (seen := realised(draft["task"])) is not None:
            found[draft.get("origin", "")].append((guess, seen))
    return found


def worth(run: Run, histories: Sequence[TaskHistory]) -> Json:
    """The data of the card: a row for each origin, the rank correlations over all origins, and what is not known.

    `histories` are those of all tasks. A count of None is not known; `notes` says why.
    """
    groups, explored = groups_by_origin(run.metrics), explored_by_origin(run.expeditions.values())
    probed, attempted = probed_by_origin(run.metrics), attempted_by_origin(run.drafts)
    norms, tasks = gradient_norms(run.metrics), Counter(task.origin for task in histories)
    # The first step whose episodes are stored; that after the last one if none are.
    kept = min(run.episodes.steps(), default=max((row["step"] for row in run.metrics), default=0) + 1)
    solved = None if kept > 1 else first_solved((t.origin, tools_in(run, run.tasks[t.id]), t.visits) for t in histories)
    # The success at a task's first visit, where the episodes of all steps since it joined are stored.
    realised = {task.id: task.visits[0].success for task in histories if task.visits and task.step + 1 >= kept}
    pairs = {name: predictions(run.drafts, name, realised.get) for name in PREDICTORS}
    names = sorted({*groups, *explored, *(probed or ()), *attempted, *tasks})
    rows = [
        {
            "origin": origin,
            "tasks": tasks[origin],
            "groups": groups[origin]["groups"] if origin in groups else None,
            "live": groups[origin]["live"] if origin in groups else None,
            "solved": None if solved is None else solved.get(origin, []),
            "explored": _cost(explored, origin),
            "probed": _cost(probed, origin),
            "attempted": attempted[origin]["episodes"] if origin in attempted else 0,
            "norm": norms.get(origin),
            "ranks": {name: rank_correlation(pairs[name].get(origin, [])) for name in PREDICTORS},
        }
        for origin in names
    ]
    every = {name: rank_correlation([pair for some in pairs[name].values() for pair in some]) for name in PREDICTORS}
    return {"rows": rows, "ranks": every, "notes": _notes(run, kept, probed is None, every)}


def tools_in(run: Run, task: Record) -> set[str]:
    """The tools that the solution of a task's record calls, without the one that ends an episode."""
    ending = run.config.get("config", {}).get("explorer", {}).get("ending", "")
    worlds.find_calls(task.get("environment", ""))
    called = ((action.get("text", ""), action.get("calls", ())) for action in task.get("solution", ()))
    actions = [Action(text=text, calls=tuple(Call(call["name"], {}) for call in calls)) for text, calls in called]
    return {tool for action in actions for tool in tools_of(action, task.get("environment", ""))} - {ending}


def _cost(found: Counts | None, origin: str) -> list[int] | None:
    """Episodes and environment steps; None where they are not known."""
    return None if found is None else [found.get(origin, Counter())[name] for name in ("episodes", "actions")]


def _notes(run: Run, kept: int, unknown_probe: bool, ranks: Mapping[str, Json]) -> list[str]:
    notes = []
    if run.metrics and not any("origins" in row for row in run.metrics):
        notes.append("Groups by origin are not known: an older version made this run.")
    if kept > 1 and run.metrics:
        notes.append(
            f"Tools first solved are not known: the episodes of steps before {kept} are not stored (episodes_kept)."
        )
    if unknown_probe:
        notes.append("What probes cost is not known by origin: an older version made them.")
    drafts = [draft for draft in run.drafts if draft["step"]]
    for name, found in ranks.items():
        if not any(draft.get("predicted", {}).get(name) is not None for draft in drafts):
            if drafts:
                notes.append(f"No draft has a success predicted by {PREDICTORS[name]}.")
        elif found["rho"] is None:
            notes.append(f"No rank correlation for {PREDICTORS[name]}: {found['why']}.")
    return notes


def gains(run: Run) -> Json:
    """A row for each tool: success before training and after it (`last`), in [0, 1], over how many evaluation tasks.

    A task counts for each tool that its solution calls. `added` is the number of synthesized tasks that call the tool.
    Where a run has no success by tool, the rows are of the kinds of `evaluation.by`: on the held-out split, or on the
    development split at its first and last evaluation. `added` and `tasks` are None there. `of` says which it is; there
    are no rows where a run has none of it, or only one evaluation so far.
    """
    first, last = (result.get("by_tool") or {} for result in (run.zero_shot, run.final))
    if first and last:
        added = Counter(tool for task in run.synthesized for tool in tools_in(run, task))
        one, other = ({tool: found["success"] for tool, found in result.items()} for result in (first, last))
        rows = _rows(one, other)
        return {
            "of": "tool",
            "rows": [{**r, "tasks": last[r["name"]]["tasks"], "added": added[r["name"]]} for r in rows],
        }
    by = run.config.get("config", {}).get("evaluation", {}).get("by") or "kind"
    one, other = (run.zero_shot.get("by") or {}, run.final.get("by") or {})
    if one and other:
        return {"of": by, "rows": _rows(one, other)}
    dev = [row["dev"] for row in run.metrics if row.get("dev")]
    if len(dev) < 2:
        return {"of": by, "rows": []}
    return {"of": f"{by}, development split", "rows": _rows(_by_kind(dev[0]), _by_kind(dev[-1]))}


def _by_kind(dev: Mapping[str, Any]) -> dict[str, float]:
    return {name.removeprefix(_BY): success for name, success in dev.items() if name.startswith(_BY)}


def _rows(one: Mapping[str, float], other: Mapping[str, float]) -> list[Json]:
    return [
        {"name": name, "first": one[name], "last": last, "gain": last - one[name], "tasks": None, "added": None}
        for name, last in sorted(other.items())
        if name in one
    ]
