"""The comparison with what a solution does."""

import copy

import pytest

from environments.appworld.report import compare_effects, normalise_answer, score_partially

REFERENCE = {
    "tables": {
        "spotify.SongLike": {"added": [{"song_id": 1, "user_id": 2}, {"song_id": 4, "user_id": 2}]},
        "venmo.User": {"changed": [{"id": 2, "venmo_balance": 5.0}]},
    },
    "answer": None,
    "status": "success",
}


def failing(**changed: object) -> list[str]:
    done = {**copy.deepcopy(REFERENCE), **changed}
    found = compare_effects(REFERENCE, done)
    assert found.reward == float(all(check.passed for check in found.checks))
    return [check.name for check in found.checks if not check.passed]


def test_the_same_deeds_pass_in_any_order():
    rows = list(reversed(REFERENCE["tables"]["spotify.SongLike"]["added"]))
    assert failing() == []
    assert failing(tables={**REFERENCE["tables"], "spotify.SongLike": {"added": rows}}) == []


def test_each_difference_has_its_check():
    likes = REFERENCE["tables"]["spotify.SongLike"]["added"]
    without = {"venmo.User": REFERENCE["tables"]["venmo.User"]}
    assert failing(tables=without) == ["spotify.SongLike: added"]
    assert failing(tables={**without, "spotify.SongLike": {"added": [*likes, likes[0]]}}) == ["spotify.SongLike: added"]
    more = {**REFERENCE["tables"], "gmail.Email": {"removed": [{"id": 3}]}}
    assert failing(tables=more) == ["nothing else changed"]
    more = {**REFERENCE["tables"], "venmo.User": {**without["venmo.User"], "removed": [{"id": 3}]}}
    assert failing(tables=more) == ["nothing else changed"]
    assert failing(answer="7") == ["answer"]
    assert failing(status=None) == ["completed"]
    assert failing(status="fail") == ["completed"]


def test_the_partial_reward_is_the_share_of_the_deeds_done_less_what_else_was_done():
    likes = {"spotify.SongLike": REFERENCE["tables"]["spotify.SongLike"]}
    mail = {"gmail.Email": {"removed": [{"id": 3}]}}

    def partial(tables, answer=None, status="success", reference=REFERENCE):
        return compare_effects(reference, {"tables": tables, "answer": answer, "status": status}).partial

    assert partial({}) == 0.0
    assert partial(likes) == 0.5
    assert partial({**likes, **mail}) == pytest.approx(1 / 3)
    assert partial(REFERENCE["tables"]) == 1.0
    assert partial(REFERENCE["tables"], status=None) == 1.0  # which is no success
    assert partial(REFERENCE["tables"], answer="7") == pytest.approx(2 / 3)
    asking = {"tables": {}, "answer": 7, "status": "success"}
    assert partial({}, answer="7", reference=asking) == 1.0
    assert partial(mail, answer="7", reference=asking) == 0.5
    assert score_partially(0, 0, 0) == 0.0


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("7", 7, True),
        ("7.0", "7", True),
        (1.234, "1.23", True),
        ('"Paris"', " paris ", True),
        (["b", "A"], ["a", "B"], True),
        (None, "null", True),
        ("7", "8", False),
        ("", None, False),
        ("a", ["a", "b"], False),
        (True, "true", False),  # the benchmark takes a truth value for a number
        (float("inf"), "inf", True),
        (10**400, 7, False),  # beyond what a float holds
    ],
)
def test_answers_are_compared_as_the_benchmark_does(one, other, alike):
    assert (normalise_answer(one) == normalise_answer(other)) is alike
