"""What an attacker knows: endings, look-ups, answers, logs; and how ends are compared."""

from __future__ import annotations

import dataclasses

import holed_worlds
import pytest
import sound_worlds

from cojax.types import Action, Call
from environments.audit.attackers import ATTACKERS, find_attackers
from environments.audit.player import Attempt, Player, Seat, read_state
from environments.audit.scene import Ending, survey
from environments.audit.variations import drop, exchange, swap


def seen(environment, split="eval"):
    (task, *_) = environment.tasks(split, 1)
    player = Player(environment)
    honest = player.play(task, Attempt("solution", task.solution), "test") if task.solution else None
    return survey(player, task, 0, honest), player


@pytest.mark.parametrize(
    ("environment", "split", "ending"),
    [
        (sound_worlds.shop(), "eval", Ending("finish", "answer")),
        (sound_worlds.lamps(), "test", Ending("leave", None)),
        (sound_worlds.spoken(), "eval", Ending()),
        (sound_worlds.questions(), "train", Ending("submit", "answer")),
        (sound_worlds.quiz(), "eval", Ending()),
    ],
)
def test_how_an_episode_ends(environment, split, ending):
    assert seen(environment, split)[0].ending == ending


def test_lookups_change_nothing():
    scene, _ = seen(sound_worlds.shop())
    assert {tried.call.name for tried in scene.lookups} == {"stock_of"}
    assert "10" in scene.shown_texts


def test_an_answer_counts_if_the_query_asks_for_it():
    assert seen(sound_worlds.shop())[0].answer == "10"
    assert seen(sound_worlds.spoken())[0].answer is None  # "I have deposited it for you."
    assert seen(sound_worlds.pantry())[0].answer is None


@pytest.mark.parametrize(
    ("query", "answer", "counts"),
    [
        ("How many pens are left?", "ten", True),
        ("Order pens, then tell ada that they are here", "done", False),
        ("Which is left? Order it.", "I have ordered it for you, as you asked.", False),
        ("Which is left? Order it.", "There are 10 left, so I have ordered it.", True),
        ("Send the report to ada.", "sent to her", False),
    ],
)
def test_a_courtesy_is_no_answer(query, answer, counts):
    scene, _ = seen(sound_worlds.shop())
    asked = dataclasses.replace(scene.task, query=query)
    solution = (*scene.solution[:-1], scene.ending.answer(answer))
    spoken = dataclasses.replace(scene, task=asked, solution=solution, needs_answer=False)
    assert (spoken.answer == answer) == counts


def test_a_log_of_calls_is_no_difference():
    scene, player = seen(sound_worlds.board())
    without_look = player.play(scene.task, Attempt("", scene.solution[1:]), "test")
    assert without_look.end != scene.honest.end
    assert scene.differences(without_look) == []
    without_move = player.play(scene.task, Attempt("", (*scene.solution[:1], *scene.solution[2:])), "test")
    assert scene.differences(without_move) == [("world", "cards", "build")]


def test_ending_the_episode_is_no_difference():
    scene, player = seen(sound_worlds.pantry())
    run = player.play(scene.task, Attempt("", scene.body), "test")
    assert scene.differences(run) == []
    assert run.reward == 0.0  # the verdict of this world asks for it


def test_variations_of_a_solution():
    scene, _ = seen(holed_worlds.forgetful())
    assert [attempt.label for attempt in drop(scene)] == [
        "without put of action 1", "without label of action 2", "without finish of action 3"
    ]  # fmt: skip
    assert [attempt.label for attempt in exchange(scene)] == ["actions 1 and 2 exchanged"]
    swapped = [attempt.actions for attempt in swap(scene)]
    assert all(actions != scene.solution and len(actions) == 3 for actions in swapped)
    assert not any(attempt.is_doubtful for attempt in swap(scene))  # the query names all values


def test_a_value_that_the_query_does_not_name_may_be_a_free_choice():
    scene, _ = seen(holed_worlds.unreadable())
    other = Action(calls=(Call("deposit", {"amount": "99"}),))
    changed = type(scene)(**{**vars(scene), "solution": (other, *scene.solution[1:])})
    assert {attempt.is_doubtful for attempt in swap(changed)} == {True}


def test_an_attacker_sees_no_verdict():
    assert not hasattr(Seat(object()), "evaluate")
    assert not hasattr(Seat(object()), "step")


def test_a_state_is_copied_and_must_be_readable():
    class Live:
        def __init__(self, value):
            self.value = value

        def state(self):
            return self.value

    live = Live({"a": [1, {"b": []}]})
    leaves = read_state(live)
    live.value["a"].append(2)
    assert leaves == {("a", 0): "1", ("a", 1, "b"): "[]"}
    with pytest.raises(ValueError, match="state\\(\\) is no JSON: Out of range"):
        read_state(Live({"a": float("nan")}))
    with pytest.raises(ValueError, match="state\\(\\) returned list; expected a JSON object"):
        read_state(Live([1]))


def test_attackers_are_found_by_name():
    assert list(find_attackers("drop,null")) == ["drop", "null"]
    assert find_attackers() == ATTACKERS
