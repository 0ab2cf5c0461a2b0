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

_NOTHING = (Action("```python\napis.supervisor.complete_task()\n```"),)
_HEAD = f"{'data':<9} {'split':<15} {'tasks':>5} {'solved':>6} {'no-op fails':>11} {'mutated':>7} {'fail':>5}"
# Fixed, so that every run leaves out the same calls.
_SEED = 1
# The key of the benchmark's id in a task's setup.
_ID = "task"


def audit(make: Callable[..., AppWorld], count: int, *, every: bool) -> int:
    """Prints the table of every data root, then the faults; returns 1 if there are any. `make` is this package's.

    It examines at most `count` tasks of each split. `every` leaves out each effective call in turn, instead of one
    drawn at random. Raises InstallError if no data root is installed.
    """
    names = [name for name in roots.ROOTS if roots.is_current(name)]
    if not names:
        roots.root(roots.ROOTS[0])
    print(f"{_HEAD} {'TGC ours/its':>15} {'SGC ours/its':>15}")
    faults: list[str] = []
    for name in names:
        environment = make(data=name, solutions=True)
        try:
            for split in roots.SPLITS:
                faults += _split(environment, split, count, every=every)
            faults += _throw_garbage(environment)
        finally:
            environment.close()
    print("\n".join(faults) or "nothing is wrong", flush=True)
    return 1 if faults else 0


def _split(environment: AppWorld, split: str, count: int, *, every: bool) -> list[str]:
    """Prints the line of a split; returns its faults."""
    tasks = [task for task in environment.tasks(split, count) if task.solution]
    passes, no_ops, mutations, failures = 0, 0, 0, 0
    mixture: list[tuple[Group, list[Call]]] = []
    faults = []
    for task in tasks:
        name = task.setup["task"]
        try:
            first, calls = _play(environment, task)
            repeat, _ = _play(environment, task)
            no_op = play(environment, task, follow(_NOTHING), max_turns=1)
            mutants = list(_mutants(environment, task, calls, every=every))
        except EnvironmentFailure as failure:
            faults.append(f"{name}: {failure}")
            continue
        if first.reward == 1.0 and _observation_texts(first) == _observation_texts(repeat):
            passes += 1
        else:
            flaws = [check.name for check in first.checks if not check.passed]
            faults.append(
                f"{name}: the solution ends {first.outcome} with reward {first.reward}, again {repeat.reward}; {flaws}"
            )
        no_ops += no_op.reward < 1.0
        if no_op.reward == 1.0:
            faults.append(f"{name}: completing at once earns reward 1")
        for drop, _, trajectory in mutants:
            mutations += 1
            failures += trajectory.reward < 1.0
            if trajectory.reward == 1.0:
                faults.append(f"{name}: passes without {drop}")
        # Every fourth trajectory is a mutant's, so that the figures are below 100 %.
        sample = (first, calls) if len(mixture) % 4 or not mutants else (mutants[0][2], mutants[0][1])
        mixture.append((Group(task, (sample[0],)), sample[1]))
    line = f"{environment.data:<9} {split:<15} {len(tasks):>5} {passes:>6} {no_ops:>11} {mutations:>7} {failures:>5}"
    if mixture and len(mixture) == len(environment.tasks(split, 10**9)):
        figures = measures([group for group, _ in mixture])
        ours = [round(100 * share, 1) for share in (figures["TGC"]["value"], _mean(figures["SGC"]["values"]))]
        official = _official(environment, split, {group.task.setup["task"]: calls for group, calls in mixture})
        line += "".join(f" {f'{one}/{other}':>15}" for one, other in zip(ours, official, strict=True))
        if ours != official:
            faults.append(f"{split}: TGC and SGC are {ours}, by the benchmark itself {official}")
    print(line, flush=True)
    return faults


def _play(environment: AppWorld, task: Task) -> tuple[Trajectory, list[Call]]:
    """Plays the task's solution; returns its trajectory, and the calls that it made."""
    episodes: list[AppWorldEpisode] = []

    def start(task: Task) -> AppWorldEpisode:
        episodes.append(environment.start(task))
        return episodes[0]

    recorder: Any = types.SimpleNamespace(name=NAME, start=start)
    return play(recorder, task, follow(task.solution), max_turns=len(task.solution)), episodes[0].calls


def _mutants(
    environment: AppWorld, task: Task, calls: Sequence[Call], *, every: bool
) -> Iterator[tuple[str, list[Call], Trajectory]]:
    """For each call that had an effect: its name, the other calls, and the verdict on these alone."""
    positions = list(_effective(environment, task, calls))
    if not every and positions:
        positions = [random.Random(f"{_SEED} {task.id}").choice(positions)]
    for i in positions:
        others = [*calls[:i], *calls[i + 1 :]]
        with _judging(environment, task.setup) as judging:
            judging.step(Action(calls=tuple(others)))
            verdict = judging.evaluate()
        yield f"call {i + 1}, {calls[i].name}", others, Trajectory(task, reward=verdict.reward, checks=verdict.checks)


def _effective(environment: AppWorld, task: Task, calls: Sequence[Call]) -> Iterator[int]:
    """The positions of the calls that changed the state."""
    with _judging(environment, task.setup) as judging:
        state = judging.state()
        for index, call in enumerate(calls):
            judging.step(Action(calls=(call,)))
            next_state = judging.state()
            if next_state != state:
                yield index
            state = next_state


def _official(environment: AppWorld, split: str, calls_by_task: dict[str, list[Call]]) -> list[float]:
    """TGC and SGC of these calls by the benchmark's own `evaluate_dataset`."""
    replays = {task: [[call.name, dict(call.arguments)] for call in calls] for task, calls in calls_by_task.items()}
    with _judging(environment, {"dataset": split, "made": replays}) as judging:
        figures = judging.state()
        return [figures["task_goal_completion"], figures["scenario_goal_completion"]]


@contextlib.contextmanager
def _judging(environment: AppWorld, setup: Mapping[str, Any]) -> Iterator[Episode]:
    """An open episode of the judge."""
    with contextlib.closing(environment.judge.start(Task(NAME, "", setup))) as episode:
        episode.reset()
        yield episode


def _throw_garbage(environment: AppWorld) -> list[str]:
    """Throws garbage at the first task; returns the faults."""
    report = SplitReport()
    task = next(task for split in roots.SPLITS for task in environment.tasks(split, 3) if task.solution)
    for name, action in GARBAGE.items():
        report.throw(environment, task, name, action)
    return report.faults


def _observation_texts(trajectory: Trajectory) -> list[str]:
    return [turn.observation.text for turn in trajectory.turns]


def measures(groups: Sequence[Group]) -> dict[str, dict[str, Any]]:
    """TGC and SGC of these tasks, in the form of `cojax.worlds.measures`. It skips tasks without the benchmark's id.

    TGC is the share of tasks that succeed, SGC the share of scenarios in which every task succeeds. Both are means over
    samples. `values` has one number for each scenario, as the tasks of one scenario are similar. A lost episode counts
    as a failure, as in the benchmark. Raises ValueError if no task has an id.
    """
    scenarios: dict[str, list[list[float]]] = {}
    for group in groups:
        if _ID in group.task.setup and group.trajectories:
            scores = [float(trajectory.valid and trajectory.reward >= 1.0) for trajectory in group.trajectories]
            scenarios.setdefault(scenario(group.task), []).append(scores)
    if not scenarios:
        raise ValueError(f"no task has {_ID!r} in its setup; goal completion is of AppWorld's own tasks")
    samples = max(len(scores) for tasks in scenarios.values() for scores in tasks)
    # Scenario → sample → the success of each task in that sample.
    runs = [
        [run for sample in range(samples) if (run := [scores[sample] for scores in tasks if sample < len(scores)])]
        for tasks in scenarios.values()
    ]
    by_task = [_mean(scores) for tasks in scenarios.values() for scores in tasks]
    episodes = sum(map(len, runs))
    task_shares = [_mean([_mean(run) for run in scenario_runs]) for scenario_runs in runs]
    scenario_shares = [_mean([min(run) for run in scenario_runs]) for scenario_runs in runs]
    return {
        "TGC": {"values": task_shares, "episodes": episodes, "value": _mean(by_task), "count": len(by_task)},
        "SGC": {"values": scenario_shares, "episodes": episodes},
    }


def scenario(task: Task) -> str:
    """The scenario of a task: the part of the benchmark's id before `_`. Raises ValueError if the task has no id."""
    if _ID not in task.setup:
        raise ValueError(f"a task's setup is {dict(task.setup)!r:.200}; a scenario is scored by its {_ID!r}")
    return str(task.setup[_ID]).partition("_")[0]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
