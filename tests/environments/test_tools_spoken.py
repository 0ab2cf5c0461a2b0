"""Episodes that an action without calls ends, worlds that hear all that is written, and states that say nothing."""

from __future__ import annotations

import dataclasses

import pytest

from cojax.environment import Traits, play
from cojax.environment.replay import follow
from cojax.types import NO_CALL, Action, Call, Message, Observation, Task, Triplet
from environments import check
from environments.soundness import SetupReport
from environments.tools import ToolEnvironment

SETUP = {"items": {"milk": {"day": "monday"}, "tea": {"day": "tuesday"}}}


def move(world, title: str, day: str) -> None:
    world["items"][title]["day"] = day


def show(world, title: str) -> str:
    return world["items"][title]["day"]


def spoken(**settings) -> ToolEnvironment:
    return ToolEnvironment("said", settings.pop("tools", [move, show]), dict, [SETUP], ending="", **settings)


def call(name: str, **arguments) -> Action:
    return Action(calls=(Call(name, arguments),))


MOVE = call("move", title="milk", day="friday")


def test_text_ends_an_episode_and_is_no_part_of_a_verdict_that_asks_for_no_answer() -> None:
    environment = spoken()
    task = Task("said", "Move.", SETUP, (MOVE, Action()))
    for last in (Action("I moved it."), Action(), Action("", (), NO_CALL)):
        assert play(environment, task, follow((MOVE, last)), max_turns=2).reward == 1.0
    assert play(environment, task, follow((Action("done"),)), max_turns=1).reward == 0.0


def test_an_answer_is_the_text_without_its_thought() -> None:
    task = Task("said", "When?", SETUP, (call("show", title="milk"), Action("monday")))
    answered = Action("<think>it said so</think>\nMonday", (), NO_CALL)
    assert play(spoken(), task, follow((answered,)), max_turns=1).reward == 1.0
    assert play(spoken(), task, follow((Action("friday"),)), max_turns=1).reward == 0.0


def test_a_broken_call_ends_nothing() -> None:
    broken = Action("<tool_call>{</tool_call>", (), "tool call is not valid JSON")
    found = play(spoken(), Task("said", "", SETUP), follow((broken, call(""))), max_turns=2)
    assert [turn.observation.text for turn in found.turns] == [
        "error: tool call is not valid JSON",
        "error: there is no tool ''",
    ]
    assert found.outcome == "truncated"


def test_the_wording_asks_for_an_answer_that_a_look_up_shows() -> None:
    shown = Triplet(call("show", title="milk"), Observation((Message("tool", "monday"),)), 0)
    said = Triplet(Action("monday"), Observation(done=True), 0)
    assert spoken().phrase([shown, said]) == 'tell what show with title "milk" says'
    moved = Triplet(MOVE, Observation((Message("tool", "ok"),)), 0)
    assert spoken().phrase([moved, Triplet(Action(), Observation(done=True), 0)]) == (
        'move with title "milk" and day "friday"'
    )


def test_no_tool_ends_it_and_there_may_be_none() -> None:
    assert [tool["function"]["name"] for tool in spoken().tools()] == ["move", "show"]
    assert spoken(tools=[]).tools() == ()
    with pytest.raises(ValueError, match="there are no tools"):
        ToolEnvironment("said", [], dict, [SETUP])


def test_a_world_hears_an_action_before_its_calls() -> None:
    heard: list[str] = []

    @dataclasses.dataclass
    class World:
        held: dict

        def listen(self, action: Action) -> None:
            heard.append(action.text)

        def listened(self) -> None:
            """Nothing is left over."""

        def state(self) -> dict:
            return self.held

    def note(world) -> str:
        return heard[-1]

    environment = ToolEnvironment("said", [note], World, [SETUP], ending="")
    found = play(
        environment, Task("said", "", SETUP), follow((Action("one", (Call("note"),)), Action("two"))), max_turns=2
    )
    assert (found.turns[0].observation.text, heard) == ("one", ["one", "two"])


def test_the_check_of_a_walk_is_sound_where_text_ends_episodes() -> None:
    environment, report = spoken(), SetupReport()
    report.examine(environment, environment.tasks("seed", 1))
    line = report.line(environment, "said", "seed", 0.0)
    assert (line["faults"], line["thrown"], line["answered"]) == ([], 13, 13)


def incomparable(reward: float = 0.0) -> ToolEnvironment:
    tasks = [Task("said", f"Say {number}.", SETUP) for number in range(4)]
    return spoken(
        tools=[], splits={"train": tasks, "eval": tasks[:1]}, judge=lambda *given: reward,
        traits=Traits(incomparable="it has none"),
    )  # fmt: skip


def test_tasks_without_a_state_are_opened_and_answer_garbage() -> None:
    for reward, faults in ((0.5, 0), (1.0, 13)):
        drawn = {"train": incomparable().tasks("train", 2)}
        (line,) = check._examine(incomparable(reward), "said", drawn, {}, False)
        assert (line["tasks"], line["thrown"], line["fault_count"]) == (2, 13, faults)
        assert line["synthesizes"] == "nothing: it has none"
