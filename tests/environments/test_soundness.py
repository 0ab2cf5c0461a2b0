"""The check of bare setups, also of environments from outside."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys

import pytest

from cojax.worlds import complete_name, module
from environments import check, install, load, maker, parse_settings
from environments.soundness import SetupReport
from environments.tools import ToolEnvironment

SOURCE = """
from environments.tools import ToolEnvironment

def set_light(world, on: bool) -> None:
    world["on"] = on

def make(*, rooms: int = 2, label: str = "x"):
    return ToolEnvironment("lights", [set_light], dict, [{"on": False, "room": n} for n in range(rooms)])

def other():
    return make(rooms=1)

def broken():
    return make().missing
"""


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """A folder with the module `lights` and the package `house.lights`; it is the current folder."""
    (tmp_path / "lights.py").write_text(SOURCE)
    (tmp_path / "house").mkdir()
    (tmp_path / "house" / "lights.py").write_text(SOURCE)
    (tmp_path / "desk.py").write_text("1/0")
    (tmp_path / "needing.py").write_text("import absent_thing")
    (tmp_path / "house" / "needing.py").write_text("import house.absent")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("lights", "house", "house.lights"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def press(world, key: str) -> str:
    return f"pressed {key}"


def write(world, text: str) -> None:
    world["text"] = text


def report(*tools, garbage=True, setups=({"text": ""},), **settings) -> dict:
    environment = ToolEnvironment("typewriter", tools, settings.pop("open", dict), setups, **settings)
    found = SetupReport()
    for setup in environment.tasks("seed", 10):
        found.check_setup(environment, setup, throws_garbage=garbage)
    return found.line(environment, "typewriter", "seed", 0.0)


def test_a_sound_environment_has_no_fault_and_says_what_goes_unnoticed():
    line = report(write, press)
    assert (line["faults"], line["setups"], line["tasks"], line["replayed"], line["actions"]) == ([], 1, 1, 1, 6)
    assert (line["thrown"], line["answered"]) == (13, 13)
    assert line["unnoticed"] == ["press: dropping this call goes unnoticed"]
    assert line["mutated"] == 7
    assert line["mutated"] == line["mutated_rejected"] + line["harmless"] + len(line["let_through"])


class Paper:
    """A world without copies, so that calls are offered that are refused."""

    def __init__(self, setup):
        self.text, self.blots = setup["text"], 0

    def state(self):
        return {"text": self.text, "blots": self.blots}


def blot(paper) -> None:
    """Refuse, and change the state all the same."""
    paper.blots += 1
    raise ValueError("no blots")


def note(paper) -> None:
    paper.text += "a"


def test_a_call_that_is_refused_and_changes_the_state_is_listed_and_the_walk_begins_anew():
    line = report(blot, note, open=Paper, garbage=False, setups=[{"text": str(number)} for number in range(5)])
    assert line["faults"] == []
    assert line["unclean"]
    assert set(line["unclean"]) == {"blot() is refused and changes the state"}
    assert (line["setups"], line["replayed"]) == (5, 5)


def test_where_every_call_is_refused_no_action_works():
    line = report(blot, open=Paper, garbage=False)
    (fault,) = line["faults"][:1]
    assert fault.endswith(": no offered action works")
    assert line["unclean"] == ["blot() is refused and changes the state"] * 4


def test_a_call_that_a_later_one_makes_superfluous_goes_unnoticed():
    def count(world) -> None:
        world["text"] = "same"

    line = report(count)
    assert line["faults"] == []
    (drop,) = {entry.partition(": ")[2] for entry in line["let_through"]} or {None}
    assert drop in (None, "count of action 1: dropping this call goes unnoticed")


def test_a_state_that_lacks_what_the_tools_change_is_a_fault():
    line = report(press)
    assert line["faults"] == ["none of 6 calls changed the state: it lacks what the tools change, or they only look"]


def test_worlds_that_open_at_random_or_have_no_json_are_faults():
    numbers = itertools.count()
    line = report(write, open=lambda setup: {**setup, "number": next(numbers)})
    assert "two episodes begin with different state" in line["faults"][0]
    line = report(write, open=lambda setup: {**setup, "sets": {1}})
    assert "the world's state is no JSON" in line["faults"][0]
    line = report(write, open=lambda setup: 1 / 0)
    assert "ZeroDivisionError" in line["faults"][0]


def test_an_answer_that_differs_from_run_to_run_is_a_fault():
    numbers = itertools.count()

    def draw(world) -> int:
        world["text"] += "x"
        return next(numbers)

    assert "two plays of the solution differ" in report(draw, garbage=False)["faults"][0]


def test_tools_without_a_call_that_works_are_listed():
    def open_safe(world, code: str) -> None:
        raise ValueError("wrong code")

    line = report(write, open_safe)
    assert (line["faults"], line["untried"]) == ([], ["open_safe"])
    assert "no offered action works" in report(open_safe, garbage=False)["faults"][0]


def test_what_was_not_to_be_tried_is_not_listed():
    """Neither a tool that no episode offers, nor any tool where no walk began."""

    class Room(Paper):
        def on_offer(self):
            return [{"name": "note", "parameters": {"additionalProperties": False}}]

    def ring(room) -> None:
        room.text += "!"

    line = report(note, ring, open=Room, garbage=False)
    assert (line["faults"], "untried" in line) == ([], False)
    numbers = itertools.count()
    line = report(write, press, open=lambda setup: {**setup, "number": next(numbers)})
    assert "two episodes begin with different state" in line["faults"][0]
    assert "untried" not in line


def test_a_walk_takes_tools_first_of_which_no_call_was_made():
    def tool(number):
        def one(world) -> None:
            world["text"] += str(number)

        one.__name__ = f"tool_{number}"
        return one

    line = report(*map(tool, range(12)), garbage=False, setups=[{"text": "a"}, {"text": "b"}])
    assert (line["faults"], line["actions"], "untried" in line) == ([], 12, False)


def test_an_own_reward_that_is_no_number_is_a_fault_of_the_environment():
    task = {"query": "Write.", "setup": {"text": ""}, "solution": []}
    environment = ToolEnvironment(
        "typewriter", [write], dict, [{"text": ""}], splits={"dev": [task]},
        judge=lambda of, world, answer, finished: float("nan") if of.query == "Write." else None,
    )  # fmt: skip
    found = SetupReport()
    (own,) = environment.tasks("dev", 1)
    found.examine(environment, [dataclasses.replace(own, solution=())])
    (fault,) = found.line(environment, "typewriter", "dev", 0.0)["faults"]
    assert fault.startswith(f"setup {own.id}: environment_error evaluate: ")
    assert "nan" in fault


@pytest.mark.parametrize("name", ["lights", "lights:make", "house.lights", "house.lights:make", "lights:other"])
def test_an_environment_from_outside_is_found_by_its_module(outside, name, capsys):
    assert load(name).name == "lights"
    assert module(name).__name__ == name.partition(":")[0]
    assert check.main([name, "--count=3"]) == 0
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (line["environment"], line["faults"], line["split"]) == (name, [], "seed")
    assert install.main([name]) == 0
    assert "needs nothing installed" in capsys.readouterr().out


HANGS = """
import threading
from environments.tools import ToolEnvironment

def wait(world, seconds: int) -> str:
    threading.Event().wait()

def make():
    return ToolEnvironment("waiting", [wait], dict, [{"seconds": 1}])
"""


def test_a_tool_that_never_returns_ends_the_check_with_a_fault(outside, monkeypatch, capsys):
    (outside / "waits.py").write_text(HANGS)
    monkeypatch.setattr(check, "_MIN_HANG_S", 0.3)
    assert check.main(["waits"]) == 1
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert line["fault_count"] == len(line["faults"])
    assert "has not returned in 0.3 s; a tool that may hang" in line["faults"][0]


def test_an_environment_of_the_repository_comes_first(outside):
    assert load("desk").name == "desk"
    assert maker("desk").__module__ == "environments.desk"
    assert (complete_name("desk"), complete_name("lights"), complete_name("a:b")) == ("desk", "lights:make", "a:b")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (
            ["lihgts"],
            "environment 'lihgts' not found; available: alfworld, appworld, bfcl, desk, mcp, openenv, "
            "scienceworld, tau2, verifiers",
        ),
        (["dsk"], "did you mean desk?"),
        (["lihgts"], "there is no module 'lihgts' in {here} or among the installed packages either"),
        (["house.cellar"], "no module 'house.cellar' in {here} or among the installed packages"),
        (["hut.lights"], "no module 'hut' in {here} or among the installed packages"),
        (["needing"], "environment 'needing:make' cannot be imported: it needs 'absent_thing', which is not there"),
        (["house.needing"], "cannot be imported: it needs 'house.absent', which is not there"),
        (["lights:nothing"], "defines no 'nothing'"),
        (["lights", "--set", "roms=3"], "has no setting roms; did you mean rooms? it has rooms, label"),
        (["lights", "--set", "rooms=many"], "rooms is 'many'; expected a whole number"),
        (["lights", "--set", "rooms"], "--set rooms has no value"),
        (["lights", "--set", "rooms=0"], "has no setups"),
        (["lights", "--splits", "test"], "has no split 'test'"),
        (["tools"], "environment 'tools' not found"),
    ],
)
def test_what_is_not_there_is_refused(outside, arguments, why, capsys):
    with pytest.raises(SystemExit) as ended:
        check.main(arguments)
    assert ended.value.code == 2
    assert why.format(here=outside) in " ".join(capsys.readouterr().err.split())


def test_settings_are_given_as_text(outside, capsys):
    assert parse_settings("lights", {"rooms": "3", "label": "3"}) == {"rooms": 3, "label": "3"}
    assert check.main(["lights", "--set", "rooms=4", "--set", "label=a=b"]) == 0
    assert json.loads(capsys.readouterr().out)["setups"] == 4


def test_the_desk_is_checked_by_its_own_tasks(capsys):
    assert check.main(["desk", "--count=1", "--set", "isolated=False"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["split"], line["tasks"], line["unsolved"]) for line in lines] == [
        ("seed", 1, 0), ("dev", 1, 0), ("eval", 1, 0), ("challenge", 1, 0),
    ]  # fmt: skip


class Diary:
    """A world that keeps something beside its state, in `kept`, which all worlds share."""

    def __init__(self, kept):
        self.kept, self.lines = kept, []

    def state(self):
        return self.lines


def jot(diary, line: str) -> str:
    diary.lines.append(line)
    diary.kept.append(line)
    return "jotted"


def pay(diary, amount: int) -> None:
    jot(diary, str(amount))


def last(diary) -> str:
    return diary.kept[-1] if diary.kept else "nothing"


def known(diary, line: str) -> bool:
    return line in diary.kept


def every(diary) -> list[str]:
    return sorted(set(diary.kept))


def own(diary) -> list[str]:
    return diary.lines


@pytest.mark.parametrize("tools", [(jot, last), (pay, last), (jot, known), (jot, every)])
def test_an_episode_that_sees_what_another_was_told_is_a_fault(tools):
    for order in (tools, tools[::-1]):
        kept: list[str] = []
        faults = report(*order, open=lambda setup, kept=kept: Diary(kept))["faults"]
        assert any("expected episodes that see nothing of each other" in fault for fault in faults), order


def test_a_world_that_remembers_its_own_episode_alone_is_sound():
    assert report(jot, pay, own, last, known, every, open=lambda setup: Diary([]))["faults"] == []
