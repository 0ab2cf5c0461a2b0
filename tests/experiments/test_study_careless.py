import dataclasses
import functools
import random
from collections.abc import Iterator, Sequence

import pytest
from records import DESK, call

import environments
from cojax.explorer import Exploration
from cojax.explorer.scripted.explorer import ScriptedExplorer
from cojax.types import Action, Call, TaskDraft
from cojax.validation import Validation
from experiments.study.careless import CarelessExplorer, confuse_name

ENVIRONMENT = environments.load("desk")
CAREFUL = ScriptedExplorer(neighbours=ENVIRONMENT.neighbours)
SEND = (call("contacts_find", person="ana"), call("mail_send", address="box11", text="amber"), call("finish"))
DRAFT = TaskDraft("desk", DESK, "run 0", "mail amber to ana, not to anastasia", SEND, "", (0,))


def careless(mistakes: float) -> CarelessExplorer:
    return CarelessExplorer(neighbours=ENVIRONMENT.neighbours, mistakes=mistakes)


@functools.cache
def explored() -> list[Exploration]:
    """Both explore alike."""
    assert CarelessExplorer.explore is ScriptedExplorer.explore
    places = (dataclasses.replace(place, query="", solution=()) for place in ENVIRONMENT.tasks("seed", 40))
    return [CAREFUL.explore(ENVIRONMENT, place, None, (seed,)) for seed, place in enumerate(places)]


def drafts(explorer: ScriptedExplorer, count: int = 40) -> Iterator[TaskDraft]:
    for exploration in explored()[:count]:
        yield from explorer.abstract(exploration, ENVIRONMENT, 2)


def test_one_name_is_taken_for_another_in_the_query_and_the_solution() -> None:
    wrong = confuse_name(DRAFT, [("file", "report"), ("person", "ben"), ("lines", 3)], random.Random(0))
    assert wrong.query in ("mail report to ana, not to anastasia", "mail amber to report, not to anastasia")
    right = "amber" if wrong.query.startswith("mail report") else "ana"
    expected = [
        {name: "report" if value == right else value for name, value in action.calls[0].arguments.items()}
        for action in SEND
    ]
    assert [dict(action.calls[0].arguments) for action in wrong.solution] == expected
    assert (wrong.setup, wrong.runs) == (DRAFT.setup, DRAFT.runs)


@pytest.mark.parametrize(
    "seen",
    [[], [("file", "amber")], [("size", 4)], [("file", "")]],
    ids=["nothing seen", "in the solution already", "no name", "empty"],
)
def test_where_there_is_nothing_to_mistake_it_for_a_draft_stays(seen: list) -> None:
    assert confuse_name(DRAFT, seen, random.Random(0)) == DRAFT


def test_a_name_is_mistaken_for_one_of_another_parameter() -> None:
    draft = dataclasses.replace(DRAFT, query="mail something to ana")
    assert confuse_name(draft, [("person", "ben")], random.Random(0)) == draft
    assert (
        confuse_name(draft, [("person", "ben"), ("file", "report")], random.Random(0)).query
        == "mail something to report"
    )


def test_an_empty_argument_is_no_name() -> None:
    draft = dataclasses.replace(DRAFT, query="mail (…), now", solution=(call("mail", text=""),))
    assert confuse_name(draft, [("file", "report")], random.Random(0)) == draft


def test_code_and_its_calls_agree() -> None:
    draft = dataclasses.replace(DRAFT, solution=(Action("mail('amber')", (Call("mail", {"text": "amber"}),)),))
    wrong = confuse_name(draft, [("file", "report")], random.Random(0)).solution
    assert wrong == (Action("mail('report')", (Call("mail", {"text": "report"}),)),)


def test_hostile_names_are_taken_literally() -> None:
    draft = dataclasses.replace(DRAFT, query=r"mail a.b(*) to \1", solution=(call("mail", text="a.b(*)"),))
    wrong = confuse_name(draft, [("file", r"\g<0>\n")], random.Random(0))
    assert (wrong.query, wrong.solution) == (r"mail \g<0>\n to \1", (call("mail", text=r"\g<0>\n"),))
    coded = dataclasses.replace(DRAFT, solution=(Action(text="send('amber')"),))
    assert confuse_name(coded, [("file", "report")], random.Random(0)) == coded


def test_without_mistakes_it_is_the_careful_one() -> None:
    assert list(drafts(careless(0.0), 5)) == list(drafts(CAREFUL, 5))


def test_the_seed_decides() -> None:
    assert list(drafts(careless(0.5), 5)) == list(drafts(careless(0.5), 5))


def test_mistakes_come_at_their_rate_and_execution_refuses_most_of_them() -> None:
    careful, mistaken = list(drafts(CAREFUL)), list(drafts(careless(0.5)))
    differ = [new for old, new in zip(careful, mistaken, strict=True) if old != new]
    assert 0.3 < len(differ) / len(careful) < 0.6
    assert _accepted(differ) < len(differ) / 2
    assert _accepted(careful) > 0.8 * len(careful)


def _accepted(drafts: Sequence[TaskDraft]) -> int:
    examine = Validation(ENVIRONMENT)
    return sum(examine(draft, lambda id: False, CAREFUL)[0].status == "accepted" for draft in drafts)


@pytest.mark.parametrize("mistakes", [-0.1, 1.1, float("nan")])
def test_a_rate_outside_0_to_1_is_refused(mistakes: float) -> None:
    with pytest.raises(ValueError, match="expected a probability"):
        careless(mistakes)
