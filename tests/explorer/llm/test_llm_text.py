"""Where actions are text: a code-acting environment, over real HTTP."""

from typing import Any

import pytest
from chat_server import Answer, ChatServer, says, serving
from ledger import Ledger
from models import REFLECTION, stage, told, turn

from cojax.environment import play
from cojax.environment.replay import follow
from cojax.explorer.llm.chat_client import ChatClient
from cojax.explorer.llm.explorer import LLMExplorer
from cojax.settings.tree import LLMSettings
from cojax.synthesis import EVOLUTIONS, EvolutionInputs, Synthesis, synthesize
from cojax.types import Action, Signal, Task
from cojax.validation import Attempts, Validation

BOOK = Ledger()
PARENT = Task(
    "ledger", "set the rent to 750", {"book": {"rent": "700", "page": "3"}}, (Action("set rent 750"), Action("done"))
)
EPISODE = play(BOOK, PARENT, follow((Action("set rent 70"), Action("done"))), max_turns=2, episode="1-t-0")
SIGNAL = Signal("boundary", PARENT.id, "1-t-0", "1 of 2 solved")
TOUR = ("get rent", "burn it", "set deposit 700", "set page 4", "done")
DEPOSIT = {"query": "Note a deposit as high as the rent, and turn to page 4", "steps": [1, 3, 4, 5]}


def evolved(drafts: list[dict[str, Any]], explore: Any = None, shortest: int = 3) -> tuple[Synthesis, ChatServer]:
    def script(body: dict[str, Any], server: ChatServer) -> Answer:
        match stage(body):
            case "reflect":
                return says(REFLECTION)
            case "abstract":
                return says({"drafts": drafts})
            case "explore":
                return explore(body) if explore else Answer(TOUR[turn(body)])
        solution = [TOUR[step - 1] for step in DEPOSIT["steps"]]
        return Answer(solution[turn(body)] if DEPOSIT["query"] in told(body) else "done")

    with serving(script) as server:
        chat_model = ChatClient(LLMSettings(server.url, "m", timeout=5.0, max_tokens=200))
        explorer = LLMExplorer(chat_model, runs=1, steps=5, ending="", shortest=shortest, attempt_turns=6)
        inputs = EvolutionInputs(BOOK, explorer, [SIGNAL], ["1-t-0"], lambda id: EPISODE, None, 4, (0, 1))
        validate = Validation(BOOK, attempts=Attempts(LLMExplorer.attempters, 1, 6), safe=True)
        result = synthesize(
            EVOLUTIONS["feedback"](inputs), BOOK, explorer, validate, lambda id: False,
            budget=4, per_context=4, seed=(0, 1), step=2,
        )  # fmt: skip
        return result, server


@pytest.fixture(autouse=True)
def keyless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def test_text_is_the_action_and_the_task_is_made_of_what_worked() -> None:
    result, server = evolved([DEPOSIT])
    (task,) = result.tasks
    assert task.solution == (Action("get rent"), Action("set deposit 700"), Action("set page 4"), Action("done"))
    assert result.expeditions[0]["runs"] == [{"run": 0, "actions": 5, "ok": 4}]
    explored = [body for body in server.bodies if stage(body) == "explore"]
    assert "You act by writing" in explored[0]["messages"][0]["content"]
    assert "set NAME VALUE" in told(explored[0])
    assert "response_format" not in explored[0]
    assert server.headers[0]["authorization"] == "Bearer none"
    abstracted = next(body for body in server.bodies if stage(body) == "abstract")
    assert "burn it" not in told(abstracted)


@pytest.mark.parametrize(
    ("draft", "reason"),
    [
        ({"query": "burn it down", "steps": [2, 3, 5]}, "action 2 did not succeed"),
        ({"query": "look, then set both", "steps": [1, 3, 4]}, "run fails: action 4, : cannot run ''"),
        # Handing back is no action.
        ({"query": "set both", "steps": [3, 4]}, "it has 2 actions"),
        ({"query": "set the page to 4", "steps": [1, 4, 5]}, "superfluous: nothing that it shows is used"),
        ({"query": "set page to 4, deposit to 700", "steps": [3, 4, 5]}, "0 of 1 attempts on the query alone"),
        ({"query": "look at the rent", "steps": [1, 5]}, "it has 2 actions"),
    ],
)
def test_drafts_that_do_not_hold_are_refused(draft: dict[str, Any], reason: str) -> None:
    result, _ = evolved([draft])
    assert result.tasks == ()
    assert any(reason in line for line in result.drafts[0]["verdict"]["evidence"])


def test_an_action_that_is_empty_or_cut_off_may_be_written_again() -> None:
    def clumsy(body: dict[str, Any]) -> Answer:
        actions = sum(m["role"] == "assistant" and m["content"] in TOUR for m in body["messages"])
        good = Answer(TOUR[actions])
        if body["messages"][-1]["content"].startswith("That answer"):
            return good
        return Answer("") if actions == 0 else Answer("set the deposit to", finish="length")

    result, server = evolved([DEPOSIT], clumsy)
    assert len(result.tasks) == 1
    assert sum(stage(body) == "explore" for body in server.bodies) == 10
    silent, server = evolved([DEPOSIT], lambda body: Answer(""))
    assert silent.tasks == ()
    assert silent.expeditions[0]["failures"] == ["run 0: empty: twice in a row"]
    assert silent.figures["failures"] == {"empty": 1}


def test_a_setup_is_left_as_it_was() -> None:
    result, _ = evolved([DEPOSIT])
    assert result.tasks[0].setup == {"book": {"rent": "700", "page": "3"}}
