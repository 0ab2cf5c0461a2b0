"""Queries that are worded alike: in the evaluation, and in the pool on the same setup."""

import dataclasses

import pytest

from cojax.types import Action, Call, Task
from cojax.validation import Exclusions
from cojax.validation.similarity import Kin, Nearest, paragraphs

BOOK = "Could you book a table for four at the Green Door on Friday at seven, and tell Nadia about it?"
MOVE = "Move the quarterly figures from the drafts into the archive and delete the old summary."
TALK = f"Good morning!\n\n[next turn]\n\n{BOOK}\n\n[next turn]\n\n{MOVE}"


def task(query: str, **setup: str) -> Task:
    return Task("office", query, setup, (Action(calls=(Call("act", {"what": query}),)),))


def test_the_nearest_text_is_found_by_its_wording() -> None:
    nearest = Nearest([BOOK, MOVE])
    assert nearest.to(BOOK) == (pytest.approx(1.0), BOOK)
    cosine, found = nearest.to("could you please BOOK a table for four, at the Green Door, on Friday at seven")
    assert found == BOOK
    assert 0.7 < cosine < 1.0
    assert nearest.to("What is the weather like in Oslo?")[0] < 0.3
    assert Nearest([]).to("anything") == (0.0, "")
    assert nearest.to("") == (0.0, BOOK)


def test_a_turn_of_a_dialogue_is_compared_by_itself() -> None:
    assert len(paragraphs(TALK)) == 3
    assert paragraphs(BOOK) == [BOOK.casefold()]
    assert Nearest([TALK]).to(f"Something else first.\n\n[next turn]\n\n{MOVE}")[0] == pytest.approx(1.0)
    assert Nearest([MOVE]).to(TALK)[0] == pytest.approx(1.0)


def test_evaluation_tasks_are_recognised_on_any_setup_and_never_quoted() -> None:
    held_out = Exclusions.of([task(BOOK, room="a"), task(TALK, room="b")], similarity=0.7)
    why = held_out.why(task(BOOK.replace("Could you", "Can you please"), room="c"))
    assert why.startswith("an evaluation task is worded alike: similarity 0.")
    assert "Green Door" not in why
    assert held_out.why(task("Water the plants on the second floor", room="a")) == ""
    assert Exclusions.of([task(BOOK)]).why(task(BOOK.replace("Friday", "Monday"))) == ""


@pytest.mark.parametrize("similarity", [-0.1, 1.1, float("nan")])
def test_a_similarity_is_a_cosine(similarity: float) -> None:
    with pytest.raises(ValueError, match=r"expected a cosine in \[0, 1\]"):
        Exclusions.of([], similarity)


def test_kin_are_on_one_setup_and_learned_once() -> None:
    kin = Kin(0.95)
    first = task(BOOK, room="a")
    pool = [first]
    kin.update(pool)
    alike = task(f"{BOOK}?!", room="a")
    assert kin.why(alike).startswith(f"near duplicate of task {first.id}: similarity 0.9")
    assert kin.why(dataclasses.replace(alike, setup={"room": "b"})) == ""
    assert kin.why(task(MOVE, room="a")) == ""
    kin.update([*pool, task(MOVE, room="a")])
    assert kin.why(task(f"{MOVE} ", room="a")).startswith("near duplicate")
    assert Kin(0.0).why(alike) == ""
