"""Worlds that take commands as text: what is offered of them, and how commands are worded."""

import pytest

from cojax.environment import play, traits_of
from cojax.environment.replay import follow
from cojax.types import Action, Call, Message, Observation, Triplet
from environments.tools import ToolEnvironment, commands
from environments.tools.commands import draw_offers, make_call, phrase, read_command


class Maze:
    """A world of one lamp, which introduces itself and ends when the lamp is lit, or after three commands."""

    def __init__(self, setup: dict) -> None:
        self.lit, self.done = False, 0
        self.text = setup["text"]

    def introduction(self) -> str:
        return self.text

    def call(self, name: str, arguments: dict) -> str:
        if name == commands.ENDING_TOOL:
            return ""
        self.done += 1
        if read_command(name, arguments) != "light lamp":
            raise ValueError("Nothing happens.")
        self.lit = True
        return "It is bright."

    def over(self) -> bool:
        return self.lit or self.done >= 3

    def state(self) -> dict:
        return {"lit": self.lit}


def maze() -> ToolEnvironment:
    return ToolEnvironment(
        "maze",
        tools=commands.document_tools("light lamp"),
        open=Maze,
        setups=[{"text": "A dark hall."}, {"text": ""}],
        instructions="Find the lamp.",
        ending=commands.ENDING_TOOL,
        traits=commands.make_traits(3),
    )


def test_what_a_world_shows_at_first_follows_the_instructions() -> None:
    environment = maze()
    hall, nothing = sorted(environment.tasks("seed", 2), key=lambda task: task.setup["text"], reverse=True)
    assert environment.start(hall).reset()[0] == Message("system", "Find the lamp.\n\nA dark hall.")
    assert environment.start(nothing).reset()[0] == Message("system", "Find the lamp.")


def test_a_command_is_carried_out_and_patterns_are_verbs() -> None:
    environment = maze()
    task = environment.tasks("seed", 1)[0]
    actions = [Action(calls=(make_call("jump"),)), Action(calls=(make_call(" light   lamp "),))]
    played = play(environment, task, follow(actions), max_turns=5)
    assert [turn.observation.text for turn in played.turns] == ["error: Nothing happens.", "It is bright."]
    assert played.turns[-1].observation.done
    assert (traits_of(environment).commands, traits_of(environment).concurrency) == ({"act": "command"}, 3)


def test_a_refused_command_may_be_the_last_one() -> None:
    environment = maze()
    task = environment.tasks("seed", 1)[0]
    actions = [Action(calls=(make_call(command),)) for command in ("jump", "jump", "jump", "light lamp")]
    played = play(environment, task, follow(actions), max_turns=5)
    assert [turn.observation.done for turn in played.turns] == [False, False, True]
    assert played.turns[-1].observation.text == "error: Nothing happens."


@pytest.mark.parametrize("arguments", [{}, {"command": 7}, {"command": "go", "to": "north"}, {"order": "go"}])
def test_a_call_without_a_command_is_refused(arguments: dict) -> None:
    with pytest.raises(ValueError, match="act takes a text called command"):
        read_command("act", arguments)


def test_a_long_command_is_refused() -> None:
    assert read_command("act", {"command": "x" * 300}) == "x" * 300
    with pytest.raises(ValueError, match="the command has 1,000 characters; at most 300 are taken"):
        read_command("act", {"command": "x" * 1_000})


def test_offers_are_drawn_from_each_verb_in_turn() -> None:
    known = [f"take cup {number}" for number in range(50)] + ["open box", "open fridge", "go north"]
    found = draw_offers(known, "salt")
    named = [arguments["command"] for _, arguments in found]
    assert {name for name, _ in found} == {"act"}
    assert [command.partition(" ")[0] for command in named[:5]] == ["go", "open", "take", "open", "take"]
    assert (len(named), {"open box", "open fridge"} <= set(named)) == (11, True)
    assert draw_offers(reversed(known), "salt") == found
    assert draw_offers(known, "pepper") != found


def step(command: object, ok: bool = True) -> Triplet:
    return Triplet(Action(calls=(Call("act", {"command": command}),)), Observation((Message("tool", ""),), ok=ok), 0)


END = Triplet(Action(calls=(Call("finish"),)), Observation((Message("tool", ""),)), 0)


def test_commands_are_asked_for_in_their_order() -> None:
    assert phrase([step("go  north"), step(" Take lamp"), END], {"look"}) == "Please go north, then Take lamp."


@pytest.mark.parametrize(
    "steps", [[], [END], [step("Look around"), step("go")], [step("go", ok=False)], [step("")], [step(7)],
              [Triplet(Action("prose"), Observation(), 0)]],
)  # fmt: skip
def test_what_was_not_carried_out_or_is_unasked_has_no_wording(steps: list[Triplet]) -> None:
    assert phrase(steps, {"look"}) is None
