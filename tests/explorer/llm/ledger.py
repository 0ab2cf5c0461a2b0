"""A small code-acting environment: actions are lines of text, and there are no tools."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from cojax.types import Action, Check, Evaluation, Message, Observation, Task, Triplet


class LedgerEpisode:
    def __init__(self, task: Task) -> None:
        self.task = task
        self.book: dict[str, str] = dict(copy.deepcopy(task.setup["book"]))
        self.answer: str | None = None
        self.over = False

    def reset(self) -> tuple[Message, ...]:
        how = "Write one line: set NAME VALUE, get NAME, or done [ANSWER]."
        return (Message("user", f"{how}\nTask: {self.task.query}"),)

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return ()

    def step(self, action: Action) -> Observation:
        match action.text.split():
            case ["set", name, value] if not self.over:
                self.book[name] = value
                return Observation((Message("user", "ok"),))
            case ["get", name] if name in self.book and not self.over:
                return Observation((Message("user", self.book[name]),))
            case ["done", *words] if not self.over:
                self.answer, self.over = " ".join(words), True
                return Observation((Message("user", "ok"),), done=True)
        return Observation((Message("user", f"cannot run {action.text[:50]!r}"),), ok=False, done=self.over)

    def state(self) -> Mapping[str, Any]:
        return {"book": dict(self.book), "answer": self.answer}

    def affordances(self) -> tuple[Action, ...]:
        return (Action("done"),)

    def evaluate(self) -> Evaluation:
        if not self.task.solution:
            return Evaluation(0.0)
        reference = LedgerEpisode(self.task)
        for action in self.task.solution:
            reference.step(action)
        same = self.state() == reference.state() and self.over
        return Evaluation(float(same), (Check("same book and answer", same),))

    def close(self) -> None:
        pass


class Ledger:
    name = "ledger"

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return ()

    def tasks(self, split: str, count: int, seed: int = 0) -> tuple[Task, ...]:
        return tuple(Task("ledger", "", {"book": {"rent": "700", "page": str(n)}}) for n in range(count))

    def start(self, task: Task) -> LedgerEpisode:
        return LedgerEpisode(task)

    def phrase(self, steps: Sequence[Triplet]) -> str | None:
        return None
