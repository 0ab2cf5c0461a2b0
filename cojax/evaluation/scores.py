"""Success of the policy that the engine holds, on the development split and on the held-out one."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from ml_collections import ConfigDict

from cojax.environment import Environment
from cojax.registry import find
from cojax.report.console import bar
from cojax.rollout.chat import Chat, PolicyActors
from cojax.rollout.collect import EpisodeCollector
from cojax.rollout.engine import Sampling
from cojax.run.parts import Parts
from cojax.scoring import Score, score, success_by, success_by_kind
from cojax.signals.tools import tools_of
from cojax.types import Group, Task, Trajectory

SHOWN = 24  # evaluation tasks whose episodes a run stores, for its report


# How failed tasks are tried again: (play, environment, the first trial's groups, most trials, whether the policy notes
# why it failed, characters of a failed episode that it then sees) → each task's last group, and a record of each trial:
# its `success` is the share of all tasks that are solved after it; the rest counts this trial alone.
Retry = Callable[..., tuple[list[Group], list[dict[str, Any]]]]
RETRIALS: dict[str, Retry | str] = {"reflexion": "experiments.study.reflexion:retry_failures"}


def dev_score(config: ConfigDict, made: Parts, step: int, tasks: Sequence[Task]) -> tuple[Score, dict[str, float]]:
    """Success of the engine's policy on these development tasks, overall and for each value of evaluation.by.

    Where there is no development split, they are tasks to train on.
    """
    environment = made.evaluated_in if made.development else made.environment
    collector = _collector(config, made, config.evaluation.temperature, environment)
    groups = collector.collect(tasks, seed=(config.seed, step), label=f"dev{step}")
    return score(groups), _by(config, groups)


def held_out_score(
    config: ConfigDict, made: Parts, description: str, trials: int = 1
) -> tuple[dict[str, Any], Sequence[Trajectory]]:
    """Success on the evaluation split, as in zero_shot.json and final.json, and the episodes of at most SHOWN tasks.

    It is overall, for each value of evaluation.by (`by`), for each tool, over the tasks whose solution calls it
    (`by_tool`), and of each task, by its id: which were kept, recovered and lost. Tasks without a valid episode have no
    score. Where there is nothing to evaluate on, the success is None, and there are no tasks.

    A failed task is tried up to `trials` times. Then `trials` holds the result of each trial, and `tasks_at_last` the
    score of each task's last one; all else is of the first trial.
    """
    if not made.evaluation:
        return {"success": None, "tasks": {}}, ()
    section, count = config.evaluation, 0

    def play(environment: Environment, tasks: Sequence[Task], label: str) -> list[Group]:
        nonlocal count
        # At temperature 0 a second trial would repeat the first.
        temperature = config.sampling.temperature if count else section.temperature
        # As many episodes may be lost to the machinery as when all tasks are played.
        rate = min(1.0, made.limits.error_rate * len(made.evaluation) / len(tasks))
        with bar(f"{description}, {label}" if count else description, len(tasks)) as advance:
            collector = dataclasses.replace(
                _collector(config, made, temperature, environment),
                limits=dataclasses.replace(made.limits, error_rate=rate),
            )
            seed = (config.seed, 0, count) if count else (config.seed, 0)
            groups = collector.collect(tasks, seed=seed, label=label, on_episode=lambda trajectory: advance())
        count += 1
        return groups

    groups = play(made.evaluated_in, made.evaluation, "eval")
    found = score(groups)
    record: dict[str, Any] = {
        "success": found.success,
        "error": found.error,
        "partial": found.partial,
        "lost": found.lost,
        "bounds": list(found.bounds),
        "by": _by(config, groups),
        "by_tool": success_by_tool(groups, config.explorer.ending),
        "tasks": _scores(groups),
    }
    if trials == 1:
        return record, shown(groups)
    # Notes are bounded in characters: a token has at least one or two, so half of the context is left for them.
    retry = find("retrial", "reflexion", RETRIALS)
    last, told = retry(play, made.evaluated_in, groups, trials, section.reflect, config.engine.max_length)
    return {**record, "trials": told, "tasks_at_last": _scores(last)}, shown(groups)


def shown(groups: Sequence[Group]) -> list[Trajectory]:
    """The first episode of at most SHOWN groups, spread evenly over them: whatever became of them."""
    return [group.trajectories[0] for group in groups[:: max(1, -(-len(groups) // SHOWN))]]


def _collector(config: ConfigDict, made: Parts, temperature: float, environment: Environment) -> EpisodeCollector:
    """Plays one episode of each task with the policy that the engine holds."""
    actors = PolicyActors(made.engine, made.chat, sampling(config, made.chat, temperature))
    return EpisodeCollector(actors, environment, made.limits)


def _scores(groups: Sequence[Group]) -> dict[str, float]:
    return {group.task.id: group.score for group in groups if group.valid}


def success_by_tool(groups: Sequence[Group], ending: str) -> dict[str, dict[str, Any]]:
    """For each tool but `ending`, `success` on the tasks whose solution calls it, and the number of these `tasks`."""

    def tools(task: Task) -> set[str]:
        return {tool for action in task.solution for tool in tools_of(action, task.environment)} - {ending}

    return success_by_kind(groups, tools)


def sampling(config: ConfigDict, chat: Chat, temperature: float) -> Sampling:
    return Sampling(temperature=temperature, max_tokens=config.sampling.max_tokens, stop_tokens=chat.stops)


def _by(config: ConfigDict, groups: Sequence[Group]) -> dict[str, float]:
    return success_by(groups, config.evaluation.by) if config.evaluation.by else {}
