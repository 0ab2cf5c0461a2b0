"""Queries that are worded alike: in the evaluation, and in the pool on the same setup."""

import dataclasses

import pytest

from cojax.pool import TaskPool
from cojax.types import Action, Call, Task
from cojax.validation import Exclusions
from cojax.validation.similarity import NearDuplicates, Nearest, paragraphs

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


def test_near_duplicates_are_on_one_setup_and_added_once() -> None:
    near_duplicates = NearDuplicates(0.95)
    first = task(BOOK, room="a")
    pool = [first]
    near_duplicates.update(TaskPool.of(pool))
    alike = task(f"{BOOK}?!", room="a")
    assert near_duplicates.why(alike).startswith(f"near duplicate of task {first.id}: similarity 0.9")
    assert near_duplicates.why(dataclasses.replace(alike, setup={"room": "b"})) == ""
    assert near_duplicates.why(task(MOVE, room="a")) == ""
    near_duplicates.update(TaskPool.of([*pool, task(MOVE, room="a")]))
    assert near_duplicates.why(task(f"{MOVE} ", room="a")).startswith("near duplicate")
    assert NearDuplicates(0.0).why(alike) == ""


def moved(query: str, *calls: tuple[str, str]) -> Task:
    made = (Action(calls=(Call("move", {"file": file, "folder": folder}),)) for file, folder in calls)
    return Task("office", query, {}, (*made, Action(calls=(Call("finish"),))))


def test_word_order_and_argument_roles_make_another_task() -> None:
    near_duplicates = NearDuplicates(0.8)
    first = moved("move report to taxes", ("report", "taxes"))
    near_duplicates.add(first)
    # The cosine of the two is 1.00.
    assert near_duplicates.why(moved("move taxes to report", ("taxes", "report"))) == ""
    assert near_duplicates.why(moved("move taxes to report", ("report", "taxes"))).startswith(
        f"near duplicate of task {first.id}"
    )
    assert near_duplicates.why(moved("Move report to taxes!", ("report", "taxes"))).startswith("near duplicate")
    # The same words in the same order are no other task for another way of doing it.
    assert near_duplicates.why(moved("Move report to taxes!", ("report", "taxes"), ("report", "drafts"))).startswith(
        "near"
    )


def test_one_swap_in_a_long_query_makes_another_task() -> None:
    near_duplicates = NearDuplicates(0.95)
    names = [f"file{n}" for n in range(40)]
    pairs = list(zip(names[::2], names[1::2], strict=True))

    def long(pairs: list[tuple[str, str]]) -> Task:
        return moved(", then ".join(f"please move {file} to {folder}" for file, folder in pairs), *pairs)

    near_duplicates.add(long(pairs))
    swapped = [pairs[0][::-1], *pairs[1:]]
    assert near_duplicates.why(long(swapped)) == ""
    # Two steps in another order come to the same calls.
    assert near_duplicates.why(long([pairs[1], pairs[0], *pairs[2:]])).startswith("near duplicate")


def test_the_nearest_other_task_does_not_hide_a_duplicate_behind_it() -> None:
    near_duplicates = NearDuplicates(0.7)
    near_duplicates.add(moved("move taxes to report", ("taxes", "report")))
    near_duplicates.add(moved("please move report to taxes", ("report", "taxes")))
    assert near_duplicates.why(moved("move report to taxes", ("report", "taxes"))).startswith("near duplicate")


def test_no_text_breaks_the_comparison() -> None:
    near_duplicates = NearDuplicates(0.9)
    near_duplicates.add(moved("move report to taxes", ("report", "taxes")))
    for query in ("move \ud800 to taxes", "", "\x00", "move report to taxes " * 50_000):
        assert near_duplicates.why(moved(query, ("map", "taxes"))) == ""
