import itertools
import random

import pytest
from broken_desks import BrokenDesk, always
from records import call

import environments
from cojax.environment import EnvironmentFailure, ask
from cojax.explorer.scripted.explorer import Ending, draw_lengths, split_turns, windows, words_of
from cojax.types import Action, Message, Observation, Triplet


def step(action: Action, told: str = "ok", run: int = 0, ok: bool = True) -> Triplet:
    return Triplet(action, Observation((Message("tool", told),), ok=ok), run)


FIND = step(call("contacts_find", person="ana"), "box11")
MOVE = step(call("files_move", file="report", folder="taxes"))
SEND = step(call("mail_send", address="box11", text="amber"))
FLAG = step(call("mail_flag", sender="ana"))


def names(window: tuple[Triplet, ...]) -> str:
    return " ".join(triplet.action.calls[0].name for triplet in window)


def test_a_look_up_stays_with_the_call_that_uses_it() -> None:
    found = {names(window) for window in windows([FIND, MOVE, SEND], itertools.repeat(9), (), random.Random(0))}
    assert found == {
        "contacts_find",
        "files_move",
        "mail_send",
        "contacts_find files_move",
        "files_move mail_send",
        "contacts_find files_move mail_send",
        "contacts_find mail_send",  # not successive, but one purpose
    }


def test_errors_are_left_out_and_runs_do_not_mix() -> None:
    wrong = step(call("files_move", file="ghost", folder="taxes"), "error: no file ghost", ok=False)
    other = step(call("notes_delete", note="memo"), run=1)
    found = {names(window) for window in windows([MOVE, wrong, FLAG, other], itertools.repeat(9), (), random.Random(0))}
    assert found == {"files_move", "mail_flag", "files_move mail_flag", "notes_delete"}


def test_the_length_wanted_comes_first_then_the_nearest() -> None:
    steps = [MOVE, FLAG, step(call("notes_delete", note="memo"))]
    found = [len(window) for window in windows(steps, iter([3, 3, 1, 1, 1, 1]), (), random.Random(0))]
    assert found == [3, 2, 1, 1, 1, 2]


def test_windows_in_focus_come_first() -> None:
    for seed in range(10):
        steps = [MOVE, FLAG, step(call("notes_delete", note="memo"))]
        first = next(windows(steps, itertools.repeat(1), ("mail_flag",), random.Random(seed)))
        assert names(first) == "mail_flag"


def test_required_calls_are_in_every_window() -> None:
    steps = [MOVE, FLAG, MOVE, SEND]
    found = [
        names(one)
        for one in windows(steps, itertools.repeat(1), (), random.Random(0), {"mail_flag": 1, "mail_send": 1})
    ]
    assert set(found) == {names(steps[1:]), names(steps)}
    assert not list(windows(steps, itertools.repeat(1), (), random.Random(0), {"mail_flag": 2}))


def test_lengths_shrink_as_they_grow_within_bounds() -> None:
    drawn = list(itertools.islice(draw_lengths(3, (-1, 0, 2), 4, random.Random(0)), 200))
    assert set(drawn) == {2, 3, 4}  # 3 + 2 is cut to 4
    assert set(itertools.islice(draw_lengths(1, (-1, 0), 4, random.Random(0)), 50)) == {1}


def test_the_ending_is_read_from_the_documentation() -> None:
    desk = environments.load("desk")
    ending = Ending.of(desk, "finish")
    assert ending == Ending("finish", "answer")
    plain, answer = ending.after(FIND)
    assert plain.action == call("finish")
    assert answer.action == call("finish", answer="box11")
    assert [last.action for last in Ending("stop").after(FIND)] == [call("stop")]
    with pytest.raises(ValueError, match=r"'desk' has no tool 'stop' to end an episode; it has .*finish"):
        Ending.of(desk, "stop")


def test_without_a_tool_to_end_it_an_action_without_calls_does() -> None:
    ending = Ending.of(environments.load("desk"), "")
    assert ending == Ending("", None)
    assert list(ending.after(FIND)) == [Triplet(Action(), Observation(done=True), 0)]


def test_a_window_is_cut_into_user_turns() -> None:
    def cuts(chance: float, seed: int = 0) -> str:
        steps = split_turns((FIND, SEND, FLAG), chance, random.Random(seed))
        return " ".join("f" if step.action == FIND.action else "." if not step.action.calls else "x" for step in steps)

    assert cuts(0.0) == "f x x"
    assert cuts(1.0) == "f . x . x"
    assert {cuts(0.5, seed) for seed in range(20)} == {"f x x", "f . x x", "f x . x", "f . x . x"}
    assert split_turns((FIND, SEND), 1.0, random.Random(0))[1] == Triplet(Action(), Observation(ok=True), 0)
    assert split_turns((), 1.0, random.Random(0)) == ()


def test_what_json_tells_is_a_source_too() -> None:
    found = step(call("find"), '{"matches": ["report.txt", 12.5]}')
    assert words_of(found.observation.text) >= {"matches", "report.txt", "12.5"}
    steps = [found, MOVE, step(call("cat", file_name="report.txt"))]
    assert "find cat" in {names(window) for window in windows(steps, itertools.repeat(9), (), random.Random(0))}


def test_a_breaking_grammar_is_an_environment_failure() -> None:
    with pytest.raises(EnvironmentFailure, match="OSError: phrase is on fire"):
        ask(BrokenDesk(on=always("phrase")).phrase, [MOVE])
