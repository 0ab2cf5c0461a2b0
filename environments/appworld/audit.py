"""AppWorld's own figures of played tasks, and the check behind `python -m environments.check appworld`.

The figures are task and scenario goal completion (TGC, SGC), computed from the rewards of episodes.

The check proves each data root sound, by the path that training uses. It prints one line a split: tasks with solutions;
solutions that earn reward 1 in two plays with equal observations; tasks that fail if they are completed at once;
solutions replayed without one call that had an effect, and how many of these fail. The line ends with TGC and SGC of a
mixture of these trajectories, as we compute them and as the benchmark's `evaluate_dataset` does.
"""

import contextlib
import random
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cojax.environment import EnvironmentFailure, Episode, play
from cojax.environment.replay import follow
from cojax.types import Action, Call, Group, Task, Trajectory
from ..soundness import GARBAGE, SplitReport
from . import data as roots
from .environment import NAME, AppWorld, AppWorldEpisode

_COMPLETING_ACTIONS = (Action("```python\napis.supervisor.complete_task()\n```"),)
_TABLE_HEAD = f"{'data':<9} {'split':<15} {'tasks':>5} {'solved':>6} {'no-op fails':>11} {'mutated':>7} {'fail':>5}"
# Fixed, so that every run leaves out the same calls.
_SEED = 1
# The key of the benchmark's id in a task's setup.
_ID_KEY = "task"


def audit(make_environment: Callable[..., AppWorld], max_tasks: int, *, drops_all: bool) -> int:
    """Prints the table of every data root, then the faults; returns 1 if there are any.

    It examines at most `max_tasks` tasks of each split. `drops_all` leaves out each effective call in turn, not
    one drawn at random. Raises InstallError if no data root is installed.
    """
    root_names = [root_name for root_name in roots.ROOTS if roots.is_current(root_name)]
    if not root_names:
        roots.find_root(roots.ROOTS[0])
    print(f"{_TABLE_HEAD} {'TGC ours/its':>15} {'SGC ours/its':>15}")
    faults: list[str] = []
    for root_name in root_names:
        environment = make_environment(data=root_name, solutions=True)
        try:
            for split in roots.SPLITS:
                faults += _check_split(environment, split, max_tasks, drops_all=drops_all)
            faults += _throw_garbage(environment)
        finally:
            environment.close()
    print("\n".join(faults) or "nothing is wrong", flush=True)
    return 1 if faults else 0


def _check_split(environment: AppWorld, split: str, max_tasks: int, *, drops_all: bool) -> list[str]:
    """Prints the line of a split; returns its faults."""
    tasks = [task for task in environment.tasks(split, max_tasks) if task.solution]
    passes, no_ops, mutant_count, failures = 0, 0, 0, 0
    examples: list[tuple[Group, list[Call]]] = []
    faults = []
    for task in tasks:
        id = task.setup["task"]
        try:
            trial, calls = _play_solution(environment, task)
            retrial, _ = _play_solution(environment, task)
            no_op_play = play(environment, task, follow(_COMPLETING_ACTIONS), max_turns=1)
            mutants = list(_play_mutants(environment, task, calls, drops_all=drops_all))
        except EnvironmentFailure as failure:
            faults.append(f"{id}: {failure}")
            continue
        if trial.reward == 1.0 and _observation_texts(trial) == _observation_texts(retrial):
            passes += 1
        else:
            flaws = [check.name for check in trial.checks if not check.passed]
            faults.append(
                f"{id}: the solution ends {trial.outcome} with reward {trial.reward}, again {retrial.reward}; {flaws}"
            )
        no_ops += no_op_play.reward < 1.0
        if no_op_play.reward == 1.0:
            faults.append(f"{id}: completing at once earns reward 1")
        for dropped_call, _, trajectory in mutants:
            mutant_count += 1
            failures += trajectory.reward < 1.0
            if trajectory.reward == 1.0:
                faults.append(f"{id}: passes without {dropped_call}")
        # Every fourth trajectory is a mutant's, so that the figures are below 100 %.
        example = (trial, calls) if len(examples) % 4 or not mutants else (mutants[0][2], mutants[0][1])
        examples.append((Group(task, (example[0],)), example[1]))
    line = f"{environment.data:<9} {split:<15} {len(tasks):>5} {passes:>6} {no_ops:>11} {mutant_count:>7} {failures:>5}"
    if examples and len(examples) == len(environment.tasks(split, 10**9)):
        figures = measures([group for group, _ in examples])
        ours = [round(100 * share, 1) for share in (figures["TGC"]["value"], _mean(figures["SGC"]["values"]))]
        theirs = _score_officially(environment, split, {group.task.setup["task"]: calls for group, calls in examples})
        line += "".join(f" {f'{our_figure}/{official}':>15}" for our_figure, official in zip(ours, theirs, strict=True))
        if ours != theirs:
            faults.append(f"{split}: TGC and SGC are {ours}, by the benchmark itself {theirs}")
    print(line, flush=True)
    return faults


def _play_solution(environment: AppWorld, task: Task) -> tuple[Trajectory, list[Call]]:
    """Plays the task's solution; returns its trajectory, and the calls that it made."""
    episodes: list[AppWorldEpisode] = []

    def start(task: Task) -> AppWorldEpisode:
        episodes.append(environment.start(task))
        return episodes[0]

    recorder: Any = types.SimpleNamespace(name=NAME, start=start)
    return play(recorder, task, follow(task.solution), max_turns=len(task.solution)), episodes[0].calls


def _play_mutants(
    environment: AppWorld, task: Task, calls: Sequence[Call], *, drops_all: bool
) -> Iterator[tuple[str, list[Call], Trajectory]]:
    """For each call that had an effect: its name, the other calls, and the verdict on these alone."""
    indices = list(_find_effective_calls(environment, task, calls))
    if not drops_all and indices:
        indices = [random.Random(f"{_SEED} {task.id}").choice(indices)]
    for i in indices:
        others = [*calls[:i], *calls[i + 1 :]]
        with _open_judge(environment, task.setup) as judge_episode:
            judge_episode.step(Action(calls=tuple(others)))
            verdict = judge_episode.evaluate()
        yield f"call {i + 1}, {calls[i].name}", others, Trajectory(task, reward=verdict.reward, checks=verdict.checks)


def _find_effective_calls(environment: AppWorld, task: Task, calls: Sequence[Call]) -> Iterator[int]:
    """The positions of the calls that changed the state."""
    with _open_judge(environment, task.setup) as judge_episode:
        state = judge_episode.state()
        for call_index, call in enumerate(calls):
            judge_episode.step(Action(calls=(call,)))
            next_state = judge_episode.state()
            if next_state != state:
                yield call_index
            state = next_state


def _score_officially(environment: AppWorld, split: str, calls_by_task: dict[str, list[Call]]) -> list[float]:
    """TGC and SGC of these calls by the benchmark's own `evaluate_dataset`."""
    replays = {id: [[call.name, dict(call.arguments)] for call in calls] for id, calls in calls_by_task.items()}
    with _open_judge(environment, {"dataset": split, "replays": replays}) as judge_episode:
        figures = judge_episode.state()
        return [figures["task_goal_completion"], figures["scenario_goal_completion"]]


@contextlib.contextmanager
def _open_judge(environment: AppWorld, setup: Mapping[str, Any]) -> Iterator[Episode]:
    """An open episode of the judge."""
    with contextlib.closing(environment.judge.start(Task(NAME, "", setup))) as episode:
        episode.reset()
        yield episode


def _throw_garbage(environment: AppWorld) -> list[str]:
    """Throws garbage at the first task; returns the faults."""
    split_report = SplitReport()
    task = next(task for split in roots.SPLITS for task in environment.tasks(split, 3) if task.solution)
    for garbage_name, action in GARBAGE.items():
        split_report.throw(environment, task, garbage_name, action)
    return split_report.faults


def _observation_texts(trajectory: Trajectory) -> list[str]:
    return [turn.observation.text for turn in trajectory.turns]


def measures(groups: Sequence[Group]) -> dict[str, dict[str, Any]]:
    """TGC and SGC of these tasks, as in `cojax.worlds.measures`. It skips tasks without the benchmark's id.

    TGC is the share of tasks that succeed, SGC the share of scenarios in which every task succeeds. Both are means over
    samples. `values` has one number for each scenario, as the tasks of one scenario are similar. A lost episode counts
    as a failure, as in the benchmark. Raises ValueError if no task has an id.
    """
    scores_by_scenario: dict[str, list[list[float]]] = {}
    for group in groups:
        if _ID_KEY in group.task.setup and group.trajectories:
            scores = [float(trajectory.valid and trajectory.reward >= 1.0) for trajectory in group.trajectories]
            scores_by_scenario.setdefault(scenario(group.task), []).append(scores)
    if not scores_by_scenario:
        raise ValueError(f"no task has {_ID_KEY!r} in its setup; goal completion is of AppWorld's own tasks")
    sample_count = max(len(scores) for tasks in scores_by_scenario.values() for scores in tasks)
    # Scenario → sample → the success of each task in that sample.
    runs_of_scenarios = [
        [run for sample in range(sample_count) if (run := [scores[sample] for scores in tasks if sample < len(scores)])]
        for tasks in scores_by_scenario.values()
    ]
    task_means = [_mean(scores) for tasks in scores_by_scenario.values() for scores in tasks]
    episode_count = sum(map(len, runs_of_scenarios))
    task_shares = [_mean([_mean(run) for run in scenario_runs]) for scenario_runs in runs_of_scenarios]
    scenario_shares = [_mean([min(run) for run in scenario_runs]) for scenario_runs in runs_of_scenarios]
    return {
        "TGC": {"values": task_shares, "episodes": episode_count, "value": _mean(task_means), "count": len(task_means)},
        "SGC": {"values": scenario_shares, "episodes": episode_count},
    }


def scenario(task: Task) -> str:
    """The scenario of a task: the part of the benchmark's id before `_`. Raises ValueError if the task has no id."""
    if _ID_KEY not in task.setup:
        raise ValueError(f"a task's setup is {dict(task.setup)!r:.200}; a scenario is scored by its {_ID_KEY!r}")
    return str(task.setup[_ID_KEY]).partition("_")[0]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
