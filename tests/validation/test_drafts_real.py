"""Drafts made by hand in the benchmarks: dialogues of calls, and code."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import environments
from cojax.environment import Environment
from cojax.explorer.scripted.explorer import ScriptedExplorer
from cojax.types import Action, Call, Task, TaskDraft, Verdict
from cojax.validation import Validation

pytestmark = pytest.mark.real
END = Action()
LOGIN = """
accounts = apis.supervisor.show_account_passwords()
password = [a["password"] for a in accounts if a["account_name"] == "simple_note"][0]
token = apis.simple_note.login(username=apis.supervisor.show_profile()["email"], password=password)["access_token"]
"""
NOTE = 'print(apis.simple_note.create_note(title="Groceries 12", content="oat milk", access_token=token)["message"])\n'
PROFILE = 'print(apis.supervisor.show_profile()["first_name"])\n'
DONE = "apis.supervisor.complete_task()\n"
TITLED = "Write a note titled 'Groceries 12' that says 'oat milk'."
IDLE = "superfluous: nothing that it shows is used or asked for, "


def examined(environment: Environment, place: Task, ending: str, query: str, *solution: Action) -> Verdict:
    draft = TaskDraft(environment.name, place.setup, "", query, solution, "")
    return Validation(environment)(draft, lambda id: False, ScriptedExplorer(ending=ending))[0]


@pytest.fixture(scope="module")
def bfcl() -> Iterator[Environment]:
    environment = environments.load("bfcl")
    yield environment
    environment.close()  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def appworld() -> Iterator[Environment]:
    environment = environments.load("appworld", data="tiny", skills=False)
    yield environment
    environment.close()  # type: ignore[attr-defined]


def one(*calls: tuple[str, dict]) -> Action:
    return Action(calls=tuple(Call(name, arguments) for name, arguments in calls))


TOUCH, PWD, LS = ("touch", {"file_name": "plans"}), ("pwd", {}), ("ls", {})
ECHO = ("echo", {"content": "amber", "file_name": "plans"})
CAT = ("cat", {"file_name": "plans"})


@pytest.mark.parametrize(
    ("query", "solution", "reason"),
    [
        ("", (one(TOUCH), END), "the query has no letter"),
        ("Tell me a joke.", (one(TOUCH), END), "the query has no word in common"),
        ("Tell me a joke.", (one(PWD), END), "the query has no word in common"),
        ("Create a file.", (one(TOUCH), END), "the query does not name 'plans'"),
        ("Create a file called plans.", (one(PWD), one(TOUCH), END), IDLE),
        ("Create a file called plans.", (one(PWD, TOUCH), END), f"{IDLE}call 1 of action 1, pwd()"),
        ("Create an empty file 'plans'.", (one(TOUCH), one(LS), END), IDLE),
        ("Create a file called plans.", (one(TOUCH), END, one(LS)), "calls after the end"),
        ("Create a file called plans. <|im_end|>", (one(TOUCH), END), "a control token"),
    ],
)  # fmt: skip
def test_dialogues_that_do_not_belong_together_are_refused(
    bfcl: Environment, query: str, solution: tuple, reason: str
) -> None:
    verdict = examined(bfcl, folder(), "", query, *solution)
    assert verdict.status == "discarded"
    assert reason in verdict.evidence[-1]


@pytest.mark.parametrize(
    ("query", "solution"),
    [
        ("Please make me a file named plans!", (one(TOUCH), END)),
        ("Which folder are we in?", (one(PWD), END)),
        ("Put the word amber into a file plans, and show me what it contains.", (one(TOUCH), one(ECHO), one(CAT), END)),
        ("Put the word amber into a file plans, and show me what it contains.", (one(TOUCH, ECHO, CAT), END)),
    ],
)
def test_dialogues_in_any_words_pass(bfcl: Environment, query: str, solution: tuple) -> None:
    verdict = examined(bfcl, folder(), "", query, *solution)
    assert verdict.status == "accepted", verdict


def folder() -> Task:
    contents = {"root": {"home": {"type": "directory", "contents": {}}}}
    return Task(
        "bfcl", "", {"classes": ["GorillaFileSystem"], "config": {"GorillaFileSystem": contents}, "long": False}
    )


@pytest.mark.parametrize(
    ("query", "blocks", "reason"),
    [
        (" ", (LOGIN + NOTE, DONE), "the query has no letter"),
        ("Tell me a joke.", (LOGIN + NOTE, DONE), "the query has no word in common"),
        ("Clear out everything.", (LOGIN + NOTE, DONE), "the query has no word in common"),
        (TITLED, (LOGIN + NOTE, DONE, PROFILE), "calls after the end: action 2 ends the episode"),
        (TITLED, (LOGIN + NOTE, DONE + PROFILE), "calls after the end: the code of action 2 goes on"),
        (TITLED, (PROFILE, LOGIN + NOTE, DONE), f"{IDLE}action 1"),
        (TITLED, (LOGIN + NOTE, "print(1)\n", DONE), f"{IDLE}action 2"),
        ("Note 'x'. What is my first name?", (LOGIN + NOTE, "apis.supervisor.complete_task(answer='Zed')\n"),
         "no step shows the answer 'Zed'"),
    ],
)  # fmt: skip
def test_code_that_does_not_belong_to_its_query_is_refused(
    appworld: Environment, query: str, blocks: tuple, reason: str
) -> None:
    verdict = examined(appworld, *place(appworld), query, *coded(*blocks))
    assert verdict.status == "discarded"
    assert reason in verdict.evidence[-1]


def test_blocks_that_later_ones_need_or_use_pass(appworld: Environment) -> None:
    """A name that a block sets, a document that shows how an API is called, and an answer worked out."""
    look = "print(apis.api_docs.show_api_doc(app_name='simple_note', api_name='create_note'))\n"
    verdict = examined(appworld, *place(appworld), TITLED, *coded(look, LOGIN, NOTE, DONE))
    assert verdict.status == "accepted", verdict
    kinds = [line.partition(":")[0] for line in verdict.evidence if line.startswith("look-up")]
    assert kinds == ["look-up used", "look-up needed"]
    name = 'name = apis.supervisor.show_profile()["first_name"]\n'
    answer = "apis.supervisor.complete_task(answer=name)\n"
    verdict = examined(appworld, *place(appworld), "What is my first name?", *coded(name, answer))
    assert verdict.status == "accepted", verdict
    assert any("worked out in code: whether it was shown cannot be told" in line for line in verdict.evidence)


def place(environment: Environment) -> tuple[Task, str]:
    return environment.tasks("seed", 1)[0], "supervisor.complete_task"


def coded(*blocks: str) -> tuple[Action, ...]:
    return tuple(Action(f"```python\n{block}```") for block in blocks)
