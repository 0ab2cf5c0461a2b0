"""What a policy puts into a world of tools so that it has no verdict: it is refused, or it costs the episode."""

from __future__ import annotations

import asyncio
import copy
import math
from typing import Any

import pydantic
import pytest

from cojax.environment import Actor
from cojax.environment.replay import follow, replay
from cojax.rollout.collect import EpisodeCollector, Limits
from cojax.signals import tools_called
from cojax.types import Action, Call, Task, Trajectory
from environments.tools import ToolEnvironment
from environments.tools.toolset import Tool

SETUP = {"balance": 1.0, "notes": []}


class Payment(pydantic.BaseModel):
    amount: float


def deposit(world, amount: float) -> None:
    world["balance"] += amount


def pay(world, payments: list[Payment], fee: float = math.inf) -> None:
    world["balance"] -= sum(payment.amount for payment in payments)


def multiply(world, factor: int) -> None:
    world["balance"] = int(world["balance"]) * factor


def interest(world, rate: float) -> float:
    return rate * 1e308


def note(world, text: Any) -> None:
    world["notes"].append(text)


def wrap(world, times: int) -> None:
    for _ in range(times):
        world["notes"] = [world["notes"]]


def count(world) -> None:
    world["notes"][-1]["read"] += 1
    if world["notes"][-1]["read"] == 3:
        world["notes"].append(math.nan)


def leave(world) -> None:
    raise SystemExit


def cancel(world) -> None:
    raise asyncio.CancelledError


def keep(world) -> None:
    world["notes"].append(object())


BANK = [deposit, pay, multiply, interest, note, wrap, count, leave, cancel, keep]


def bank() -> ToolEnvironment:
    return ToolEnvironment("bank", BANK, dict, [SETUP])


def call(name: str, **arguments: Any) -> Action:
    return Action(calls=(Call(name, arguments),))


FINISH = call("finish")
TASK = Task("bank", "deposit 2", SETUP, (call("deposit", amount=2.0), FINISH))


class Following:
    def __init__(self, *actions: Action) -> None:
        self.actions = actions

    def __call__(self, session: str, seed: tuple[int, ...]) -> Actor:
        return follow(self.actions)

    def release(self, session: str) -> None:
        pass


def collected(environment: ToolEnvironment, *actions: Action) -> Trajectory:
    """The episode as training plays it."""
    limits = Limits(max_turns=len(actions), error_rate=1.0)
    (group,) = EpisodeCollector(Following(*actions), environment, limits).collect([TASK], seed=(0,), label="0")
    return group.trajectories[0]


@pytest.mark.parametrize(
    ("action", "why"),
    [
        (call("deposit", amount="nan"), "error: amount: found nan; expected a finite number"),
        (call("deposit", amount="-Infinity"), "error: amount: found -inf; expected a finite number"),
        (call("deposit", amount=math.inf), "error: amount: found inf; expected a finite number"),
        (call("deposit", amount="1" * 400), "error: amount: found inf; expected a finite number"),
        (call("pay", payments=[{"amount": 1}, {"amount": "nan"}]), "error: payments: found nan; expected a finite"),
        (call("note", text={"a": [math.nan]}), "error: text: found nan; expected a finite number"),
    ],
)
def test_an_argument_that_is_not_finite_is_refused_and_the_world_untouched(action, why):
    episode = bank().start(TASK)
    episode.reset()
    before = episode.state()
    seen = episode.step(action)
    assert (seen.ok, seen.text.startswith(why)) == (False, True), seen.text
    assert episode.state() == before
    # The default of a tool is its own, and text is text.
    assert episode.step(call("pay", payments=[{"amount": "0.5"}])).ok
    assert episode.step(call("note", text="nan")).ok
    found = collected(bank(), action, *TASK.solution)
    assert (found.outcome, found.reward) == ("finished", 1.0)


def test_a_tool_that_is_a_document_gets_no_number_that_is_not_finite():
    asked = []

    class World:
        def call(self, name, arguments):
            asked.append(arguments)
            return "ok"

        def state(self):
            return asked

    document = {"name": "act", "parameters": {"properties": {"amount": {"type": "number"}}}}
    episode = ToolEnvironment("bank", [document], lambda setup: World(), [{}]).start(TASK)
    episode.reset()
    seen = episode.step(call("act", amount=[{"a": math.inf}]))
    assert (seen.ok, seen.text) == (False, "error: amount: found inf; expected a finite number")
    assert asked == []


BREAK = {
    "an infinite sum": (call("deposit", amount=1.7e308),) * 2,
    "no number by a difference": (call("pay", payments=[{"amount": 1.7e308}] * 2),),
    "an infinite result": (call("interest", rate=10.0),),
    "a huge integer": (call("multiply", factor=10**4000),) * 2,
    "deep nesting": (call("wrap", times=100_000),),
    "an exit": (call("leave"),),
    "what is no JSON": (call("keep"),),
    "what a task of asyncio ends by": (call("cancel"),),
    "an argument that the world changes": (call("note", text={"read": 1}), *(call("count"),) * 2),
}


@pytest.mark.parametrize("way", BREAK)
def test_a_policy_that_breaks_its_world_fails_and_erases_nothing(way):
    found = collected(bank(), *BREAK[way], FINISH)
    assert (found.outcome, found.valid, found.reward) == ("timeout", True, 0.0)
    assert found.error.startswith(("step: ", "evaluate: "))
    assert collected(bank(), *TASK.solution).reward == 1.0


def test_what_is_named_after_the_end_was_never_called():
    found = collected(bank(), TASK.solution[0], Action(calls=(*FINISH.calls, Call("made up"), Call("made up"))))
    assert (found.reward, found.turns[-1].observation.ok) == (1.0, False)
    assert found.turns[-1].observation.text == "ok\nerror: the episode is over; the rest were not carried out"
    assert tools_called(found, failed=False) == ("deposit",)


def test_a_world_that_changes_what_it_was_given_changes_no_solution():
    solution = (call("note", text={"read": 0}), call("count"), FINISH)
    task, environment = Task("bank", "note and count", SETUP, copy.deepcopy(solution)), bank()
    for _ in range(2):
        run = replay(environment, task, task.solution)
        assert (run.trajectory.reward, run.states[-1]["world"]["notes"]) == (1.0, [{"read": 1}])
    assert task.solution == solution
    asked: list[Any] = []
    Tool("t", "", {}, lambda world, arguments: asked.append(arguments)).call(None, solution[0].calls[0].arguments)
    assert asked == [{"text": {"read": 0}}]
    assert asked[0]["text"] is not solution[0].calls[0].arguments["text"]


def test_what_a_world_offers_is_not_changed_with_it():
    tags = {"tags": ["a"]}
    given = {"open": lambda setup: tags, "affordances": lambda world: [("note", world)]}
    episode = ToolEnvironment("bank", [note], setups=[SETUP], **given).start(TASK)
    episode.reset()
    offered = episode.affordances()[0]
    tags["tags"].append("b")
    assert offered == call("note", tags=["a"])


def test_a_world_whose_state_is_no_json_from_the_start_is_nobodys_failure():
    environment = ToolEnvironment("bank", BANK, lambda setup: setup | {"balance": math.nan}, [SETUP])
    found = collected(environment, *TASK.solution)
    assert (found.outcome, found.valid) == ("environment_error", False)


def test_an_answer_that_is_refused_has_not_ended_the_world_either():
    def close(world, total: float) -> None:
        world["closed"] = True

    episode = ToolEnvironment("bank", [close], dict, [SETUP], ending="close").start(TASK)
    episode.reset()
    assert episode.step(call("close", total=math.inf)).text.startswith("error: the answer is no JSON")
    assert episode.step(call("close", total="inf")).text == "error: total: found inf; expected a finite number"
    assert episode.state() == {"world": SETUP, "answer": None, "finished": False}
