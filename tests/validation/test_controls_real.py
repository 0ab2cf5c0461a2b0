"""Negative controls in the benchmarks: code that works and ends in one block, dialogues of several turns."""

import pytest

import environments
from cojax.explorer.scripted.explorer import ScriptedExplorer
from cojax.types import Action, Call, Task, TaskDraft, Verdict
from cojax.validation import Validation

pytestmark = pytest.mark.real
END = Action()
NOTE = """
accounts = apis.supervisor.show_account_passwords()
password = [a["password"] for a in accounts if a["account_name"] == "simple_note"][0]
token = apis.simple_note.login(username=apis.supervisor.show_profile()["email"], password=password)["access_token"]
apis.simple_note.create_note(title="Groceries 12", content="oat milk", access_token=token)
"""
LOOK = 'name = apis.supervisor.show_profile()["first_name"]\n'
DONE = "apis.supervisor.complete_task()\n"


def examined(environment, place: Task, ending: str, query: str, *solution: Action) -> Verdict:
    draft = TaskDraft(environment.name, place.setup, "", query, solution, "")
    verdict, _ = Validation(environment)(draft, lambda id: False, ScriptedExplorer(ending=ending))
    return verdict


def test_one_block_of_code_may_do_all_the_work() -> None:
    world = environments.load("appworld", data="tiny", skills=False)
    (place,) = world.tasks("seed", 1)

    def code(*blocks: str, query: str = "Note the groceries.") -> Verdict:
        actions = (Action(f"```python\n{block}```") for block in blocks)
        return examined(world, place, "supervisor.complete_task", query, *actions)

    try:
        whole = code(NOTE + DONE)
        assert whole.status == "accepted", whole
        assert whole.evidence[-1].startswith("negative control: fails without action 1, ```python")
        assert code(LOOK, NOTE + DONE).evidence[-1].startswith("superfluous: nothing that it shows is used")
        assert code(LOOK + DONE).evidence[-1].startswith("no effect")
        answer = "apis.supervisor.complete_task(answer=name)\n"
        assert code(LOOK + answer, query="What is my first name?").status == "accepted"
    finally:
        world.close()


def test_doing_nothing_goes_through_all_turns_of_a_dialogue() -> None:
    bfcl = environments.load("bfcl")
    setup = {
        "classes": ["GorillaFileSystem"],
        "config": {"GorillaFileSystem": {"root": {"home": {"type": "directory", "contents": {}}}}},
        "long": False,
    }
    place, query = Task("bfcl", "", setup), "Make a file called plans.\n\n[next turn]\n\nNow one called notes."
    make = [Action(calls=(Call("touch", {"file_name": name}),)) for name in ("plans", "notes")]
    verdict = examined(bfcl, place, "", query, make[0], END, make[1], END)
    assert verdict.status == "accepted", verdict
    # Handing back to the user between the two is one of the three.
    assert sum(line.startswith("negative control: fails") for line in verdict.evidence) == 3
    assert examined(bfcl, place, "", query, END, END).evidence[-1].startswith("no effect")
