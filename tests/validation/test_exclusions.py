"""Evaluation tasks are recognised in any spelling, and few other tasks are mistaken for one."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import environments
from cojax.explorer.scripted.explorer import ScriptedExplorer
from cojax.synthesis import sample_setups
from cojax.types import Action, Call, Task
from cojax.validation import Exclusions

SHORT = "Water the plants"
REQUEST = "Move the report to the taxes folder"  # shorter than a paragraph that is compared by itself
LONG = "Could you book a table for four at the Green Door on Friday at seven, and tell Nadia about it?"
TURN = "Then move the quarterly figures from the drafts into the archive for me."
DIALOGUE = f"{LONG}\n\n[next turn]\n\n{TURN}"
HELD_OUT = [SHORT, REQUEST, LONG, DIALOGUE]
SAME = "an evaluation task has the same query"
HELD = "it holds the query of an evaluation task word for word"

INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff\u00ad\u034f\ufe0f\u2063\u3164"
PUNCTUATION = ["!", " - ", ",", "…", " / ", "'", ".", "\n", "\r\n\t", "\n\n", "  ", "\u2028", "*", "_"]


def task(query: str, **setup: str) -> Task:
    return Task("office", query, setup, (Action(calls=(Call("act", {"what": query}),)),))


def why(query: str, held_out: list[str] = HELD_OUT, **settings: float) -> str:
    return Exclusions.of([task(one, room="a") for one in held_out], **settings).find_rule(task(query, room="b"))  # type: ignore[arg-type]


def wide(text: str) -> str:
    """Full-width letters."""
    return "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text)


def crossed(text: str) -> str:
    """Letters with a stroke through them."""
    return "".join(f"{c}\u0336" for c in text)


@st.composite
def dressed(draw: st.DrawFn, query: str) -> str:
    """The query with other case, width, accents, gaps, punctuation and characters that show nothing."""
    said = draw(st.sampled_from([str, str.upper, str.lower, str.title, wide, crossed]))
    parts = []
    for word in said(query).split():
        for letter in draw(st.sampled_from(INVISIBLE)), "":
            at = draw(st.integers(0, len(word)))
            word = word[:at] + letter + word[at:]
        parts.append(word + draw(st.sampled_from(["", *PUNCTUATION])))
    text = " ".join(parts)
    return draw(st.sampled_from(["", "Please ", "please, ", "Hey! ", "\n\n", "¡"])) + text


@pytest.mark.parametrize("query", HELD_OUT)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_a_query_in_another_spelling_is_the_same_query(query: str, data: st.DataObject) -> None:
    assert why(data.draw(dressed(query))) == SAME


@pytest.mark.parametrize("query", [REQUEST, LONG, DIALOGUE])
@given(data=st.data(), before=st.text(max_size=30), after=st.text(max_size=30))
@settings(max_examples=40, deadline=None)
def test_a_query_inside_a_longer_one_is_found(query: str, data: st.DataObject, before: str, after: str) -> None:
    assert why(f"{before} . {data.draw(dressed(query))} . {after}") in (SAME, HELD)


def test_a_query_as_a_turn_of_a_dialogue_is_found() -> None:
    for query in HELD_OUT:
        assert why(f"Good morning to you.\n\n[next turn]\n\n{query}!\n\n[next turn]\n\nGood night.") in (SAME, HELD)
    # A turn of an evaluated dialogue is found too, where it says enough to be one.
    assert why(f"First feed the cat. {TURN} And that is all.") == HELD


@pytest.mark.parametrize(
    "query",
    [
        "Water the plants on the second floor",
        "Water the flowers",
        "Move the report to the taxes folders of last year",
        "Remove the report to the taxes folder",
        "Move the report to the drafts folder",
        "Please",
        "!!!",
        "Book a table for five at the Green Door on Friday at seven, and tell Nadia about it.",
    ],
)
def test_a_query_for_something_else_is_another_query(query: str) -> None:
    assert why(query) == ""


def test_a_query_without_letters_is_like_none_but_itself() -> None:
    assert why("???", ["!!!"]) == ""
    assert why("!!!", ["!!!"]) == SAME
    assert why("Please", ["thanks!"]) == ""
    assert why("", ["!!!", ""]) == SAME


def test_the_fewest_words_of_a_distinctive_query_are_a_setting() -> None:
    inside = f"First feed the cat. {REQUEST}. Then go home."
    assert why(inside, min_words=7) == HELD
    assert why(inside, min_words=8) == ""
    assert why(inside, min_words=0) == ""
    assert why(REQUEST.upper(), min_words=0) == SAME
    with pytest.raises(ValueError, match="words is -1; expected"):
        why(inside, min_words=-1)


def test_of_the_desk_nothing_is_refused_that_was_not() -> None:
    """Its grammar joins any two tasks with "then": there only the same query counts, as it did."""
    desk = environments.load("desk")
    held_out = desk.tasks("eval", 300)
    same = {one.query for one in held_out}
    exclusions = Exclusions.of(held_out, min_words=0)
    explorer = ScriptedExplorer(neighbours=desk.neighbours, runs=2)
    seen = 0
    for place in sample_setups(desk, "seed", 35, (1,)):
        found = explorer.explore(desk, place, None, (1,), desk.popularity())
        for draft in explorer.abstract(found, desk, 4):
            seen += 1
            one = Task("desk", draft.query, draft.setup, draft.solution)
            assert bool(exclusions.find_rule(one)) == (draft.query in same)
    assert seen > 100


def test_the_same_actions_on_the_same_setup_are_refused_as_before() -> None:
    one = task(LONG, room="a")
    exclusions = Exclusions.of([one])
    assert exclusions.find_rule(dataclasses.replace(one, query="Reserve it")) == (
        "an evaluation task has the same setup and actions"
    )
    assert exclusions.find_rule(dataclasses.replace(one, query="Reserve it", setup={"room": "b"})) == ""
