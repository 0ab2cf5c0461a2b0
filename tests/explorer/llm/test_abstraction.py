"""The rules that a model's draft must keep, turn by turn."""

import pytest
from evolving import ACTING, evolve
from models import model

from cojax.explorer.llm.abstraction import Draft, make_draft
from cojax.explorer.scripted.explorer import Ending
from cojax.types import Action, Call, Message, Observation, Task, TaskDraft, Triplet

PLACE = Task("bfcl", "", {"config": {}})
NEXT = "\n\n[next turn]\n\n"


def did(tool: str, ok: bool = True, told: str = "ok") -> Triplet:
    return Triplet(Action(calls=(Call(tool, {}),)), Observation((Message("tool", told),), ok=ok), 0)


RECORD = dict(enumerate([did("cd"), did("ls"), did("rm", ok=False), did("mv"), did("cp")], start=1))


def draft(*turns: list[int], shortest: int = 3) -> TaskDraft:
    (first, *later) = turns
    said = [{"query": f"request {place}", "steps": steps} for place, steps in enumerate(later)]
    proposed = Draft.model_validate({"query": "the first request", "steps": first, "later": said})
    return make_draft(proposed, RECORD, PLACE, Ending(""), NEXT, shortest)


def test_a_dialogue_with_an_action_in_every_turn_stands() -> None:
    made = draft([1, 2], [4], [5])
    assert made.objections == ()
    assert [len(action.calls) for action in made.solution] == [1, 1, 0, 1, 0, 1, 0]


@pytest.mark.parametrize(
    ("turns", "turn"),
    [
        (([1, 2, 4], []), 2), (([], [1, 2, 4]), 1), (([1, 2], [], [4, 5]), 2), (([1, 2, 4], [99]), 2),
        (([1, 2, 4], [3]), 2),
    ],
)  # fmt: skip
def test_every_user_turn_needs_an_action_that_worked(turns: tuple[list[int], ...], turn: int) -> None:
    against = draft(*turns).objections
    assert f"user turn {turn} of {len(turns)} has no action that worked" in against


def test_handing_back_to_the_user_is_no_action() -> None:
    assert draft([1], [2]).objections == ("it has 2 actions; at least 3 are required",)
    assert draft([1, 2]).objections == ("it has 2 actions; at least 3 are required",)
    assert draft([1], [2], shortest=2).objections == ()
    # A call that ends the episode is one.
    proposed = Draft(query="q", steps=[1, 2])
    assert make_draft(proposed, RECORD, PLACE, Ending("finish"), "", 3).objections == ()


def test_an_answer_in_a_call_is_shown_in_every_part() -> None:
    record = {1: did("ls", told='["a.txt", "b.txt"]'), 2: did("wc", told="7 lines")}

    rules = Ending("finish", "answer"), "", 3

    def given(answer: object) -> list[str]:
        end = Triplet(Action(calls=(Call("finish", {"answer": answer}),)), Observation(done=True), 0)
        made = make_draft(Draft(query="q", steps=[1, 2, 3]), {**record, 3: end}, PLACE, *rules)
        return list(made.objections)

    assert given(7) == given("a.txt") == given(["a.txt", {"n": "b.txt"}]) == []
    assert given(["a.txt", "c.txt"]) == ["no step shows the answer 'c.txt'"]
    assert given({"n": ["8"]}) == ["no step shows the answer '8'"]


def test_an_answer_in_code_is_looked_through() -> None:
    def code(text: str, told: str = "", done: bool = False) -> Triplet:
        return Triplet(Action(f"```python\n{text}\n```"), Observation((Message("user", told),), done=done), 0)

    look = code("r = apis.files.list()\nprint(len(r))", "7")
    rules = Ending("supervisor.complete_task", "answer"), "", 3
    made = [
        make_draft(
            Draft(query="how many?", steps=[1, 2, 3]),
            {1: look, 2: code("n = len(r)"), 3: code(f"{x}\napis.supervisor.complete_task(answer=n)", done=True)},
            PLACE, *rules,
        ).objections
        for x in ("", "n = 7", "n = '8'")
    ]  # fmt: skip
    assert made == [(), (), ("no step shows the answer '8'",)]


def test_an_answer_of_the_reply_is_shown_by_what_does_not_print_it_itself() -> None:
    rules = Ending("supervisor.complete_task", "answer"), "", 3

    def objections(look: str, answer: str) -> tuple[str, ...]:
        record = {
            place: Triplet(Action(f"```python\n{code}\n```"), Observation((Message("user", told),)), 0)
            for place, (code, told) in enumerate([("print(apis.a.b())", "7"), (look, "42")], start=1)
        }
        proposed = Draft(query="how many?", steps=[1, 2], answer=answer)
        return make_draft(proposed, record, PLACE, *rules).objections

    assert objections('print("42")', "42") == ("no step shows the answer '42'",)
    assert objections('print("42")', "7") == objections("print(apis.c.d())", "42") == ()


def test_the_prompt_speaks_of_an_answer_only_where_there_is_a_place_for_one() -> None:
    def asked(**acting: object) -> str:
        (body,) = evolve(model([]), acting={**ACTING, **acting}).bodies("abstract")
        return "".join(message["content"] for message in body["messages"])

    assert "put it in `answer`" in asked()
    for silent in (asked(ending=""), asked(ending="", separator=NEXT)):
        assert "`answer`" not in silent
        assert '"answer"' not in silent
