"""The worker that reaches verdicts: on a root with ground truth, in worlds in which no model's code ever ran.

It makes a model's calls again and judges them by their effects. So the process that ran the code can claim no more than
calls that honest code could have made.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from cojax.types import Call, Check, Evaluation, Message, Observation, Task
from ..worker.served import Episodes, PlainEpisode
from . import world
from .changes import changes
from .report import achieved
from .world import World


def make(data: str) -> Episodes:
    """The environment that replays calls and judges, on a data folder with ground truth.

    An action's calls are recorded calls, which are replayed in order. The setup is {"task": id}. For checks it is a
    whole split, {"dataset": split, "made": task id → its calls as [name, arguments of the replay]}; the state is then
    the benchmark's own verdict: `task_goal_completion` and `scenario_goal_completion`, in percent.
    """
    world.warm(data)

    def start(task: Task) -> PlainEpisode:
        world.settle(data)
        if "dataset" in task.setup:
            return PlainEpisode(lambda action: Observation(), state=lambda: _figures(data, **task.setup))
        opened = World(data, task.setup["task"])
        return PlainEpisode(
            lambda action: replay(opened, action.calls),
            state=lambda: changes(opened.stock),
            evaluate=functools.partial(_verdict, opened),
        )

    return Episodes("appworld", start)


def _verdict(opened: World) -> Evaluation:
    """The benchmark's own tests, each a check; the reward is 1.0 if all pass.

    The benchmark labels tests that an episode without any action passes (`no_op_pass`): those that fail are the
    forbidden changes of the partial reward, and the other tests are what is wanted.
    """
    from appworld.evaluator import evaluate_task
    from appworld.ground_truth import GroundTruth

    opened.save()
    tests = GroundTruth.load(task_id=opened.id).test_data
    try:
        tracker = evaluate_task(opened.id, opened.stock.experiment_name, save_report=False)
    except Exception as error:
        # The calls can leave a state that a test does not expect.
        return Evaluation(0.0, (Check(f"the tests ran ({type(error).__name__})", False),))
    passed = [found["requirement"] for found in tracker.passes]
    checks = tuple(Check(test["requirement"], test["requirement"] in passed) for test in tests)
    guards = [test["label"] == "no_op_pass" for test in tests]
    results = list(zip(guards, (check.passed for check in checks), strict=True))
    partial = achieved(results.count((False, True)), guards.count(False), results.count((True, False)))
    return Evaluation(float(tracker.success), checks, partial)


def _figures(data: str, dataset: str, made: Mapping[str, Sequence[Any]]) -> Mapping[str, Any]:
    from appworld.evaluator import evaluate_dataset

    for task, calls in made.items():
        opened = World(data, task)
        replay(opened, [Call(name, arguments) for name, arguments in calls])
        opened.save()
        opened.close()
    return evaluate_dataset(opened.stock.experiment_name, dataset, save_reports=False)["aggregate"]


def replay(opened: World, calls: Sequence[Call]) -> Observation:
    """Replays the calls; a message names each call that is answered differently than before.

    A call that no code could have made is left out; the observation is then not ok.
    """
    differing, ok = [], True
    for call in calls:
        app, _, api = call.name.partition(".")
        try:
            # Without a digest the code saw no reply, for example as its time was over.
            alike = call.arguments["digest"] in (opened.call(app, api, call.arguments["arguments"]), "")
        except (ValueError, TypeError, KeyError):
            alike = ok = False
        if not alike:
            differing.append(Message("differing", call.name))
    return Observation(tuple(differing), ok, opened.completed)
