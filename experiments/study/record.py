"""A finished run → its record: all that tables and figures need, small enough to be stored in git."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cojax.environment import Environment
from cojax.pool import task_from_record
from cojax.quality import HashedNgrams, describe_pool
from cojax.report.run import read_run
from cojax.run import held_out
from cojax.signals import SIGNALS
from cojax.storage.files import Log, StorageError, read_json
from cojax.types import INFRASTRUCTURE, Task, content_hash
from .comparison import mismatch
from .failures import failures_of
from .origins import worth_of
from .runs import StudyRun
from .tasks import SPANNING, describe_tasks, environment_of, least_popular

Record = dict[str, Any]
# Columns of metrics.jsonl that a record has, one value a step.
CURVES = ("success", "turns", "live_groups", "tasks")
_DIGITS = 6
# The part of a line of evidence that is about a single draft: from an id, a colon or a quoted text on.
_DETAIL = re.compile(r"(:| '| [0-9a-f]{12,}).*", re.DOTALL)
# What is counted of each evolution and origin.
EVOLUTION = ("expeditions", "fruitful", "drafts", "tasks")


class NotFinished(RuntimeError):
    """The run directory holds no finished run, or one of an older version of this code."""


def record_or_reason(job: StudyRun, workdir: Path) -> tuple[Record | None, str]:
    """The record of the run in `workdir`, or None and why it has none."""
    try:
        return record_of(job, workdir), ""
    except (NotFinished, StorageError) as error:
        return None, str(error)
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        return None, f"{workdir} holds a damaged run ({error!r}); delete it and run the same command again"


def record_of(job: StudyRun, workdir: Path) -> Record:
    """Makes the record of the run in `workdir`.

    Raises NotFinished that says what is missing or different.
    """
    summary, config = _read(workdir / "summary.json"), _read(workdir / "config.json")
    evaluations = [_read(workdir / f"{name}.json") for name in ("zero_shot", "final")]
    if different := mismatch(config, job.config):
        raise NotFinished(
            f"{workdir} holds a run with other settings: {different}. Choose another --runs, or delete it"
        )
    _check_whole(summary, evaluations, job, workdir)
    trials = evaluations[1].get("trials", [])
    metrics, expeditions, drafts = (
        list(Log(workdir / f"{name}.jsonl").read()) for name in ("metrics", "expeditions", "drafts")
    )
    tasks = [task_from_record(record, line) for line, record in enumerate(Log(workdir / "tasks.jsonl").read(), 1)]
    evaluation = config["config"]["evaluation"]
    environment = environment_of(config["config"])
    targets = _evaluated(environment, evaluation, workdir)
    # A run that has used up its budget has steps without episodes, and so without means over them.
    played = [row for row in metrics if "success" in row and sum(row["outcomes"].values())]
    return {
        "arm": job.arm,
        "seed": job.seed,
        "split": evaluation["split"],
        "settings": json.loads(json.dumps(dict(job.settings))),  # as it is read again: tuples as lists
        "config": job.config,
        "facts": {name: config[name] for name in ("versions", "commit", "hardware")},
        "threads": dict(job.variables),
        "steps": summary["steps"],
        "zero_shot": summary["zero_shot"],
        # The success of the last trial, where there are several.
        "final": trials[-1]["success"] if trials else summary["final"],
        "held_out": solved_tasks(evaluations[0]["tasks"], evaluations[1]["tasks_at_last" if trials else "tasks"]),
        "budget": budget(summary, metrics),
        **({"trials": trials} if trials else {}),
        "seconds": {part: round(spent, 2) for part, spent in summary["seconds"].items()},
        # The seconds of `feedback` after D_0 was made.
        "evolution_seconds": round(sum(row["seconds"].get("feedback", 0.0) for row in metrics), 2),
        "curves": {
            "step": [row["step"] for row in played],
            **{name: [round(row[name], _DIGITS) for row in played] for name in CURVES},
        },
        "dev": [[row["step"], row["dev"]["success"]] for row in metrics if row.get("dev")],
        "learning": learning(metrics),
        "signals": {kind: [row["signals"][kind] for row in played] for kind in SIGNALS},
        "evolutions": evolutions(expeditions, drafts),
        **worth_of(read_run(workdir)),
        **({"failures": failures} if (failures := failures_of(metrics)) else {}),
        "refused": refusal_counts(drafts),
        "tasks": describe_tasks(
            tasks,
            targets,
            least_popular(environment, config["config"]["explorer"]["ending"]),
            environment.tasks("dev", SPANNING) or tasks,
        ),
        "quality": describe_pool(tasks, targets, HashedNgrams(), config["config"]["quality"]["k"]),
    }  # fmt: skip


def _check_whole(
    summary: Mapping[str, Any], evaluations: Sequence[Mapping[str, Any]], job: StudyRun, workdir: Path
) -> None:
    """Raises NotFinished for a run that ended early, or that does not know its evaluation task by task."""
    if summary["steps"] != job.config["steps"]:
        raise NotFinished(f"{workdir} ended after {summary['steps']} steps, not {job.config['steps']}; delete it")
    if any("tasks" not in found for found in evaluations):
        raise NotFinished(f"{workdir} does not say which held-out tasks were solved; delete it and run the study again")


def _evaluated(environment: Environment, evaluation: Mapping[str, Any], workdir: Path) -> Sequence[Task]:
    """The evaluation tasks: the environment's own, or those that the run held out."""
    tasks = environment.tasks(evaluation["split"], evaluation["tasks"], evaluation["seed"])
    if not tasks and (workdir / held_out.FILE).exists():
        return held_out.stored(workdir / held_out.FILE)
    return tasks


def solved_tasks(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, Any]:
    """Which held-out tasks were solved before and after training.

    `zero_shot` and `final` have one character for each task, 1 or 0, in the order of task ids; `digest` is a hash of
    the ids. A task with an invalid episode before or after is left out.
    """
    ids = sorted(before.keys() & after.keys())
    return {
        "digest": content_hash(sorted(before.keys() | after.keys())),
        "tasks": len(ids),
        **{
            name: "".join("1" if scores[id] >= 1.0 else "0" for id in ids)
            for name, scores in (("zero_shot", before), ("final", after))
        },
    }


def budget(summary: Mapping[str, Any], metrics: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """What a run used: episodes of training and of probes and their turns, tokens sampled and learned from,
    actions of the explorer, drafts validated, tasks added."""
    turns = episodes = explored = drafts = probed = sampled = 0
    for row in metrics:
        valid = sum(count for outcome, count in row["outcomes"].items() if outcome not in INFRASTRUCTURE)
        episodes += sum(row["outcomes"].values())
        agents = [one for name, one in row.get("preference", {}).items() if name != "examples" and one["episodes"]]
        turns += round(sum(one["turns"] * one["episodes"] for one in agents) or row.get("turns", 0.0) * valid)
        evolution = row.get("evolution", {})
        explored += evolution.get("triplets", 0)
        drafts += evolution.get("drafts", 0)
        # Episodes by which an admission tried candidates are episodes of the policy like all others.
        probe = evolution.get("probe", {})
        probed += probe.get("episodes", 0)
        turns += probe.get("turns", 0)
        sampled += probe.get("tokens", 0)
    return {
        "episodes": episodes + probed,
        **({"probe_episodes": probed} if probed else {}),
        "turns": turns,
        "tokens_sampled": summary["tokens"]["sampled"] + sampled,
        "tokens_trained": summary["tokens"]["trained"],
        "explorer_actions": explored,
        "drafts": drafts,
        "tasks_added": summary["tasks_final"] - summary["tasks_initial"],
    }


def learning(metrics: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """The number of updates of a run, and means over updates of those metrics that every step reports."""
    learned = [row for row in metrics if row.get("updates")]
    updates = sum(row["updates"] for row in learned)
    means = {
        name: round(sum(row[name] * row["updates"] for row in learned) / updates, _DIGITS)
        for name in ("clip_fraction", "grad_norm")
        if learned and all(name in row for row in learned)
    }
    return {"updates": updates, **means}


def evolutions(expeditions: Iterable[Mapping[str, Any]], drafts: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each evolution and origin: expeditions, those of them that brought a task (fruitful), drafts, and tasks."""
    counts: dict[tuple[int, str], Counter[str]] = {}
    for one in expeditions:
        if one["step"]:
            counts.setdefault((one["step"], one["origin"]), Counter())["expeditions"] += 1
    fruitful: set[tuple[int, int]] = set()
    for draft in drafts:
        if not draft["step"]:
            continue
        of = counts.setdefault((draft["step"], draft["origin"]), Counter())
        of["drafts"] += 1
        if draft["task"]:
            of["tasks"] += 1
            trip = draft["step"], draft["expedition"]
            of["fruitful"] += trip not in fruitful
            fruitful.add(trip)
    return [
        {"step": step, "origin": origin, **{name: of[name] for name in EVOLUTION}}
        for (step, origin), of in sorted(counts.items())
    ]


def refusal_counts(drafts: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Counts drafts of evolutions that did not become tasks, by the beginning of the deciding line of evidence.

    That is the line about a failed run if there is one, else the last.
    """
    lines = (draft["verdict"]["evidence"] for draft in drafts if draft["step"] and not draft["task"])
    why = (next((line for line in evidence if line.startswith("run fails")), evidence[-1]) for evidence in lines)
    return dict(Counter(_DETAIL.sub("", line) for line in why).most_common())


def cross_table(held_out: Mapping[str, Any]) -> dict[str, int]:
    """Held-out tasks that were `kept` (solved before and after), `recovered`, `lost`, or `never` solved."""
    pairs = Counter(zip(held_out["zero_shot"], held_out["final"], strict=True))
    names = {"kept": ("1", "1"), "recovered": ("0", "1"), "lost": ("1", "0"), "never": ("0", "0")}
    return {name: pairs[pair] for name, pair in names.items()}


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except (OSError, ValueError) as error:
        # A run with a summary counts as finished, so running it again would write nothing.
        begin = f"delete {path.parent} and " if (path.parent / "summary.json").exists() else ""
        raise NotFinished(f"{path} cannot be read ({error}); {begin}run the study again") from error
