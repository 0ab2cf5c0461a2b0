"""AppWorld where verdicts are reached: a root with ground truth, and worlds in which no model's code ever ran.

The calls that a model made are made again here, and judged by what they do. Whatever the process that ran the code
claims, it can claim no more than calls that any honest code could have made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cojax.types import Action, Check, Evaluation, Message, Observation, Task, Triplet
from environments.appworld import world
from environments.appworld.changes import changes
from environments.appworld.world import World


def make(data: str) -> Judge:
    """The environment of verdicts, on a data folder with ground truth."""
    world.warm(data)
    return Judge(data)


class Judge:
    """Worlds to replay calls in. A task's setup names the world: {"task": id}."""

    name = "appworld"

    def __init__(self, data: str) -> None:
        self.data = data

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return ()

    def tasks(self, split: str, count: int, seed: int = 0) -> tuple[Task, ...]:
        return ()

    def start(self, task: Task) -> JudgeEpisode:
        return JudgeEpisode(self, task)

    def phrase(self, steps: Sequence[Triplet]) -> str | None:
        return None


class JudgeEpisode:
    """One world. The calls of an action are records of calls, which are made again in order."""

    def __init__(self, judge: Judge, task: Task) -> None:
        self.judge, self.id = judge, task.setup["task"]
        self.differing: list[str] = []

    def reset(self) -> tuple[Message, ...]:
        self.world = World(self.judge.data, self.id)
        return ()

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return ()

    def step(self, action: Action) -> Observation:
        """Makes the calls again. One that no code could have made is left out, and makes the observation not ok."""
        refused = False
        for call in action.calls:
            app, _, api = call.name.partition(".")
            try:
                digest = self.world.call(app, api, call.arguments["arguments"])
            except (ValueError, TypeError, KeyError):
                digest, refused = "", True
            if digest != call.arguments.get("digest"):
                self.differing.append(call.name)
        return Observation(ok=not refused, done=self.world.completed)

    def state(self) -> Mapping[str, Any]:
        """What the calls did (see changes.py), and the names of those that were answered otherwise than before."""
        return {"done": changes(self.world.stock), "differing": self.differing}

    def affordances(self) -> tuple[Action, ...]:
        return ()

    def evaluate(self) -> Evaluation:
        """The benchmark's own tests, each a check; the reward is 1.0 if all pass."""
        from appworld.evaluator import evaluate_task
        from appworld.ground_truth import GroundTruth

        self.world.stock._save_state(self.world.stock.output_db_home_path_on_disk)
        wanted = [test["requirement"] for test in GroundTruth.load(task_id=self.id).test_data]
        try:
            tracker = evaluate_task(self.id, self.world.stock.experiment_name, save_report=False)
        except Exception as error:
            # What the calls left behind can be more than a test is made for.
            return Evaluation(0.0, (Check(f"the tests ran ({type(error).__name__})", False),))
        passed = [found["requirement"] for found in tracker.passes]
        checks = tuple(Check(requirement, requirement in passed) for requirement in wanted)
        return Evaluation(float(tracker.success), checks)

    def close(self) -> None:
        pass
