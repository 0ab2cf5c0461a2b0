"""The language of what was done, and the code behind it."""

import ast
import itertools

import pytest

from cojax.types import Action, Call, Message, Observation, Triplet
from environments.appworld import skills
from environments.appworld.skills import ENDING, SKILLS

VALUES = {"amount": 5, "stars": 4, "enabled": True}


def sample(name: str, mark: str = "a") -> Call:
    return Call(
        name, {parameter: VALUES.get(parameter, f"{parameter} {mark}") for parameter in SKILLS[name].parameters}
    )


def done(*calls: Call, printed: str = "ok", ok: bool = True) -> list[Triplet]:
    return [Triplet(Action(calls=(call,)), Observation((Message("user", printed),), ok=ok), 0) for call in calls]


@pytest.mark.parametrize("name", SKILLS)
def test_every_skill_is_code_about_its_own_api_and_words_with_all_its_arguments(name):
    call = sample(name)
    tree = ast.parse(skills.write_code([call]))
    called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert f"apis.{name}" in {
        *called,
        *(ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)),
    }
    answer = {"answer": "7"} if SKILLS[name].is_look_up else {}
    words = skills.phrase(done(call, Call(ENDING, answer), printed="7"))
    assert words is not None
    for parameter, value in call.arguments.items():
        assert str(value) in words or parameter == "enabled"


def test_different_deeds_are_worded_differently():
    calls = [sample(name, mark) for name, mark in itertools.product(SKILLS, "ab") if not SKILLS[name].is_look_up]
    calls += [Call("phone.update_alarm", {"label": "label a", "enabled": False})]
    words = {skills.phrase(done(call, Call(ENDING))) for call in calls}
    assert len(words) == len({str((call.name, call.arguments)) for call in calls})


def test_several_steps_are_one_sentence_and_a_question_stands_last():
    like, ask = sample("spotify.like_song"), sample("venmo.show_venmo_balance")
    steps = [*done(like), *done(ask, printed="12.5"), *done(Call(ENDING, {"answer": "12.5"}))]
    assert skills.phrase(steps) == "Like the song 'title a' on Spotify, then tell me how much money I have on Venmo."
    assert skills.phrase([*done(ask, like), *done(Call(ENDING))]) is None


@pytest.mark.parametrize(
    "steps",
    [
        [],
        done(Call(ENDING)),
        done(sample("spotify.like_song")),
        done(sample("spotify.like_song"), Call(ENDING, {"answer": "x"})),
        done(sample("venmo.show_venmo_balance"), Call(ENDING)),
        done(sample("venmo.show_venmo_balance"), Call(ENDING, {"answer": "other"}), printed="12"),
        done(sample("venmo.show_venmo_balance"), Call(ENDING, {"answer": "a\nb"}), printed="a\nb"),
        done(sample("spotify.like_song"), Call(ENDING), ok=False),
        done(Call("spotify.no_such_skill"), Call(ENDING)),
        done(Call("spotify.like_song"), Call(ENDING)),
        done(sample("spotify.like_song"), sample("spotify.like_song"), Call(ENDING)),
        done(Call(ENDING), sample("spotify.like_song"), Call(ENDING)),
    ],
)
def test_what_has_no_words_is_no_task(steps):
    assert skills.phrase(steps) is None


def test_arguments_are_literals_whatever_they_hold():
    hostile = "'); import os; os.system('true'); ('{title}\\"
    (call,) = [
        node
        for node in ast.walk(ast.parse(skills.write_code([Call("spotify.like_song", {"title": hostile})])))
        if isinstance(node, ast.keyword) and node.arg == "query"
    ]
    assert ast.literal_eval(call.value) == hostile
    for wrong in ({"title": ["a"]}, {"title": None}, {"title": "a", "more": 1}):
        with pytest.raises(ValueError, match="takes title"):
            skills.write_code([Call("spotify.like_song", wrong)])


def test_skills_are_documented_drawn_to_and_neighbours_of_their_app():
    documented = [entry["function"]["name"] for entry in skills.documentation()]
    assert documented == [*SKILLS, ENDING]
    assert next(iter(skills.documentation()[-1]["function"]["parameters"]["properties"])) == "answer"
    assert list(skills.popularity().values()) == sorted(skills.popularity().values(), reverse=True)
    assert "spotify.unlike_song" in skills.neighbours("spotify.like_song")
    assert not any(name.startswith("venmo") for name in skills.neighbours("spotify.like_song"))
