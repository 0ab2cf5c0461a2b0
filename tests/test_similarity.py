"""Queries that are worded alike: in the evaluation, and in the pool on the same setup."""

import dataclasses
import functools
import random

import numpy as np
import pytest
from sklearn.feature_extraction.text import HashingVectorizer

from cojax.pool import TaskPool
from cojax.similarity import NGRAM_LENGTHS, NearDuplicates, Wordings, make_nearest, split_paragraphs
from cojax.types import Action, Call, Task
from cojax.validation import Exclusions

BOOK = "Could you book a table for four at the Green Door on Friday at seven, and tell Nadia about it?"
MOVE = "Move the quarterly figures from the drafts into the archive and delete the old summary."
TALK = f"Good morning!\n\n[next turn]\n\n{BOOK}\n\n[next turn]\n\n{MOVE}"


def task(query: str, **setup: str) -> Task:
    return Task("office", query, setup, (Action(calls=(Call("act", {"what": query}),)),))


def test_the_nearest_text_is_found_by_its_wording() -> None:
    find = make_nearest([BOOK, MOVE])
    assert find(BOOK) == (pytest.approx(1.0), BOOK)
    cosine, found = find("could you please BOOK a table for four, at the Green Door, on Friday at seven")
    assert found == BOOK
    assert 0.7 < cosine < 1.0
    assert find("What is the weather like in Oslo?")[0] < 0.3
    assert make_nearest([])("anything") == (0.0, "")
    assert find("") == (0.0, BOOK)


def test_a_turn_of_a_dialogue_is_compared_by_itself() -> None:
    assert len(split_paragraphs(TALK)) == 3
    assert split_paragraphs(BOOK) == [BOOK.casefold()]
    assert make_nearest([TALK])(f"Something else first.\n\n[next turn]\n\n{MOVE}")[0] == pytest.approx(1.0)
    assert make_nearest([MOVE])(TALK)[0] == pytest.approx(1.0)


def test_evaluation_tasks_are_recognised_on_any_setup_and_never_quoted() -> None:
    held_out = Exclusions.of([task(BOOK, room="a"), task(TALK, room="b")], similarity=0.7)
    why = held_out.find_rule(task(BOOK.replace("Could you", "Can you please"), room="c"))
    assert why.startswith("an evaluation task is worded alike: similarity 0.")
    assert "Green Door" not in why
    assert held_out.find_rule(task("Water the plants on the second floor", room="a")) == ""
    assert Exclusions.of([task(BOOK)]).find_rule(task(BOOK.replace("Friday", "Monday"))) == ""


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
    assert near_duplicates.find_duplicate(alike).startswith(f"near duplicate of task {first.id}: similarity 0.9")
    assert near_duplicates.find_duplicate(dataclasses.replace(alike, setup={"room": "b"})) == ""
    assert near_duplicates.find_duplicate(task(MOVE, room="a")) == ""
    near_duplicates.update(TaskPool.of([*pool, task(MOVE, room="a")]))
    assert near_duplicates.find_duplicate(task(f"{MOVE} ", room="a")).startswith("near duplicate")
    assert NearDuplicates(0.0).find_duplicate(alike) == ""


def moved(query: str, *calls: tuple[str, str]) -> Task:
    made = (Action(calls=(Call("move", {"file": file, "folder": folder}),)) for file, folder in calls)
    return Task("office", query, {}, (*made, Action(calls=(Call("finish"),))))


def test_word_order_and_argument_roles_make_another_task() -> None:
    near_duplicates = NearDuplicates(0.8)
    first = moved("move report to taxes", ("report", "taxes"))
    near_duplicates.add(first)
    # The cosine of the two is 1.00.
    assert near_duplicates.find_duplicate(moved("move taxes to report", ("taxes", "report"))) == ""
    assert near_duplicates.find_duplicate(moved("move taxes to report", ("report", "taxes"))).startswith(
        f"near duplicate of task {first.id}"
    )
    assert near_duplicates.find_duplicate(moved("Move report to taxes!", ("report", "taxes"))).startswith(
        "near duplicate"
    )
    # The same words in the same order are no other task for another way of doing it.
    assert near_duplicates.find_duplicate(
        moved("Move report to taxes!", ("report", "taxes"), ("report", "drafts"))
    ).startswith("near")


def test_one_swap_in_a_long_query_makes_another_task() -> None:
    near_duplicates = NearDuplicates(0.95)
    names = [f"file{n}" for n in range(40)]
    pairs = list(zip(names[::2], names[1::2], strict=True))

    def long(pairs: list[tuple[str, str]]) -> Task:
        return moved(", then ".join(f"please move {file} to {folder}" for file, folder in pairs), *pairs)

    near_duplicates.add(long(pairs))
    swapped = [pairs[0][::-1], *pairs[1:]]
    assert near_duplicates.find_duplicate(long(swapped)) == ""
    # Two steps in another order come to the same calls.
    assert near_duplicates.find_duplicate(long([pairs[1], pairs[0], *pairs[2:]])).startswith("near duplicate")


def test_the_nearest_other_task_does_not_hide_a_duplicate_behind_it() -> None:
    near_duplicates = NearDuplicates(0.7)
    near_duplicates.add(moved("move taxes to report", ("taxes", "report")))
    near_duplicates.add(moved("please move report to taxes", ("report", "taxes")))
    assert near_duplicates.find_duplicate(moved("move report to taxes", ("report", "taxes"))).startswith(
        "near duplicate"
    )


def test_no_text_breaks_the_comparison() -> None:
    near_duplicates = NearDuplicates(0.9)
    near_duplicates.add(moved("move report to taxes", ("report", "taxes")))
    for query in ("move \ud800 to taxes", "", "\x00", "move report to taxes " * 50_000):
        assert near_duplicates.find_duplicate(moved(query, ("map", "taxes"))) == ""


FILES = [f"{kind}{number}" for kind in ("report", "budget", "notes", "plan") for number in range(40)]


def request(rng: random.Random) -> str:
    steps = [f"{rng.choice(('move', 'copy', 'share'))} {rng.choice(FILES)} to {rng.choice(FILES)}" for _ in range(3)]
    return f"please {', then '.join(steps)}."


@functools.cache
def requests() -> tuple[list[str], np.ndarray]:
    """Texts, and the cosines of any two, by comparing with each."""
    rng, texts = random.Random(1), list[str]()
    for number in range(150):
        # Every fifth request is an earlier one with other words around it.
        texts.append(request(rng) if number % 5 else f"thanks, {rng.choice(texts or ['hello'])}")
    vectorizer = HashingVectorizer(analyzer="char_wb", ngram_range=NGRAM_LENGTHS, alternate_sign=False, lowercase=False)
    rows = vectorizer.transform(texts)
    return texts, (rows @ rows.T).toarray()


@pytest.mark.parametrize("threshold", [0.2, 0.6, 0.8, 0.9, 0.97])
def test_it_finds_what_comparing_with_each_text_finds(threshold: float) -> None:
    texts, cosines = requests()
    wordings, found = Wordings(), 0
    for number, text in enumerate(texts):
        expected = {place: cosines[number, place] for place in range(number) if cosines[number, place] > threshold}
        alike = wordings.find_above(text, threshold)
        assert {place: cosine for cosine, place in alike} == pytest.approx(expected, abs=1e-5)
        assert alike == sorted(alike, key=lambda one: (-one[0], one[1]))
        found += len(alike)
        wordings.add(text)
    assert found > 0


def test_texts_without_an_n_gram_are_like_none() -> None:
    wordings = Wordings()
    assert wordings.find_above("move", 0.5) == []
    for text in ("", " ", "move report1 to plan2"):
        wordings.add(text)
    assert wordings.find_above("", 0.0) == []
    assert [place for _, place in wordings.find_above("move report1 to plan2", 0.9)] == [2]


def test_only_texts_that_may_be_above_the_threshold_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, wordings = random.Random(2), Wordings()
    for _ in range(500):
        wordings.add(request(rng))
    compared, cosines = [], wordings._compute_cosines

    def counted(numbers, weights, candidates):
        compared.append(len(candidates))
        return cosines(numbers, weights, candidates)

    monkeypatch.setattr(wordings, "_compute_cosines", counted)
    for _ in range(20):
        wordings.find_above(request(rng), 0.9)
    assert sum(compared) < 0.2 * 20 * 500
