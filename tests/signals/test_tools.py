"""Which tools a trajectory called; where one tool takes commands, what is rare is a verb."""

from __future__ import annotations

from pathlib import Path

import pytest

from cojax import worlds
from cojax.environment import CALLS_IN_TEXT
from cojax.signals import Rare
from cojax.signals.tools import read_by_verb, tools_called, tools_of
from cojax.types import Action, Call, Group, Observation, Task, Trajectory, Turn

CODE = """I look first.
```python
rows = pages(apis.spotify.show_song_library, access_token=token)
print(apis.spotify.like_song(song_id=rows[0]["song_id"], access_token=token), other.apis)
```"""


worlds.register_calls("appworld")


def test_code_calls_what_it_names():
    assert tools_of(Action(CODE), "appworld") == ("spotify.show_song_library", "spotify.like_song")
    assert tools_of(Action("I think of apis and of nothing else"), "appworld") == ()


SHOP = """
from counter_environment import CounterEnvironment as make

CALL_IN_TEXT = r"(?m)^use! (\\w+\\.\\w+)"
"""


def test_a_world_from_outside_says_how_its_text_calls_a_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop_of_tools.py").write_text(SHOP)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(CALLS_IN_TEXT, "desk", "")
    bought = Action("I buy.\nuse! basket.add tea\nuse! basket.pay")
    assert tools_of(bought, "counter") == ()
    assert worlds.load("shop_of_tools").name == "counter"
    assert tools_of(bought, "counter") == ("basket.add", "basket.pay")
    assert tools_of(bought) == ("basket.add", "basket.pay")
    assert tools_of(bought, "desk") == ()
    trajectory = Trajectory(Task("counter", "q", {}), "1-a-0", turns=(Turn(bought),), reward=1.0)
    memory, _ = Rare(minimum=0).update({}, [Group(trajectory.task, (trajectory,))])
    assert memory == {"basket.add > basket.pay": 1, "(all)": 1}


def test_the_text_of_a_world_that_declares_nothing_calls_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    worlds.register_calls("desk")
    monkeypatch.delitem(CALLS_IN_TEXT, "appworld")
    assert tools_of(Action(CODE), "desk") == tools_of(Action(CODE), "nowhere") == ()


def test_an_action_with_calls_is_what_it_calls():
    assert tools_of(Action(CODE, (Call("files_find"),))) == ("files_find",)


def test_failed_actions_may_be_left_out():
    turns = (Turn(Action(CODE)), Turn(Action("apis.venmo.login()"), Observation(ok=False)))
    trajectory = Trajectory(Task("appworld", "q", {}), turns=turns)
    assert tools_called(trajectory) == ("spotify.show_song_library", "spotify.like_song", "venmo.login")
    assert tools_called(trajectory, failed=False) == ("spotify.show_song_library", "spotify.like_song")


TASK = Task("maze", "find the lamp", {})


def trajectory(*commands, tool="act"):
    turns = tuple(Turn(Action(calls=(Call(tool, {"command": command}),)), Observation()) for command in commands)
    return Trajectory(TASK, "1-a-0", turns=turns, reward=1.0)


def test_patterns_are_made_of_the_verbs_of_commands():
    kind = read_by_verb(Rare(percent=30.0, minimum=4, pattern=1), {"act": "command"})
    group = Group(TASK, (trajectory("go north", "Go  south", "go west", "take lamp"),))
    memory, signals = kind.update(kind.init(), [group])
    assert memory == {"act go": 3, "act take": 1, "(all)": 4}
    (signal,) = signals
    assert (signal.kind, signal.focus) == ("rare", ("act take",))
    assert signal.evidence == "act take: 1 of 4 patterns (25.00%, below 30%)"


def test_other_calls_and_commands_without_words_keep_their_names():
    kind = read_by_verb(Rare(minimum=0, pattern=1), {"act": "command"})
    memory, _ = kind.update({}, [Group(TASK, (trajectory("go", tool="walk"), trajectory("", " ", None, 7)))])
    assert memory == {"walk": 1, "act": 4, "(all)": 5}


def test_it_is_the_kind_that_it_wraps():
    rare = Rare()
    kind = read_by_verb(rare, {"act": "command"})
    assert (kind.name, kind.colour, kind.guidance) == (rare.name, rare.colour, rare.guidance)
    assert kind.confidence(None, []) == rare.confidence(None, [])
    assert kind.__wrapped__ is rare
