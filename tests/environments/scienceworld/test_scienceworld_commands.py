"""Which commands are offered and worded, and how the simulator's solutions are shortened."""

import pytest

from cojax.types import Action, Call, Message, Observation, Triplet
from environments.scienceworld.inside import phrase, select_commands, system_message
from environments.scienceworld.limits import TASKS, limit_of
from environments.scienceworld.solving import shorten


def step(command: str, shown: str = "done", ok: bool = True) -> Triplet:
    return Triplet(Action(calls=(Call("act", {"command": command}),)), Observation((Message("tool", shown),), ok=ok), 0)


FINISH = Triplet(Action(calls=(Call("finish"),)), Observation((Message("tool", ""),)), 0)


def test_commands_are_asked_for_in_their_order() -> None:
    steps = [step("teleport to kitchen"), step(" pick up  thermometer"), FINISH]
    assert phrase(steps) == "Please teleport to kitchen, then pick up thermometer."


@pytest.mark.parametrize(
    "steps",
    [
        [],
        [FINISH],
        [step("look around"), FINISH],
        [step("Examine cup"), step("open cupboard")],
        [step("open cupboard", ok=False)],
        [step("focus on cup")],
        [step("")],
        [step("move cup to table", "Ambiguous request: Please enter the number for the action you intended")],
        [Triplet(Action("prose"), Observation(), 0)],
    ],
)
def test_what_shows_something_or_was_not_carried_out_has_no_wording(steps: list[Triplet]) -> None:
    assert phrase(steps) is None


@pytest.mark.parametrize(
    "command",
    ["look around", "examine cup", "focus on cup", "reset task", "wait", "wait1", "open door to kitchen",
     "use axe on agent", "move cup to kitchen", "pour cup into kitchen"],
)  # fmt: skip
def test_what_comes_to_nothing_is_not_offered(command: str) -> None:
    assert select_commands([command, "move cup to kitchen table"], ["kitchen"]) == ["move cup to kitchen table"]


def test_going_is_offered_through_doors_and_to_rooms() -> None:
    going = ["go to door to kitchen", "teleport to kitchen"]
    assert select_commands(going, ["kitchen"]) == going


def test_a_solution_waits_where_the_simulator_watches() -> None:
    reads = ["examine water", "use thermometer in inventory on water"] * 23
    gold = ["open door to kitchen", "go to kitchen", "look around", "activate stove", *reads, "pick up pot"]
    assert list(shorten(gold)) == [
        "go to kitchen",
        "activate stove",
        "wait",
        "wait",
        "wait1",
        "wait1",
        "use thermometer in inventory on water",
        "pick up pot",
    ]
    assert list(shorten(["read recipe", "wait1"])) == ["read recipe", "wait1"]


def test_each_of_the_thirty_tasks_has_a_limit() -> None:
    assert len(TASKS) == 30
    assert (limit_of("boil"), limit_of("lifespan-longest-lived")) == (100, 10)
    with pytest.raises(ValueError, match="ScienceWorld has no task 'fly'; it has boil, "):
        limit_of("fly")


def test_the_system_message_lists_the_commands_or_does_not() -> None:
    assert "teleport to ROOM" in system_message("full")
    assert system_message("full").startswith(system_message("brief"))
    with pytest.raises(ValueError, match="instructions 'long' not found; available: full, brief"):
        system_message("long")
