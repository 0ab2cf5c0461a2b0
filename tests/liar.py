"""An environment that writes what its task says on the descriptor of its replies, as a policy's code may."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cojax.types import Action, Check, Evaluation, Message, Observation, Task, Triplet

# What it does once it has written.
ENDINGS: dict[str, Callable[[], Any]] = {
    "answer": lambda: None,
    "exit": lambda: os._exit(0),
    "hang": lambda: time.sleep(600),
    "spin": lambda: [None for _ in iter(int, 1)],
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "raise": lambda: [][1],
}


class LiarEpisode:
    """`setup` says where: `op` (or "between"), `head` + `body` × `times` + `tail`, and the `ending`.

    An honest step works and naps as long as `work` and `nap` say, in seconds, and says `length` characters.
    """

    def __init__(self, task: Task) -> None:
        self.setup, self.calls, self.steps = task.setup, 0, 0

    def _called(self, op: str) -> None:
        self.calls += 1
        if self.setup.get("op") == op and self.steps == self.setup.get("step", 0):
            self._lie(self.calls)

    def _lie(self, call_number: int) -> None:
        setup = self.setup
        for text in (setup.get("head", ""), *(chunk for chunk in _parts(setup)), setup.get("tail", "")):
            remaining_bytes = text.replace("CALL", str(call_number)).encode("latin-1")
            while remaining_bytes:
                remaining_bytes = remaining_bytes[os.write(3, remaining_bytes) :]
        ENDINGS[setup.get("ending", "hang")]()

    def reset(self) -> tuple[Message, ...]:
        self._called("reset")
        return (Message("user", "go on"),)

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return ()

    def step(self, action: Action) -> Observation:
        self._called("step")
        self.steps += 1
        is_ok = time.process_time() + float(self.setup.get("work", 0.0))
        while time.process_time() < is_ok:
            pass
        time.sleep(float(self.setup.get("nap", 0.0)))
        if self.setup.get("op") == "between":
            threading.Timer(0.1, self._lie, (self.calls + 1,)).start()
        text = f"step {self.steps}"
        if length := self.setup.get("length"):
            text = "\U0001f600" + "x" * int(length)
        return Observation((Message("tool", text),))

    def state(self) -> Mapping[str, Any]:
        self._called("state")
        return {"steps": self.steps}

    def affordances(self) -> tuple[Action, ...]:
        self._called("affordances")
        return (Action("on"),)

    def evaluate(self) -> Evaluation:
        self._called("evaluate")
        return Evaluation(1.0, (Check("steps", True),))

    def close(self) -> None:
        pass


def _parts(setup: Mapping[str, Any]) -> Sequence[str]:
    """The repeated body in pieces that a pipe takes well."""
    body, times = setup.get("body", ""), int(setup.get("times", 1))
    at_once = max(1, 60_000 // max(1, len(body)))
    return [body * min(at_once, times - start) for start in range(0, times, at_once)]


class Liar:
    name = "liar"

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return ()

    def tasks(self, split: str, count: int, seed: int = 0) -> tuple[Task, ...]:
        return ()

    def start(self, task: Task) -> LiarEpisode:
        return LiarEpisode(task)

    def phrase(self, steps: Sequence[Triplet]) -> str | None:
        return "here"


def make() -> Liar:
    return Liar()
