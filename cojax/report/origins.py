"""What the tasks of each origin were worth: groups, live groups, tools first solved, costs, and what was predicted.

An origin is what a task came from: a kind of signal, `uniform`, `unguided`, … Tasks of D_0 have origins too.
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
CountsByOrigin = dict[str, Counter[str]]  # by origin
SuccessPair = tuple[float, float]  # predicted and realised success, in [0, 1]

_KIND_PREFIX = "success/"
# A rank correlation is given from this many pairs on.
LEAST = 5
# What predicts the success of a draft, in words.
PREDICTORS = {"beliefs": "beliefs", "probe": "a probe"}
_ATTEMPTS_PATTERN = re.compile(r"solved without hints: \d+ of (\d+) attempts")


def _add_up(pairs: Iterable[tuple[str, Mapping[str, int]]]) -> CountsByOrigin:
    """The sums of the counts of each origin."""
    sums: CountsByOrigin = defaultdict(Counter)
    for origin, counts in pairs:
        sums[origin].update(counts)
    return sums


def count_groups(metrics: Iterable[Record]) -> CountsByOrigin:
    """`groups` of the origin's tasks with two valid episodes, and how many of them are `live`: their rewards differ."""
    return _add_up(entry for record in metrics for entry in record.get("origins", {}).items())


def count_explored(expeditions: Iterable[Record]) -> CountsByOrigin:
    """The explorer's `episodes` (runs of its expeditions) and `actions` (their environment steps)."""
    entries = ((expedition["origin"], expedition.get("runs", ())) for expedition in expeditions)
    return _add_up(
        (origin, {"episodes": len(runs), "actions": sum(run["actions"] for run in runs)}) for origin, runs in entries
    )


def count_probed(metrics: Iterable[Record]) -> CountsByOrigin | None:
    """`episodes` of probes before admission, and `actions` (their environment steps).

    None if a version that did not count by origin made a probe.
    """
    probes = [probe for record in metrics if (probe := record.get("evolution", {}).get("probe"))]
    if not all("origins" in probe for probe in probes):
        return None
    entries = (entry for probe in probes for entry in probe["origins"].items())
    return _add_up((origin, {"episodes": counts["episodes"], "actions": counts["turns"]}) for origin, counts in entries)


def count_attempted(drafts: Iterable[Record]) -> CountsByOrigin:
    """`episodes` of validation's finished attempts on the query alone, as the lines of evidence report them."""
    evidence_lines = ((draft.get("origin", ""), line) for draft in drafts for line in draft["verdict"]["evidence"])
    matches = ((origin, _ATTEMPTS_PATTERN.match(line)) for origin, line in evidence_lines)
    return _add_up((origin, {"episodes": int(match[1])}) for origin, match in matches if match)


def average_norms(metrics: Iterable[Record]) -> dict[str, float]:
    """Origin → mean `grad_norm` of steps, weighted by the origin's live groups in each.

    A step's norm is that of its whole update, which includes the groups of all origins. Steps without a norm are left
    out, and so are origins without a live group in the other steps.
    """
    norm_sums: Counter[str] = Counter()
    group_counts: Counter[str] = Counter()
    for record in metrics:
        grad_norm = record.get("grad_norm")
        for origin, counts in record.get("origins", {}).items():
            if isinstance(grad_norm, (int, float)) and counts["live"]:
                norm_sums[origin] += grad_norm * counts["live"]
                group_counts[origin] += counts["live"]
    return {origin: norm_sums[origin] / group_counts[origin] for origin in group_counts}


def first_solved(visits: Iterable[tuple[str, Iterable[str], Sequence[TaskVisit]]]) -> dict[str, list[str]]:
    """Origin → the tools that its tasks were the first to solve, sorted.

    `visits` has (origin, tools of the solution, visits) of each task. A tool is solved by the first episode with full
    reward of a task whose solution calls it. Episodes of one step have no order: a tool that tasks of several origins
    solve first in the same step counts for each of them.
    """
    first_solves: dict[str, tuple[int, set[str]]] = {}
    for origin, tools, task_visits in visits:
        first_step = min((visit.step for visit in task_visits if visit.successes), default=None)
        if first_step is None:
            continue
        for tool in tools:
            earliest_step, origin_names = first_solves.get(tool, (first_step, set()))
            if first_step < earliest_step:
                first_solves[tool] = first_step, {origin}
            elif first_step == earliest_step:
                first_solves[tool] = earliest_step, {*origin_names, origin}
    tools_by_origin: dict[str, list[str]] = defaultdict(list)
    for tool, (_, origin_names) in sorted(first_solves.items()):
        for origin in origin_names:
            tools_by_origin[origin].append(tool)
    return tools_by_origin


def correlate_ranks(pairs: Sequence[SuccessPair]) -> Json:
    """Spearman's ρ: Pearson's correlation of the ranks, where equal values have the mean of their ranks.

    `rho` is in [−1, 1], and `pairs` is the number of pairs. If `rho` is None, `why` says the reason.
    """
    no_correlation = {"rho": None, "pairs": len(pairs)}
    if len(pairs) < LEAST:
        count_text = f"{len(pairs)} task{'' if len(pairs) == 1 else 's'}"
        return {**no_correlation, "why": f"{count_text} with a prediction and a known first visit; {LEAST} are needed"}
    for success_name, values in zip(("predicted", "realised"), zip(*pairs, strict=True), strict=True):
        if len(set(values)) == 1:
            return {**no_correlation, "why": f"the {success_name} success of all {len(pairs)} tasks is {values[0]:.2f}"}
    guess_ranks, real_ranks = (_rank_values(values) for values in zip(*pairs, strict=True))
    return {"rho": max(-1.0, min(1.0, statistics.correlation(guess_ranks, real_ranks))), "pairs": len(pairs), "why": ""}


def _rank_values(values: Sequence[float]) -> list[float]:
    """Twice the rank of each value among them; equal values have the mean of their ranks."""
    order = sorted(values)
    return [float(bisect.bisect_left(order, value) + bisect.bisect_right(order, value)) for value in values]


def pair_predictions(
    drafts: Iterable[Record], predictor: str, find_first_success: Callable[[str], float | None]
) -> dict[str, list[SuccessPair]]:
    """Origin → (predicted, realised) of the drafts that became tasks, for one of PREDICTORS.

    `find_first_success` gives the success of a task, by its id, at its first visit; None if it is not known. A record
    of an older version, without `predicted`, has no pair.
    """
    pairs_by_origin: dict[str, list[SuccessPair]] = defaultdict(list)
    for draft in drafts:
        prediction = draft.get("predicted", {}).get(predictor)
        if prediction is not None and draft.get("task") and (success := find_first_success(draft["task"])) is not None:
            pairs_by_origin[draft.get("origin", "")].append((prediction, success))
    return pairs_by_origin


def build_worth(run: Run, histories: Sequence[TaskHistory]) -> Json:
    """The data of the card: a row for each origin, the rank correlations over all origins, and what is not known.

    `histories` are those of all tasks. A count of None is not known; `notes` says why.
    """
    group_counts, exploration = count_groups(run.metrics), count_explored(run.expeditions.values())
    probes, attempts = count_probed(run.metrics), count_attempted(run.drafts)
    norms, task_counts = average_norms(run.metrics), Counter(task.origin for task in histories)
    # The first step whose episodes are stored; if none are, the one after the last step.
    first = min(run.episodes.list_steps(), default=max((record["step"] for record in run.metrics), default=0) + 1)
    tools = None if first > 1 else first_solved((t.origin, tools_in(run, run.tasks[t.id]), t.visits) for t in histories)
    # The success at a task's first visit, if the episodes of all steps since it joined are stored.
    success_by_task = {task.id: task.visits[0].success for task in histories if task.visits and task.step + 1 >= first}
    pairs = {name: pair_predictions(run.drafts, name, success_by_task.get) for name in PREDICTORS}
    all_origins = sorted({*group_counts, *exploration, *(probes or ()), *attempts, *task_counts})
    rows = [
        {
            "origin": origin,
            "tasks": task_counts[origin],
            "groups": group_counts[origin]["groups"] if origin in group_counts else None,
            "live": group_counts[origin]["live"] if origin in group_counts else None,
            "solved": None if tools is None else tools.get(origin, []),
            "explored": _find_cost(exploration, origin),
            "probed": _find_cost(probes, origin),
            "attempted": attempts[origin]["episodes"] if origin in attempts else 0,
            "norm": norms.get(origin),
            "ranks": {name: correlate_ranks(pairs[name].get(origin, [])) for name in PREDICTORS},
        }
        for origin in all_origins
    ]
    overall = {name: correlate_ranks([pair for group in pairs[name].values() for pair in group]) for name in PREDICTORS}
    return {"rows": rows, "ranks": overall, "notes": _write_notes(run, first, probes is None, overall)}


def tools_in(run: Run, task: Record) -> set[str]:
    """The tools that the solution of a task's record calls, without the one that ends an episode."""
    ending = run.config.get("config", {}).get("explorer", {}).get("ending", "")
    worlds.register_calls(task.get("environment", ""))
    rows = ((action.get("text", ""), action.get("calls", ())) for action in task.get("solution", ()))
    actions = [Action(text=text, calls=tuple(Call(call["name"], {}) for call in calls)) for text, calls in rows]
    return {tool for action in actions for tool in tools_of(action, task.get("environment", ""))} - {ending}


def _find_cost(counts: CountsByOrigin | None, origin: str) -> list[int] | None:
    """Episodes and environment steps; None if they are not known."""
    return None if counts is None else [counts.get(origin, Counter())[name] for name in ("episodes", "actions")]


def _write_notes(run: Run, earliest: int, lacks_probe_costs: bool, ranks: Mapping[str, Json]) -> list[str]:
    note_texts = []
    if run.metrics and not any("origins" in record for record in run.metrics):
        note_texts.append("Groups by origin are not known: an older version made this run.")
    if earliest > 1 and run.metrics:
        note_texts.append(
            f"Tools first solved are not known: the episodes of steps before {earliest} are not stored (episodes_kept)."
        )
    if lacks_probe_costs:
        note_texts.append("The cost of probes is not known by origin: an older version made them.")
    drafts = [draft for draft in run.drafts if draft["step"]]
    for predictor, correlation in ranks.items():
        if not any(draft.get("predicted", {}).get(predictor) is not None for draft in drafts):
            if drafts:
                note_texts.append(f"No draft has a success predicted by {PREDICTORS[predictor]}.")
        elif correlation["rho"] is None:
            note_texts.append(f"No rank correlation for {PREDICTORS[predictor]}: {correlation['why']}.")
    return note_texts


def build_gains(run: Run) -> Json:
    """A row for each tool: success before training and after it (`last`), in [0, 1], over how many evaluation tasks.

    A task counts for each tool that its solution calls. `added` is the number of synthesized tasks that call the tool.
    Where a run has no success by tool, the rows are of the kinds of `evaluation.by`: on the held-out split, or on the
    development split at its first and last evaluation. `added` and `tasks` are None there. `of` says which of these the
    rows are. There are no rows if a run has none of these figures, or only one evaluation so far.
    """
    first, last = (result.get("by_tool") or {} for result in (run.zero_shot, run.final))
    if first and last:
        added_counts = Counter(tool for task in run.synthesized_tasks for tool in tools_in(run, task))
        early, late_scores = ({tool: entry["success"] for tool, entry in result.items()} for result in (first, last))
        rows = _list_gains(early, late_scores)
        return {
            "of": "tool",
            "rows": [{**row, "tasks": last[row["name"]]["tasks"], "added": added_counts[row["name"]]} for row in rows],
        }
    key = run.config.get("config", {}).get("evaluation", {}).get("by") or "kind"
    early, late_scores = (run.zero_shot.get("by") or {}, run.final.get("by") or {})
    if early and late_scores:
        return {"of": key, "rows": _list_gains(early, late_scores)}
    dev = [record["dev"] for record in run.metrics if record.get("dev")]
    if len(dev) < 2:
        return {"of": key, "rows": []}
    return {"of": f"{key}, development split", "rows": _list_gains(_read_by_kind(dev[0]), _read_by_kind(dev[-1]))}


def _read_by_kind(dev: Mapping[str, Any]) -> dict[str, float]:
    return {kind.removeprefix(_KIND_PREFIX): success for kind, success in dev.items() if kind.startswith(_KIND_PREFIX)}


def _list_gains(before: Mapping[str, float], after: Mapping[str, float]) -> list[Json]:
    return [
        {"name": kind, "first": before[kind], "last": last, "gain": last - before[kind], "tasks": None, "added": None}
        for kind, last in sorted(after.items())
        if kind in before
    ]
