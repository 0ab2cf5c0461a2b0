"""A small real environment for tests: a counter to raise to a target, and ways for it to break."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cojax.types import Action, Call, Check, Evaluation, Message, Observation, Task, Triplet

_TOOLS = tuple(
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("add", "finish")
)


class CounterEpisode:
    def __init__(self, task: Task, on_step: Callable[[Task, int], str | None], on_start: Callable[[Task], None]):
        on_start(task)
        self.task, self.on_step = task, on_step
        self.count = self.steps = 0

    def reset(self) -> tuple[Message, ...]:
        return (Message("user", self.task.query),)

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return _TOOLS

    def step(self, action: Action) -> Observation:
        complaint = self.on_step(self.task, self.steps)
        self.steps += 1
        if not action.calls:
            return Observation((Message("tool", f"error: {action.error}"),), ok=False)
        if action.calls[0].name == "finish":
            return Observation((Message("tool", "ok"),), done=True)
        self.count += 1
        return Observation((Message("tool", complaint or str(self.count)),))

    def state(self) -> Mapping[str, Any]:
        return {"count": self.count}

    def affordances(self) -> tuple[Action, ...]:
        return (Action(calls=(Call("add"),)), Action(calls=(Call("finish"),)))

    def evaluate(self) -> Evaluation:
        is_reached = self.count == self.task.setup["target"]
        return Evaluation(float(is_reached), (Check("count", is_reached),))

    def close(self) -> None:
        pass


@dataclasses.dataclass(frozen=True)
class CounterEnvironment:
    """`on_start` and `on_step` may raise or sleep; what `on_step` returns replaces the observation."""

    on_step: Callable[[Task, int], str | None] = lambda task, step: None
    on_start: Callable[[Task], None] = lambda task: None
    name: str = "counter"

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return _TOOLS

    def tasks(self, split: str, count: int, seed: int = 0) -> tuple[Task, ...]:
        return tuple(Task("counter", f"count to {number}", {"target": number}) for number in range(1, count + 1))

    def start(self, task: Task) -> CounterEpisode:
        return CounterEpisode(task, self.on_step, self.on_start)

    def phrase(self, steps: Sequence[Triplet]) -> str | None:
        return None


def hang(seconds: float = 5.0) -> None:
    """Longer than any deadline in the tests, short enough not to outlive them by much."""
    time.sleep(seconds)
