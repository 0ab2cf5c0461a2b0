"""An environment for nodes of a cluster, whose episodes do what their task's setup says."""

from __future__ import annotations

import os
import time
from typing import Any

from counter_environment import CounterEnvironment, CounterEpisode

from cojax.environment import (
    EnvironmentFailure,
    EpisodeFailure,
    LimitExceeded,
    SandboxLost,
    Traits,
    excuse,
    read_counted_seconds,
)
from cojax.types import Action, Call, Evaluation, Message, Observation, Task

DEEDS = ("failure", "episode", "limit", "policy", "error", "exit", "junk", "infinity")
FAILURES = {
    "failure": EnvironmentFailure, "episode": EpisodeFailure, "limit": LimitExceeded, "policy": SandboxLost,
    "error": KeyError, "exit": SystemExit,
}  # fmt: skip


def make(*, runs_policy_code: bool = False, most: int | None = None, sizes: tuple[int, ...] = ()) -> TrialEnvironment:
    return TrialEnvironment(runs_policy_code, most, sizes)


class TrialEnvironment(CounterEnvironment):
    def __init__(self, runs_policy_code: bool, most: int | None, sizes: tuple[int, ...]) -> None:
        super().__init__()
        vars(self).update(runs_policy_code=runs_policy_code, traits=Traits(concurrency=most), sizes=sizes)

    def tasks(self, split: str, count: int, seed: int = 0) -> tuple[Task, ...]:
        if split == "hang":
            time.sleep(1_000)
        if split != "all":
            raise ValueError(f"split {split!r} not found; available: all")
        return tuple(trial(deed, operation) for deed in DEEDS for operation in ("reset", "step", "evaluate"))[:count]

    def start(self, task: Task) -> TrialEpisode:
        return TrialEpisode(task)


class TrialEpisode(CounterEpisode):
    def __init__(self, task: Task) -> None:
        super().__init__(task, lambda task, step: None, lambda task: None)

    def reset(self) -> tuple[Message, ...]:
        return self._at("reset", super().reset())

    def step(self, action: Action) -> Observation:
        return self._at("step", super().step(action))

    def state(self) -> dict[str, Any]:
        return {"count": self.count, "process": os.getpid(), "seconds": read_counted_seconds()}

    def evaluate(self) -> Evaluation:
        return self._at("evaluate", super().evaluate())

    def _at(self, operation: str, right_value: Any) -> Any:
        deed = self.task.setup.get("deed") if self.task.setup["at"] == operation else None
        if deed in FAILURES:
            raise FAILURES[deed](f"{operation} does {deed}")
        if deed == "hang":
            time.sleep(1_000)
        if deed == "excuse":
            time.sleep(0.6)
            excuse(0.6)
        wrong_value = {"junk": "nonsense", "infinity": float("inf"), "large": "x" * 40 * 2**20}
        return wrong_value.get(deed, right_value)


def trial(deed: str, at: str) -> Task:
    """The task of counting to one, in which the environment does the deed at that call."""
    solution = (Action(calls=(Call("add"),)), Action(calls=(Call("finish"),)))
    return Task("counter", f"{deed} at {at}", {"target": 1, "deed": deed, "at": at}, solution)
