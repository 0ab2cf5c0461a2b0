"""Runs inside the benchmark's own virtual environment; skipped where the wheel is not installed."""

import math
import random

import pytest

pytest.importorskip("bfcl_eval", reason="runs where python -m environments.install bfcl put the wheel")

from cojax.environment import play
from cojax.environment.replay import follow
from cojax.types import Action, Call, Task, Trajectory, canonical
from environments.bfcl import inside
from environments.bfcl.episode import SEPARATOR

pytestmark = pytest.mark.real
BFCL = inside.make()
END = Action()
FOLDER = {"type": "directory", "contents": {"a.txt": {"type": "file", "content": "amber\nbread"}}}
SETUP = {
    "classes": ["GorillaFileSystem", "MathAPI"],
    "config": {"GorillaFileSystem": {"root": {"home": {"type": "directory", "contents": {"docs": FOLDER}}}}},
    "long": False,
}
CD, CAT = Call("cd", {"folder": "docs"}), Call("cat", {"file_name": "a.txt"})
TOUCH = Call("touch", {"file_name": "b.txt"})


def one(*calls: Call) -> Action:
    return Action(calls=calls)


def task(query: str, *solution: Action, **setup: object) -> Task:
    return Task("bfcl", query, {**SETUP, **setup}, solution)


TWO_TURNS = task(f"go in{SEPARATOR}make b", one(CD), one(CAT), END, one(TOUCH), END)


def run(of: Task, *actions: Action) -> Trajectory:
    return play(BFCL, of, follow(actions), max_turns=len(actions))


def test_a_dialogue_goes_through_its_turns() -> None:
    played = run(TWO_TURNS, *TWO_TURNS.solution)
    assert played.opening[0].content == "go in"
    shown = [[message.content for message in turn.observation.messages] for turn in played.turns]
    assert shown == [
        ['{"current_working_directory": "docs"}'],
        ['{"file_content": "amber\\nbread"}'],
        ["make b"],
        ["None"],
        [],
    ]
    assert [turn.observation.done for turn in played.turns] == [False] * 4 + [True]
    assert [(check.name, check.passed) for check in played.checks] == [("turn 1", True), ("turn 2", True)]


def test_partial_credit_is_the_share_of_turns() -> None:
    played = run(TWO_TURNS, one(CD), one(CAT), END, END)
    assert (played.outcome, played.reward, played.partial) == ("finished", 0.0, 0.5)


def test_turns_never_reached_or_never_ended_fail() -> None:
    played = run(TWO_TURNS, one(CD), one(CAT), END, one(TOUCH))
    assert (played.outcome, played.reward, played.partial) == ("truncated", 0.0, 0.5)
    assert run(TWO_TURNS, one(CD), one(CAT)).partial == 0.0


def test_a_turn_without_calls_fails_where_some_are_expected() -> None:
    twice = task(f"look{SEPARATOR}look again", one(Call("pwd")), END, one(Call("pwd")), END)
    assert run(twice, *twice.solution).reward == 1.0
    silent = run(twice, one(Call("pwd"), Call("pwd")), END, END)
    assert [check.passed for check in silent.checks] == [True, False]
    early = run(twice, one(Call("pwd"), Call("pwd")), END, one(Call("ls")), END)
    assert early.reward == 1.0  # outputs of earlier turns count, as officially


def test_a_turn_without_an_answer_is_not_checked_but_its_calls_stand() -> None:
    vague = task(f"make a file{SEPARATOR}b.txt in docs", END, one(CD), one(TOUCH), END)
    assert run(vague, one(Call("ls")), END, one(CD), one(TOUCH), END).reward == 1.0
    spoiled = run(vague, one(Call("touch", {"file_name": "x"})), END, one(CD), one(TOUCH), END)
    assert [check.passed for check in spoiled.checks] == [True, False]


def test_force_quit_after_21_steps_in_a_turn() -> None:
    looks = [one(Call("pwd"))] * 18
    assert run(TWO_TURNS, one(CD), one(CAT), *looks, END, one(TOUCH), END).reward == 1.0  # 20 steps
    quit_early = run(TWO_TURNS, one(CD), one(CAT), *looks, one(Call("pwd")), END)
    assert (len(quit_early.turns), quit_early.outcome) == (21, "finished")
    assert (quit_early.reward, quit_early.partial) == (0.0, 0.5)
    # In the last turn it is judged by what was reached.
    last = run(TWO_TURNS, one(CD), one(CAT), END, one(TOUCH), *looks, *[one(Call("pwd"))] * 2, END)
    assert (len(last.turns), last.outcome, last.reward) == (24, "finished", 1.0)


def test_all_calls_of_an_action_run_also_after_one_that_fails() -> None:
    observation = BFCL.start(TWO_TURNS).step(one(Call("cat", {"file_name": "ghost"}), CD, CAT))
    assert [message.role for message in observation.messages] == ["tool"] * 3
    assert "No such file" in observation.messages[0].content
    assert "amber" in observation.messages[2].content
    assert not observation.ok


def test_plain_text_ends_a_turn_and_a_malformed_call_is_told() -> None:
    assert BFCL.start(TWO_TURNS).step(Action("done", (), "no tool call found")).ok
    malformed = BFCL.start(TWO_TURNS).step(Action("<tool_call>{</tool_call>", (), "tool call is not valid JSON"))
    assert (malformed.ok, malformed.text) == (False, "make b")


def test_a_dialogue_that_is_over_stays_over() -> None:
    episode = BFCL.start(task("look", one(Call("pwd")), END))
    assert episode.step(END).done
    before = episode.state()
    after = episode.step(one(CD))
    assert (after.ok, after.done, episode.state()) == (False, True, before)
    assert episode.affordances() == ()


def test_withheld_tools_are_not_documented_nor_run_until_announced() -> None:
    withheld = task(f"go in{SEPARATOR}", one(CD), END, one(CAT), END, withheld={"1": ["cat"]})
    episode = BFCL.start(withheld)
    assert "cat" not in {entry["function"]["name"] for entry in episode.tools()}
    episode.step(one(CD))
    assert not any(call.name == "cat" for action in episode.affordances() for call in action.calls)
    assert episode.step(one(CAT)).text == "Error during execution: there is no function 'cat'"
    announced = episode.step(END)
    assert announced.messages[0].role == "user"
    assert '"name": "cat"' in announced.text
    assert '"name": "ls"' not in announced.text
    assert "amber" in episode.step(one(CAT)).text
    episode.step(END)
    assert episode.evaluate().reward == 1.0


HOSTILE = [
    Call("__import__", {"name": "os"}),
    Call("__init__"),
    Call("_load_scenario", {"scenario": {}}),
    Call("root.__class__"),
    Call("globals"),
    Call("eval", {"expression": "1"}),
    Call("cat(file_name='a')"),
    Call("cat", {"file_name": ["a.txt"]}),
    Call("cat", {"file_name": "x" * 10_000_000}),
    Call("cat", {"__class__": 1}),
    Call("cat", {"self": 1}),
    Call("cat", {"": 1}),
    Call("echo", {"content": "a", "file_name": "../../etc/passwd"}),
    Call("mean", {"numbers": [math.nan]}),
    Call("mean", {"numbers": [[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]}),
    Call("power", {"base": 10, "exponent": 5000}),
    Call("power", {"base": 10**300, "exponent": 10**301}),
    Call("power", {"base": "a", "exponent": {}}),
    Call("logarithm", {"value": 0, "base": 1, "precision": -1}),
    Call("square_root", {"number": 2, "precision": -5}),
    Call("post_tweet", {"content": "of a class that is not involved"}),
    Call("", {}),
    Call("\ud800", {}),
]


@pytest.mark.parametrize("call", HOSTILE, ids=lambda call: call.name[:20])
def test_hostile_calls_are_answered_with_an_error(call: Call) -> None:
    episode = BFCL.start(TWO_TURNS)
    before = episode.state()
    observation = episode.step(one(call))
    assert not observation.ok
    assert len(observation.text) < 2_000 or call.arguments.get("file_name") is not None
    assert episode.state() == before
    assert run(TWO_TURNS, *TWO_TURNS.solution).reward == 1.0


def test_too_many_calls_at_once_are_cut() -> None:
    observation = BFCL.start(TWO_TURNS).step(one(*[Call("pwd")] * 1000))
    assert len(observation.messages) == 65
    assert not observation.ok


def test_folders_without_end_break_nothing() -> None:
    endless = [Call("mkdir", {"dir_name": "d"}), Call("cp", {"source": "d", "destination": "d"})]
    doubled = [Call("cp", {"source": "d", "destination": f"d{n}"}) for n in range(3)]
    deep = [call for _ in range(300) for call in (Call("mkdir", {"dir_name": "d"}), Call("cd", {"folder": "d"}))]
    for calls in ([*endless, *doubled, Call("find"), Call("du")], deep):
        episode = BFCL.start(TWO_TURNS)
        for start in range(0, len(calls), 60):
            episode.step(one(*calls[start : start + 60]))
        assert canonical(episode.state())
        assert episode.affordances()[-1] == END
        while not episode.step(END).done:
            pass
        assert episode.evaluate().reward == 0.0


def test_equal_states_are_equal_values_and_every_call_that_works_shows() -> None:
    first, second = BFCL.start(TWO_TURNS), BFCL.start(TWO_TURNS)
    for episode in (first, second):
        episode.reset()
    assert first.state() == second.state()
    start = canonical(first.state())
    first.step(one(Call("pwd")))
    assert canonical(first.state()) != start  # a reading is an effect
    second.step(one(Call("pwd")))
    assert canonical(first.state()) == canonical(second.state())
    tree = first.state()["instances"]["GorillaFileSystem"]["root"]["Directory"]
    docs = tree["contents"]["docs"]["Directory"]
    assert docs["contents"]["a.txt"] == {"File": {"name": "a.txt", "content": "amber\nbread"}}
    first.step(END)
    assert first.state()["turn"] == 1


def test_a_booking_in_one_long_episode_does_not_show_in_the_next() -> None:
    for t in BFCL.tasks("long_context", 200)[150:170]:
        before = canonical(BFCL.start(t).state())
        run(t, *t.solution)
        assert canonical(BFCL.start(t).state()) == before


def test_a_setup_that_does_not_load_is_a_readable_error() -> None:
    with pytest.raises(ValueError, match="benchmark has GorillaFileSystem"):
        BFCL.start(task("", classes=["WebSearchAPI"]))
    with pytest.raises(ValueError, match="setup lacks 'config'"):
        BFCL.start(Task("bfcl", "", {"classes": []}))
    with pytest.raises(ValueError, match="does not load"):
        BFCL.start(task("", config={"GorillaFileSystem": {"root": {"home": {}}}}))


def test_affordances_work_end_with_the_ending_and_cover_the_tools() -> None:
    offered = set()
    for number, place in enumerate(BFCL.tasks("seed", 60)):
        episode, rng = BFCL.start(place), random.Random(number)
        for _ in range(5):
            options = episode.affordances()
            assert options == episode.affordances()
            assert options[-1] == END
            assert len(options) <= 151
            offered |= {action.calls[0].name for action in options[:-1]}
            assert episode.step(rng.choice(options[:-1])).ok
    assert len(offered) >= 115
