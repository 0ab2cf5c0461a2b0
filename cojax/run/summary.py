"""A run's evaluations: on the development split, and on the held-out one before training and after it; summary.json."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, get_args

from ml_collections import ConfigDict

from cojax import signals
from cojax.environment import Environment
from cojax.host.stopwatch import Stopwatch
from cojax.learner.learner import Learner
from cojax.learner.update import TrainState
from cojax.preference import PAIR_KINDS
from cojax.registry import find
from cojax.report.console import CONSOLE, show_bar
from cojax.report.run import count_verdicts
from cojax.rollout.chat import PolicyActors
from cojax.rollout.collect import EpisodeCollector
from cojax.run.parts import Parts, make_sampling
from cojax.run.trained import read_origin
from cojax.scoring import compute_score, measure_by_kind, measure_success_by
from cojax.signals.tools import tools_of
from cojax.storage.files import read_json
from cojax.storage.run_directory import RunDirectory
from cojax.types import Group, Status, Task, Trajectory

MAX_SHOWN_TASKS = 24  # a run stores the episodes of at most this many evaluation tasks, for its report


# How failed tasks are tried again: (play, environment, the first trial's groups, most trials, whether the policy notes
# why it failed, characters of a failed episode that it then sees) → each task's last group, and a record of each trial:
# its `success` is the share of all tasks that are solved after it; the rest counts this trial alone.
Retry = Callable[..., tuple[list[Group], list[dict[str, Any]]]]
RETRIALS: dict[str, Retry | str] = {"reflexion": "experiments.study.reflexion:retry_failures"}


def measure_development(config: ConfigDict, parts: Parts, step: int, tasks: Sequence[Task]) -> dict[str, float]:
    """Measures success on these development tasks, overall and for each value of evaluation.by, as in metrics.jsonl.

    Without a development split, they are tasks to train on.
    """
    environment = parts.evaluated_in if parts.development else parts.environment
    collector = _make_collector(config, parts, config.evaluation.temperature, environment)
    groups = collector.collect(tasks, seed=(config.seed, step), label=f"dev{step}")
    split_result, success_by_value = compute_score(groups), _measure_success_by_value(config, groups)
    value_fields = {f"success/{kind_name}": success for kind_name, success in success_by_value.items()}
    return {"success": split_result.success, "partial": split_result.partial, "lost": split_result.lost, **value_fields}


def measure_held_out(
    config: ConfigDict, parts: Parts, description: str, trials: int = 1
) -> tuple[dict[str, Any], Sequence[Trajectory]]:
    """Measures success on the evaluation split, as in final.json; returns it with episodes of at most MAX_SHOWN_TASKS.

    Success is given overall, for each value of evaluation.by (`by`), for each tool, over the tasks whose solution calls
    it (`by_tool`), and for each task by its id, which shows what training kept, gained and lost. Tasks without a valid
    episode have no score. If there is nothing to evaluate on, the success is None, and there are no tasks.

    A failed task is tried up to `trials` times. Then `trials` holds the result of each trial, and `tasks_at_last` the
    score of each task's last one; everything else is of the first trial.
    """
    if not parts.evaluation:
        return {"success": None, "tasks": {}}, ()
    section, trial_count = config.evaluation, 0

    def play(environment: Environment, tasks: Sequence[Task], label: str) -> list[Group]:
        nonlocal trial_count
        # At temperature 0 a second trial would repeat the first.
        temperature = config.sampling.temperature if trial_count else section.temperature
        # The machinery may lose as many episodes as when all tasks are played.
        error_rate = min(1.0, parts.limits.error_rate * len(parts.evaluation) / len(tasks))
        with show_bar(f"{description}, {label}" if trial_count else description, len(tasks)) as advance:
            collector = dataclasses.replace(
                _make_collector(config, parts, temperature, environment),
                limits=dataclasses.replace(parts.limits, error_rate=error_rate),
            )
            seed = (config.seed, 0, trial_count) if trial_count else (config.seed, 0)
            groups = collector.collect(tasks, seed=seed, label=label, on_episode=lambda trajectory: advance())
        trial_count += 1
        return groups

    groups = play(parts.evaluated_in, parts.evaluation, "eval")
    result = compute_score(groups)
    record: dict[str, Any] = {
        "success": result.success,
        "error": result.error,
        "partial": result.partial,
        "lost": result.lost,
        "bounds": list(result.bounds),
        "by": _measure_success_by_value(config, groups),
        "by_tool": measure_tools(groups, config.explorer.ending),
        "tasks": _list_scores(groups),
    }
    if trials == 1:
        return record, sample_trajectories(groups)
    # Notes are bounded in characters. A token has at least one or two, so half of the context is left for notes.
    retry = find("retrial", "reflexion", RETRIALS)
    last_groups, records = retry(play, parts.evaluated_in, groups, trials, section.reflect, config.engine.max_length)
    return {**record, "trials": records, "tasks_at_last": _list_scores(last_groups)}, sample_trajectories(groups)


def sample_trajectories(groups: Sequence[Group]) -> list[Trajectory]:
    """Returns the first episode of at most MAX_SHOWN_TASKS groups, spread evenly over all, whatever their outcome."""
    return [group.trajectories[0] for group in groups[:: max(1, -(-len(groups) // MAX_SHOWN_TASKS))]]


def _make_collector(config: ConfigDict, parts: Parts, temperature: float, environment: Environment) -> EpisodeCollector:
    """Builds the collector that plays one episode of each task with the engine's policy."""
    actors = PolicyActors(parts.engine, parts.chat, make_sampling(config, parts.chat, temperature))
    return EpisodeCollector(actors, environment, parts.limits)


def _list_scores(groups: Sequence[Group]) -> dict[str, float]:
    return {group.task.id: group.score for group in groups if group.valid}


def measure_tools(groups: Sequence[Group], ending: str) -> dict[str, dict[str, Any]]:
    """For each tool but `ending`, `success` on the tasks whose solution calls it, and the number of these `tasks`."""

    def find_tools(task: Task) -> set[str]:
        return {tool for action in task.solution for tool in tools_of(action, task.environment)} - {ending}

    return measure_by_kind(groups, find_tools)


def _measure_success_by_value(config: ConfigDict, groups: Sequence[Group]) -> dict[str, float]:
    return measure_success_by(groups, config.evaluation.by) if config.evaluation.by else {}


def build_summary(
    step_count: int,
    directory: RunDirectory,
    zero_shot: float | None,
    final_record: Mapping[str, Any],
    clock: Stopwatch,
    similarities: Mapping[str, float],
) -> dict[str, Any]:
    """Builds summary.json: the result, the counts of what happened, and the seconds of each part.

    `final_record` is as in final.json. `trials` are the successes after each trial, if failed tasks are tried again.
    `final_by` is the final success for each kind of task, if evaluation.by names a key of kinds. `similarities` are as
    cojax/run/parts.py records them. `origin` is as in cojax/run/trained.py.
    """
    step_records = list(directory.metrics.read())
    evolutions = [record["evolution"] for record in step_records if "evolution" in record]
    trained_tokens = sum(record["tokens_trained"] for record in step_records)
    compared_records = [record for record in step_records if "logprob_mismatch" in record]
    mismatch_sum = sum(record["logprob_mismatch"] * record["tokens_trained"] for record in compared_records)
    task_count = sum(1 for _ in directory.tasks.read())
    added_counts = _sum_counts(evolution["added"] for evolution in evolutions)
    return {
        "origin": read_origin(directory.folder, step_count),
        "zero_shot": zero_shot,
        "final": final_record["success"],
        **({"final_by": final_record["by"]} if final_record.get("by") else {}),
        **({"trials": [trial["success"] for trial in final_record["trials"]]} if "trials" in final_record else {}),
        **similarities,
        "steps": step_count,
        "tasks_initial": task_count - sum(added_counts.values()),
        "tasks_final": task_count,
        "signals": dict.fromkeys(signals.SIGNALS, 0) | _sum_counts(record["signals"] for record in step_records),
        "verdicts": dict.fromkeys(get_args(Status), 0) | _sum_counts(map(count_verdicts, evolutions)),
        "added": added_counts,
        **_sum_probe_costs(evolutions),
        "initial": read_json(initial_path) if (initial_path := directory.folder / "initial.json").exists() else {},
        "explorer": _sum_exploration(evolutions),
        "quality": evolutions[-1].get("quality", {}) if evolutions else {},
        "outcomes": _sum_counts(record["outcomes"] for record in step_records),
        "seconds": clock.summary(),
        "tokens": {"sampled": sum(record["tokens_sampled"] for record in step_records), "trained": int(trained_tokens)},
        "logprob_mismatch": mismatch_sum / (sum(record["tokens_trained"] for record in compared_records) or 1.0),
        "hard_negatives": _count_hard_negatives(step_records),
    }


def _count_hard_negatives(records: Sequence[Mapping[str, Any]]) -> float | None:
    """Share of all agents' failures that are hard negatives; None if no failure was compared with anything."""
    if grpo_steps := [record for record in records if "hard_negatives" in record]:
        if not any(record["hard_pairs"] for record in grpo_steps):
            return None
        return sum(record["hard_negatives"] for record in grpo_steps) / sum(record["failures"] for record in grpo_steps)
    round_records = [record["preference"] for record in records if "preference" in record]
    if not any(record["examples"].get(kind) for record in round_records for kind in PAIR_KINDS):
        return None
    agent_figures = [record[agent] for record in round_records for agent in ("target", "second") if agent in record]
    return sum(agent["hard"] for agent in agent_figures) / sum(agent["failures"] for agent in agent_figures)


def _sum_exploration(evolutions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Sums up the evolutions' expeditions, and their cost if a model explored."""
    expedition_figures = [evolution["explorer"] for evolution in evolutions if "explorer" in evolution]
    cost_names = {cost_name for costs in expedition_figures for cost_name in costs if cost_name != "failures"}
    return {
        "expeditions": sum(evolution["expeditions"] for evolution in evolutions),
        "explorer_failures": sum(evolution["explorer_failures"] for evolution in evolutions),
        **{cost_name: sum(costs[cost_name] for costs in expedition_figures) for cost_name in sorted(cost_names)},
        **({"failures": _sum_counts(costs["failures"] for costs in expedition_figures)} if expedition_figures else {}),
    }


def _sum_probe_costs(evolutions: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Returns the key `probe` with the cost of probes before admission; {} for a run without probes."""
    probes = [evolution["probe"] for evolution in evolutions if evolution.get("probe")]
    count_names = ("candidates", "episodes", "turns", "tokens")
    return {"probe": {name: sum(probe.get(name, 0) for probe in probes) for name in count_names}} if probes else {}


def _sum_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total_counts: Counter[str] = Counter()
    for count_by_kind in counts:
        total_counts.update(count_by_kind)
    return dict(total_counts)


def measure_zero_shot(
    config: ConfigDict, parts: Parts, learner: Learner, state: TrainState, clock: Stopwatch, directory: RunDirectory
) -> float | None:
    """Measures held-out success before training, once per run; None if there is nothing to evaluate on."""
    result_path = directory.folder / "zero_shot.json"
    if directory.files.has_zero_shot:
        try:
            success = read_json(result_path)["success"]
            return float(success) if parts.evaluation else None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{result_path} cannot be read ({error}). Delete it: it is measured again.") from error
    with clock("evaluation"):
        if parts.evaluation:
            parts.engine.load(learner.weights(state, 0))
        record, episodes = measure_held_out(config, parts, "zero-shot evaluation")
    directory.files.add_evaluation("zero_shot", record, episodes)
    success, task_count = record["success"], len(record["tasks"])
    if parts.evaluation:
        CONSOLE.print(f"zero-shot: {100 * success:.1f} % on {task_count} {config.evaluation.split} tasks")
    return success
