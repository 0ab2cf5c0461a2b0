"""Worlds in a worker: answers belong to their calls, and an episode that has ended itself takes no further step."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cojax.environment import play
from cojax.environment.replay import follow
from cojax.types import Action, Call, Evaluation, Message, Observation, Task, Trajectory
from environments.tools import ToolEnvironment
from environments.tools.in_worker import WorkerWorld, require_finite

SETUP = {"place": 1}
STEP = Call("step", {})
TOOL = {"name": "step", "parameters": {"type": "object", "properties": {"to": {"type": "string"}}}}


class Served:
    """An episode as a worker serves it: it ends with its first `step`, and counts all that reach it."""

    def __init__(self) -> None:
        self.steps: list[Call] = []

    def reset(self) -> tuple[Message, ...]:
        return (Message("system", json.dumps({"introduction": "", "incomparable": ""})),)

    def tools(self) -> tuple[dict, ...]:
        return (TOOL,)

    def step(self, action: Action) -> Observation:
        self.steps += action.calls
        return Observation(tuple(Message("tool", f"{call.name} done") for call in action.calls), done=bool(self.steps))

    def state(self) -> dict[str, int]:
        return {"steps": len(self.steps)}

    def evaluate(self) -> Evaluation:
        return Evaluation(min(1.0, 0.25 * self.steps.count(STEP)))

    def close(self) -> None:
        """Nothing is held."""


def played(*actions: Action) -> tuple[Trajectory, Served]:
    served = Served()
    environment = ToolEnvironment(
        "served", [TOOL], lambda setup: WorkerWorld(served), [SETUP], lookups=(),
        judge=lambda task, world, answer, finished: world.verdict(),
    )  # fmt: skip
    return play(environment, Task("served", "Go.", SETUP), follow(actions), max_turns=len(actions)), served


def test_a_refused_call_behind_the_last_one_keeps_no_episode_open() -> None:
    again = Action(calls=(STEP, Call("no_such_tool", {})))
    found, served = played(again, again, again)
    assert (found.outcome, len(found.turns), found.reward) == ("finished", 1, 0.25)
    assert served.steps.count(STEP) == 1


def test_calls_behind_the_end_are_not_made() -> None:
    found, served = played(Action(calls=(Call("finish", {}), STEP)))
    assert (found.outcome, found.reward, served.steps) == ("finished", 0.0, [])


def test_a_call_that_cannot_be_sent_takes_no_answer_of_another() -> None:
    found, _ = played(Action(calls=(Call("step", {"to": "\ud800"}), Call("step", {"to": "there"}))))
    texts = [message.content for message in found.turns[0].observation.messages]
    assert texts == ["error: the call was not carried out: it is too long, or no JSON", "step done"]


@pytest.mark.parametrize("reward", ["1.0", b"1", "nan", None, [1.0], float("inf"), float("nan"), 10**400])
def test_a_reward_is_a_finite_number_and_no_text_that_looks_like_one(reward: Any) -> None:
    with pytest.raises(ValueError, match="expected a finite number"):
        require_finite(reward, "the reward")
    assert require_finite(True, "the reward") == 1.0
