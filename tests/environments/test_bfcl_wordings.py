import itertools
import random

import pytest

from cojax.types import Action, Call, Message, Observation, Triplet
from environments.bfcl.calls import Apis
from environments.bfcl.tools import OMIT, SOURCES, WORDINGS, ArgumentValues, draw_calls, phrase, word_call

END = Action()


def steps(*actions: Action | Call, ok: bool = True) -> list[Triplet]:
    made = [action if isinstance(action, Action) else Action(calls=(action,)) for action in actions]
    return [Triplet(action, Observation((Message("tool", "{}"),), ok=ok), 0) for action in made]


CAT = Call("cat", {"file_name": "a.txt"})
PWD = Call("pwd")


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (PWD, "tell me which folder we are in"),
        (CAT, "show me what 'a.txt' contains"),
        (Call("tail", {"file_name": "a"}), "show the end of 'a'"),
        (Call("tail", {"file_name": "a", "lines": 10}), "show the end of 'a'"),
        (Call("tail", {"file_name": "a", "lines": 3}), "show the end of 'a', its last 3 lines"),
        (Call("ls", {"a": True}), "list what is in the current folder, hidden entries too"),
        (Call("ls", {"a": False}), "list what is in the current folder"),
        (
            Call("lockDoors", {"unlock": False, "door": ["driver", "passenger"]}),
            "lock the car doors 'driver', 'passenger'",
        ),
        (Call("echo", {"content": "it's\nnew", "file_name": "f"}), "echo the text \"it's\\nnew\" into the file 'f'"),
        (
            Call("edit_ticket", {"ticket_id": 7, "updates": {"priority": 2, "status": "Open"}}),
            "change support ticket 7 as follows: priority to 2, status to 'Open'",
        ),
        (
            Call("post_tweet", {"content": "Hi", "tags": ["#a", "#b"], "mentions": []}),
            "tweet 'Hi' with the tags '#a', '#b'",
        ),
    ],
)
def test_a_call_is_worded_with_every_argument(call: Call, expected: str) -> None:
    assert word_call(call) == expected


@pytest.mark.parametrize(
    "call",
    [
        Call("fly", {}),
        Call("cat", {}),
        Call("cat", {"file_name": "a", "colour": "red"}),
        Call("ls", {"a": "yes"}),
        Call("lockDoors", {"unlock": "no", "door": []}),
    ],
)
def test_an_argument_without_a_place_leaves_no_words(call: Call) -> None:
    assert word_call(call) is None


def test_steps_are_joined_and_actions_without_calls_end_turns() -> None:
    assert phrase(steps(PWD, CAT, END)) == ["Tell me which folder we are in, then show me what 'a.txt' contains."]
    assert phrase(steps(PWD, END, CAT, END)) == ["Tell me which folder we are in.", "Show me what 'a.txt' contains."]
    assert phrase(steps(Action(calls=(PWD, CAT)), END)) == phrase(steps(PWD, CAT, END))


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        steps(PWD),
        steps(PWD, END, CAT),
        steps(END),
        steps(END, PWD, END),
        steps(PWD, END, END),
        steps(PWD, END, END, CAT, END),
        steps(PWD, END, ok=False),
        steps(Call("fly"), END),
    ],
)
def test_no_words_for_empty_unended_or_failed_turns(wrong: list[Triplet]) -> None:
    assert phrase(wrong) is None


def drawn(tool: str, rng: random.Random) -> Call:
    """A call of the tool with made-up text for what only a values would tell."""
    arguments = {}
    for name, source in SOURCES[tool].items():
        options = list(source(ArgumentValues({}, []))) or [f"{name}{rng.randrange(9)}"]
        arguments[name] = rng.choice(options)
    return Call(tool, {name: value for name, value in arguments.items() if value is not OMIT})


def test_the_tables_know_the_same_tools_and_parameters() -> None:
    assert len(WORDINGS) == 128
    assert list(SOURCES) == list(WORDINGS)
    rng = random.Random(0)
    for tool, _ in itertools.product(WORDINGS, range(20)):
        assert word_call(drawn(tool, rng)), tool


def test_different_calls_are_worded_differently() -> None:
    rng = random.Random(1)
    worded: dict[str, set[str]] = {}
    for tool, _ in itertools.product(WORDINGS, range(200)):
        call = drawn(tool, rng)
        worded.setdefault(str(word_call(call)).casefold(), set()).add(repr((call.name, sorted(call.arguments.items()))))
    assert [calls for calls in worded.values() if len(calls) > 1] == []
    assert len(worded) > 1000


class GorillaFileSystem:
    """Enough of a file system to be offered calls in."""

    def __init__(self) -> None:
        self.root = self._current_dir = Directory({"a.txt": File("amber bread"), "docs": Directory({})})

    def cat(self, file_name: str) -> dict:
        return {"file_content": self._current_dir.contents[file_name].content}

    def rmdir(self, dir_name: str) -> dict:
        return {"result": self._current_dir.contents.pop(dir_name).contents}

    def diff(self, file_name1: str, file_name2: str) -> dict:
        return {"error": "never works"}


class File:
    def __init__(self, content: str) -> None:
        self.content = content


class Directory:
    def __init__(self, contents: dict) -> None:
        self.contents = contents


def test_offers_are_calls_that_work_and_change_nothing() -> None:
    tools = ("cat", "rmdir", "diff")
    instances = {"GorillaFileSystem": GorillaFileSystem()}
    apis = Apis(instances, dict.fromkeys(tools, "GorillaFileSystem"))
    found = draw_calls(apis, ArgumentValues(instances, []), tools, salt="1")
    assert found == [Call("cat", {"file_name": "a.txt"}), Call("rmdir", {"dir_name": "docs"})]
    assert list(instances["GorillaFileSystem"].root.contents) == ["a.txt", "docs"]


def test_a_pool_remembers_what_results_told() -> None:
    values = ArgumentValues(
        {}, [{"booking_id": "B1", "costs": [100.0, 200.0]}, [{"id": 4}], {"long": "x" * 81, "yes": True}]
    )
    assert values.results == {"booking_id": ["B1"], "costs": [100.0, 200.0], "id": [4]}
