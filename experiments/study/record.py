"""Turns a finished run into its record, which has all that tables and figures need and is small enough for git."""

import functools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cojax import worlds
from cojax.environment import Charted, Environment
from cojax.pool import read_task_record
from cojax.quality import describe_pool, hashed_ngrams, measure_greatest
from cojax.report.figures import CONVERSION_COUNTS, count_conversions
from cojax.report.lineage import read_histories
from cojax.report.origins import build_worth
from cojax.report.run import Run, read_run
from cojax.run import states
from cojax.signals import SIGNALS
from cojax.storage.files import StorageError, read_json
from cojax.types import INFRASTRUCTURE, Task, content_hash
from .comparison import explain_mismatch
from .tables import StudyRun

# How many tasks of the development split span the plane, which is therefore the same for every run.
SPANNING_TASK_COUNT = 300
_COORDINATE_DIGITS = 4  # digits of figures whose further digits depend on the processor
Columns = dict[str, list[Any]]
COLUMNS = ("step", "origin", "turns", "tool", "x", "y", "similarity")


def load_environment(config: Mapping[str, Any]) -> Environment:
    """The environment of a run's configuration, with its settings, in this process."""
    environment_settings = {
        name: value for name, value in config["environment"].items() if name not in ("name", "isolated", "cluster")
    }
    return worlds.load(config["environment"]["name"], **environment_settings)


def least_popular(environment: Environment, ending: str) -> Callable[[Task], str]:
    """A function from a task to the least popular tool of its solution, without the tool `ending`, which ends episodes.

    It returns an empty text if there is no such tool or the environment does not know popularities.
    """
    popularities = environment.popularity() if isinstance(environment, Charted) else {}
    popularity_by_tool = {tool_name: value for tool_name, value in popularities.items() if tool_name != ending}

    def find_tool(task: Task) -> str:
        tool_names = [call.name for action in task.solution for call in action.calls if call.name in popularity_by_tool]
        return min(tool_names, key=lambda tool_name: (popularity_by_tool[tool_name], tool_name), default="")

    return find_tool


def describe_tasks(
    tasks: Sequence[Task], targets: Sequence[Task], find_tool: Callable[[Task], str], spanning_tasks: Sequence[Task]
) -> Columns:
    """The columns COLUMNS of at least one task.

    They are `step` and `origin` of the task, `turns` of its solution, its `tool`, `x` and `y` in the plane, and
    `similarity`, the greatest cosine to one of `targets`, the evaluated tasks. `spanning_tasks` are the tasks
    that span the plane.
    """
    embed = hashed_ngrams()
    embeddings = embed([task.query for task in tasks])
    centre, axes = _find_plane(tuple(task.query for task in spanning_tasks))
    points = (embeddings - centre) @ axes.T
    similarities = measure_greatest(embeddings, embed([task.query for task in targets]))
    return {
        "step": [task.lineage.step if task.lineage else 0 for task in tasks],
        "origin": [task.origin for task in tasks],
        "turns": [len(task.solution) for task in tasks],
        "tool": [find_tool(task) for task in tasks],
        "x": [round(float(x), _COORDINATE_DIGITS) for x in points[:, 0]],
        "y": [round(float(y), _COORDINATE_DIGITS) for y in points[:, 1]],
        "similarity": [round(float(cosine), _COORDINATE_DIGITS) for cosine in similarities],
    }


@functools.cache
def _find_plane(queries: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The centre float64[D] and the two principal axes float64[2, D] of these queries.

    The development tasks' queries put all runs in the same plane. The largest entry of an axis is positive.
    """
    embeddings = hashed_ngrams()(list(queries)).astype(np.float64)
    centre = embeddings.mean(axis=0)
    deviations = embeddings - centre
    # Computed from inner products of tasks: there are far fewer tasks than dimensions.
    eigenvalues, eigenvectors = np.linalg.eigh(deviations @ deviations.T)
    axes = (eigenvectors[:, -2:].T @ deviations)[::-1] / np.sqrt(eigenvalues[-2:][::-1])[:, None]
    return centre, axes * np.sign(axes[np.arange(2), np.abs(axes).argmax(axis=1)])[:, None]


Record = dict[str, Any]
# Columns of metrics.jsonl that a record has, one value a step.
CURVE_COLUMNS = ("success", "turns", "live_groups", "tasks")
_DIGITS = 6
# The part of a line of evidence that is about a single draft: from an id, a colon or a quoted text on.
_DETAIL_PATTERN = re.compile(r"(:| '| [0-9a-f]{12,}).*", re.DOTALL)
# Counts of an origin: groups played of its tasks, live groups among them, and the explorer's actions to find the tasks.
ORIGIN_COUNTS = ("groups", "live", "actions")
# Measures of an origin, where known: how many tools its tasks were the first to solve, and the mean norm of the
# gradient in the steps of its live groups.
ORIGIN_MEASURES = ("solved", "norm")
# Shares of an agent's failures: those with a partial reward that makes them hard negatives, those with different
# actions, and those with different end states.
FAILURE_SHARES = ("hard", "distinct", "ends")


def try_record(job: StudyRun, workdir: Path) -> tuple[Record | None, str]:
    """The record of the run in `workdir`, or None and why it has none."""
    try:
        return make_record(job, workdir), ""
    except StorageError as error:
        return None, str(error)
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        return None, f"{workdir} holds a damaged run ({error!r}); delete it and run the same command again"


def make_record(job: StudyRun, workdir: Path) -> Record:
    """Makes the record of the run in `workdir`.

    Raises StorageError, which says what is missing or different.
    """
    summary, config, *evaluations = (
        _read_run_file(workdir / f"{name}.json") for name in ("summary", "config", "zero_shot", "final")
    )
    if difference := explain_mismatch(config, job.config):
        raise StorageError(
            f"{workdir} holds a run with other settings: {difference}. Choose another --runs, or delete it"
        )
    if summary["steps"] != job.config["steps"]:
        raise StorageError(f"{workdir} ended after {summary['steps']} steps, not {job.config['steps']}; delete it")
    if any("tasks" not in evaluation for evaluation in evaluations):
        raise StorageError(f"{workdir} does not say which held-out tasks were solved; delete it and run it again")
    trials = evaluations[1].get("trials", [])
    run = read_run(workdir)
    metrics, drafts = run.metrics, run.drafts
    tasks = [read_task_record(record, line_number) for line_number, record in enumerate(run.tasks.values(), 1)]
    evaluation_settings = config["config"]["evaluation"]
    environment = load_environment(config["config"])
    evaluation_tasks = _find_evaluation_tasks(environment, evaluation_settings, workdir)
    # A run that has used up its budget has steps without episodes, which have no means.
    step_rows = [row for row in metrics if "success" in row and sum(row["outcomes"].values())]
    return {
        "arm": job.arm,
        "seed": job.seed,
        "split": evaluation_settings["split"],
        "settings": json.loads(json.dumps(dict(job.settings))),  # as it is read from a file: tuples become lists
        "config": job.config,
        "facts": {name: config[name] for name in ("versions", "commit", "hardware")},
        "threads": dict(job.variables),
        "steps": summary["steps"],
        "zero_shot": summary["zero_shot"],
        # The success of the last trial, if there are several.
        "final": trials[-1]["success"] if trials else summary["final"],
        "held_out": list_solved(evaluations[0]["tasks"], evaluations[1]["tasks_at_last" if trials else "tasks"]),
        "budget": count_budget(summary, metrics),
        **({"trials": trials} if trials else {}),
        "seconds": {phase: round(seconds, 2) for phase, seconds in summary["seconds"].items()},
        # The seconds of `feedback` after D_0 was made.
        "evolution_seconds": round(sum(row["seconds"].get("feedback", 0.0) for row in metrics), 2),
        "curves": {
            "step": [row["step"] for row in step_rows],
            **{name: [round(row[name], _DIGITS) for row in step_rows] for name in CURVE_COLUMNS},
        },
        "dev": [[row["step"], row["dev"]["success"]] for row in metrics if row.get("dev")],
        "learning": average_learning(metrics),
        "signals": {kind: [row["signals"][kind] for row in step_rows] for kind in SIGNALS},
        "evolutions": list_evolutions(run),
        **compute_worth(run),
        **({"failures": failure_record} if (failure_record := average_failures(metrics)) else {}),
        "refused": count_refusals(drafts),
        "initial_tools": list_initial_tools(tasks),
        "tasks": describe_tasks(
            tasks,
            evaluation_tasks,
            least_popular(environment, config["config"]["explorer"]["ending"]),
            environment.tasks("dev", SPANNING_TASK_COUNT) or tasks,
        ),
        "quality": describe_pool(tasks, evaluation_tasks, hashed_ngrams(), config["config"]["quality"]["k"]),
    }  # fmt: skip


def _find_evaluation_tasks(environment: Environment, evaluation: Mapping[str, Any], workdir: Path) -> Sequence[Task]:
    """The evaluation tasks: those of the environment, or those that the run held out."""
    tasks = environment.tasks(evaluation["split"], evaluation["tasks"], evaluation["seed"])
    if not tasks and (workdir / states.HELD_OUT).exists():
        return states.read_held_out(workdir / states.HELD_OUT)
    return tasks


def list_solved(scores_before: Mapping[str, float], scores_after: Mapping[str, float]) -> dict[str, Any]:
    """Which held-out tasks were solved before and after training.

    `zero_shot` and `final` have one character for each task, 1 or 0, in the order of task ids; `digest` is a hash of
    the ids. A task with an invalid episode before or after is left out.
    """
    task_ids = sorted(scores_before.keys() & scores_after.keys())
    return {
        "digest": content_hash(sorted(scores_before.keys() | scores_after.keys())),
        "tasks": len(task_ids),
        **{
            evaluation: "".join("1" if scores[task_id] >= 1.0 else "0" for task_id in task_ids)
            for evaluation, scores in (("zero_shot", scores_before), ("final", scores_after))
        },
    }


def count_budget(summary: Mapping[str, Any], metrics: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Counts what a run used: episodes of training and probes and their turns, tokens sampled and trained on, the
    explorer's actions, validated drafts, and added tasks."""
    step_records = list(metrics)
    evolutions = [row.get("evolution", {}) for row in step_records]
    probes = [evolution.get("probe", {}) for evolution in evolutions]

    def add_up(records: Iterable[Mapping[str, Any]], key: str) -> int:
        return sum(record.get(key, 0) for record in records)

    # Episodes in which an admission tried candidates count as episodes of the policy.
    turns, probe_episodes = add_up(probes, "turns"), add_up(probes, "episodes")
    for row in step_records:
        valid = sum(count for outcome, count in row["outcomes"].items() if outcome not in INFRASTRUCTURE)
        agents = [agent for key, agent in row.get("preference", {}).items() if key != "examples" and agent["episodes"]]
        turns += round(sum(agent["turns"] * agent["episodes"] for agent in agents) or row.get("turns", 0.0) * valid)
    return {
        "episodes": sum(sum(row["outcomes"].values()) for row in step_records) + probe_episodes,
        **({"probe_episodes": probe_episodes} if probe_episodes else {}),
        "turns": turns,
        "tokens_sampled": summary["tokens"]["sampled"] + add_up(probes, "tokens"),
        "tokens_trained": summary["tokens"]["trained"],
        "explorer_actions": add_up(evolutions, "triplets"),
        "drafts": add_up(evolutions, "drafts"),
        "tasks_added": summary["tasks_final"] - summary["tasks_initial"],
    }


def average_learning(metrics: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """The number of updates of a run, and means over updates of those metrics that every step reports."""
    update_rows = [row for row in metrics if row.get("updates")]
    update_count = sum(row["updates"] for row in update_rows)
    means = {
        metric: round(sum(row[metric] * row["updates"] for row in update_rows) / update_count, _DIGITS)
        for metric in ("clip_fraction", "grad_norm")
        if update_rows and all(metric in row for row in update_rows)
    }
    return {"updates": update_count, **means}


def list_evolutions(run: Run) -> list[dict[str, Any]]:
    """The counts CONVERSION of each evolution and origin."""
    return [
        {"step": step, "origin": origin, **{count_name: counts[count_name] for count_name in CONVERSION_COUNTS}}
        for (step, origin), counts in sorted(count_conversions(run).items())
    ]


def compute_worth(run: Run) -> dict[str, Any]:
    """The keys `origins` and `predicted` of a run's record, D_0's tasks included.

    `origins` has ORIGIN_COUNTS and ORIGIN_MEASURES by origin; a measure that is not known is None. `predicted` covers
    each predictor of the report (cojax/report/origins.py) that predicted the success of a task: Spearman's `rho` of
    predicted and realised success, None if the report gives none, and the number of `tasks`.
    """
    report_data = build_worth(run, read_histories(run))
    return {
        "origins": {
            origin_row["origin"]: {
                "groups": origin_row["groups"] or 0,
                "live": origin_row["live"] or 0,
                "actions": origin_row["explored"][1],
                "solved": None if origin_row["solved"] is None else len(origin_row["solved"]),
                "norm": None if origin_row["norm"] is None else round(origin_row["norm"], _DIGITS),
            }
            for origin_row in report_data["rows"]
        },
        "predicted": {
            predictor: {"rho": None if rank["rho"] is None else round(rank["rho"], _DIGITS), "tasks": rank["pairs"]}
            for predictor, rank in report_data["ranks"].items()
            if rank["pairs"]
        },
    }


def average_failures(metrics: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What metrics.jsonl says about a run's agents; {} for a run that learned from no preferences.

    `examples` are counts over all steps. For each agent `failures` is their share of its episodes, and `hard`,
    `distinct` and `ends` are shares of its failures (cojax/preference/rounds.py). `distance` is the second agent's
    distance from the target (nats a token) at the last step that knows it.
    """
    examples: Counter[str] = Counter()
    totals_by_agent: dict[str, Counter[str]] = {}
    kl_by_agent: dict[str, float] = {}
    for step_row in metrics:
        for agent, counts in step_row.get("preference", {}).items():
            if agent == "examples":
                examples.update(counts)
                continue
            agent_totals, failure_count = totals_by_agent.setdefault(agent, Counter()), counts["failures"]
            agent_totals.update(episodes=counts["episodes"], failures=failure_count, hard=counts["hard"])
            for count_name in ("distinct", "ends"):
                agent_totals[count_name] += counts.get(count_name, 0.0) * failure_count
            if counts.get("distance") is not None:
                kl_by_agent[agent] = counts["distance"]

    def compute_share(count: float, total: float) -> float | None:
        return round(count / total, _DIGITS) if total else None

    agent_figures = {
        agent: {
            "failures": compute_share(agent_totals["failures"], agent_totals["episodes"]),
            **{name: compute_share(agent_totals[name], agent_totals["failures"]) for name in FAILURE_SHARES},
            **({"distance": kl_by_agent[agent]} if agent in kl_by_agent else {}),
        }
        for agent, agent_totals in totals_by_agent.items()
    }
    return {"examples": dict(examples), "agents": agent_figures} if agent_figures or examples else {}


def count_refusals(drafts: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Counts drafts of evolutions that did not become tasks, by the beginning of the deciding line of evidence.

    The deciding line is the one about a failed run, or else the last.
    """
    lines = (draft["verdict"]["evidence"] for draft in drafts if draft["step"] and not draft["task"])
    reason = (next((line for line in evidence if line.startswith("run fails")), evidence[-1]) for evidence in lines)
    return dict(Counter(_DETAIL_PATTERN.sub("", line) for line in reason).most_common())


def list_initial_tools(tasks: Iterable[Task]) -> list[str]:
    """The tools that solutions of D_0's tasks use, by name."""
    solutions = [task.solution for task in tasks if not (task.lineage and task.lineage.step)]
    return sorted({call.name for solution in solutions for action in solution for call in action.calls})


def cross_table(held_out: Mapping[str, Any]) -> dict[str, int]:
    """Counts held-out tasks that were `kept` (solved before and after), `recovered`, `lost`, or `never` solved."""
    pair_counts = Counter(zip(held_out["zero_shot"], held_out["final"], strict=True))
    pair_by_name = {"kept": ("1", "1"), "recovered": ("0", "1"), "lost": ("1", "0"), "never": ("0", "0")}
    return {name: pair_counts[bits] for name, bits in pair_by_name.items()}


def _read_run_file(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except (OSError, ValueError) as error:
        # A run with a summary counts as finished, so running it again would write nothing.
        deletion_advice = f"delete {path.parent} and " if (path.parent / "summary.json").exists() else ""
        raise StorageError(f"{path} cannot be read ({error}); {deletion_advice}run the study again") from error
