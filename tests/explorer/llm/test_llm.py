"""Stages 2 and 3 at the desk, with a model that plays its part."""

import dataclasses
import json
from typing import Any

import pytest
from broken_desks import BrokenDesk
from chat_server import Answer, ChatServer, says
from evolving import OFFICE, PARENT, SIGNALS, evolve
from models import MAIL, SOLUTIONS, TOUR, TWO, many, model, move, told, turn
from records import DESK, call

from cojax.explorer.llm.chat_model import ChatFailure
from cojax.explorer.llm.prompting import hash_prompts
from cojax.synthesis import Expedition
from cojax.types import Evaluation


def test_signals_become_tasks_with_their_whole_lineage() -> None:
    done = evolve(model(), signals=SIGNALS, per_context=2)
    # The three expeditions bring the same drafts; the first one's count.
    assert [task.query for task in done.result.tasks] == [MAIL["query"], TWO["query"]]
    first = done.result.tasks[0]
    assert first.solution == (*(call(tool, **arguments) for tool, arguments in TOUR[3:5]), call("finish"))
    assert (first.setup, first.origin) == (DESK, "boundary")
    lineage = first.lineage
    assert lineage is not None
    assert lineage.explorer == f"llm:m@{hash_prompts()}"
    assert (lineage.parent, lineage.signal, lineage.episode) == (PARENT.id, "boundary here", "3-x-0")
    assert (lineage.runs, lineage.verdict, lineage.step) == ((0,), "accepted", 10)
    assert lineage.evidence[-1] == "solved without hints: 1 of 1 attempts on the query alone"
    counts = done.result.counts
    assert (counts["expeditions"], counts["drafts"], counts["accepted"], counts["discarded"]) == (3, 6, 2, 4)
    # What one expedition asks of a task, another need not pay the endpoint for.
    figures = done.result.figures
    assert figures["calls"] - figures["replayed"] == done.server.requests == len(list(done.journal.read()))
    (record, *_) = done.result.expeditions
    assert record["runs"] == [{"run": 0, "actions": 8, "ok": 8}, {"run": 1, "actions": 8, "ok": 8}]
    assert record["context"]["do_not_repeat"] == ["files_move(file=ghost, folder=taxes)", "files_delete(file=report)"]


def test_each_kind_is_guided_by_words_of_its_own_and_sees_all_it_needs() -> None:
    done = evolve(model(), signals=SIGNALS)
    systems = {body["messages"][0]["content"] for body in done.bodies("explore")}
    purposes = {text.partition("Purpose: ")[2].partition(".")[0] for text in systems}
    assert purposes == {"rehearsal", "the edge between success and failure", "breadth"}
    opening = told(done.bodies("explore")[0])
    for words in ("move report to taxes", "it stopped too early", "files_delete(file=report)", "Some actions that"):
        assert words in opening
    reflected = told(done.bodies("reflect")[0])
    for words in ("files_move(file=ghost, folder=taxes)", "Result (failed): error: no such", "here", "reward 0.00"):
        assert words in reflected
    assert all("additionalProperties" in body["messages"][0]["content"] for body in done.bodies("explore"))
    # Who is to solve it sees the query, not how.
    for body in done.bodies("solve"):
        assert "report to taxes" not in told(body) or TWO["query"] in told(body)
        assert "contacts_find(" not in body["messages"][1]["content"]


def test_the_runs_of_a_context_are_asked_for_different_replies() -> None:
    done = evolve(model())
    firsts = [body for body in done.bodies("explore") if turn(body) == 0]
    assert len({body["seed"] for body in firsts}) == len(firsts) == 2
    assert len({json.dumps(body) for body in done.server.bodies}) == done.server.requests


def test_expeditions_and_runs_go_at_once_and_give_the_same_in_any_order() -> None:
    def slowly(body: dict[str, Any], server: ChatServer) -> Answer:
        # Those asked first are answered last.
        return dataclasses.replace(model()(body, server), stall=0.006 * (3 - server.requests % 4))

    done = evolve(slowly, signals=SIGNALS)
    assert done.server.max_at_once >= 4
    again = evolve(model(), signals=SIGNALS)
    assert done.result == again.result
    # One after the other they know what the others found before they examine it, and find the same.
    assert done.result.tasks == evolve(model(), signals=SIGNALS, width=1).result.tasks


def test_unguided_expeditions_need_no_reflection() -> None:
    place = dataclasses.replace(PARENT, query="", solution=())
    trips = [Expedition(place, "unguided", weights=OFFICE.popularity()), Expedition(place, "uniform")]
    done = evolve(model(), expeditions=trips)
    assert [task.origin for task in done.result.tasks] == ["unguided"] * 2
    assert not done.bodies("reflect")
    assert any("Users mostly want: files_move" in told(body) for body in done.bodies("explore"))
    assert any("equal interest" in told(body) for body in done.bodies("explore"))


def test_ten_drafts_of_one_exploration_stay_ten_tasks() -> None:
    done = evolve(model(many(10)), attempts=0)
    assert len(done.result.tasks) == len({task.id for task in done.result.tasks}) == 10
    for task, draft in zip(done.result.tasks, many(10), strict=True):
        assert task.query == draft["query"]
        taken = [TOUR[step - 1] for step in draft["steps"]]
        assert task.solution == (*(call(tool, **arguments) for tool, arguments in taken), call("finish"))
    # A group holds episodes of one task.
    assert len({json.dumps([a.calls[0].name for a in task.solution]) for task in done.result.tasks}) > 5


# Another ghost than the one that is not to be repeated.
FAILING = (*TOUR[:2], ("files_move", {"file": "ghost", "folder": "archive"}), *TOUR[2:7])
DRAFTS = [
    ({"query": "q1", "steps": [1, 99]}, "action 99 is not in the record"),
    ({"query": "q2", "steps": []}, "it names no recorded action"),
    ({"query": "q3", "steps": [3, 4]}, "action 3 did not succeed when it was explored"),
    ({"query": "q4", "steps": [1, 12]}, "its actions come from several runs"),
    ({"query": "q5", "steps": [5, 1]}, "its actions are not in ascending order"),
    ({"query": "q6", "steps": [1, 1]}, "its actions are not in ascending order"),
    ({"query": "q7", "steps": [1]}, "it has 2 actions; at least 3 are required"),
    ({"query": " ", "steps": [1, 4]}, "the query has no letter and no digit"),
    ({"query": "x" * 5_000, "steps": [1, 4]}, "the query has 5,000 characters; at most 4,000 are taken"),
    ({"query": "call files_move(report) and more", "steps": [1, 4]}, "spells out a call: files_move("),
    ({"query": "what is in the report?", "steps": [1, 2], "answer": "42"}, "no step shows the answer '42'"),
    ({"query": "what is in the budget?", "steps": [1, 2], "answer": "rea"}, "no step shows the answer 'rea'"),
    ({"query": "q8", "steps": [1, 4], "later": [{"query": "more", "steps": [6]}]}, "it has several user turns"),
]


def test_a_draft_that_breaks_a_rule_is_refused_with_the_rule() -> None:
    done = evolve(model([draft for draft, _ in DRAFTS], FAILING), per_context=len(DRAFTS))
    assert done.result.tasks == ()
    for record, (_, objection) in zip(done.result.drafts, DRAFTS, strict=True):
        assert record["verdict"]["status"] == "discarded"
        assert any(objection in line for line in record["verdict"]["evidence"]), (objection, record["verdict"])
    assert not done.bodies("solve")


def test_an_answer_comes_from_what_a_step_showed() -> None:
    draft = {"query": "move report to taxes and tell the text of budget", "steps": [1, 2], "answer": "bread"}
    solution = [TOUR[0], TOUR[1], ("finish", {"answer": "bread"})]
    done = evolve(model([draft], solutions={draft["query"]: solution}))
    (task,) = done.result.tasks
    assert task.solution[-1] == call("finish", answer="bread")


def test_a_run_that_ended_itself_needs_no_second_ending() -> None:
    tour = (TOUR[0], TOUR[1], ("finish", {"answer": "bread"}))
    draft = {"query": "move report to taxes and tell the text of budget", "steps": [1, 2, 3]}
    made_up = {"query": "how many are there?", "steps": [4, 5, 6]}
    done = evolve(model([draft, made_up], tour, {draft["query"]: tour}))
    assert [task.solution[2:] for task in done.result.tasks] == [(call("finish", answer="bread"),)]


def test_solutions_that_do_nothing_or_too_much_are_refused() -> None:
    drafts = [
        {"query": "look", "steps": [2, 4]},
        {"query": "move report to taxes, and look at budget", "steps": [1, 2]},
        {"query": "move report to taxes, then back", "steps": [1, 3]},
    ]
    there = ("files_move", {"file": "report", "folder": "taxes"})
    back = ("files_move", {"file": "report", "folder": "drafts"})
    tour = (there, TOUR[1], back, TOUR[3], *TOUR[4:])
    done = evolve(model(drafts, tour))
    nothing = "no effect: ends in the same state as doing nothing, and gives no answer"
    assert done.verdict("look").evidence[-1] == nothing
    assert done.verdict("move report to taxes, then back").evidence[-1] == nothing
    assert done.verdict("move report to taxes, and look at budget").evidence[-1] == (
        "superfluous: nothing that it shows is used or asked for, action 2, files_read(file=budget)"
    )
    assert done.result.tasks == ()


@pytest.mark.parametrize(("best", "status"), [(0.0, "discarded"), (0.5, "retained")])
def test_what_nobody_can_solve_by_its_query_is_not_accepted(best: float, status: str) -> None:
    def judged(episode: Any) -> Evaluation:
        verdict = episode.evaluate()
        return verdict if verdict.reward == 1.0 else Evaluation(best, verdict.checks)

    riddle = {**MAIL, "query": "plum, to ana, the way you know"}
    done = evolve(model([riddle]), environment=BrokenDesk(judge=judged), attempts=3)
    verdict = done.verdict(riddle["query"])
    assert (verdict.status, verdict.difficulty) == (status, 1.0)
    assert verdict.evidence[-1] == (
        f"solved without hints: 0 of 3 attempts on the query alone, the best earned {best:.2f}"
    )
    assert done.result.tasks == ()


def test_the_share_of_failed_attempts_is_how_hard_it_is() -> None:
    def lazy(body: dict[str, Any], at: int) -> Answer | None:
        return says(move("finish", {})) if at == 0 and body["seed"] % 2 else None

    half = {**MAIL, "query": "mail plum to ana by half"}
    done = evolve(model([half], solutions={half["query"]: SOLUTIONS[MAIL["query"]]}, solve=lazy), attempts=6)
    verdict = done.verdict(half["query"])
    assert verdict.status == "accepted"
    firsts = [body for body in done.bodies("solve") if turn(body) == 0]
    assert len(firsts) == 6
    assert verdict.difficulty == sum(body["seed"] % 2 for body in firsts) / 6
    assert done.result.drafts[0]["verdict"]["difficulty"] == verdict.difficulty


def test_attempts_that_the_mind_breaks_prove_nothing() -> None:
    done = evolve(model([MAIL], solve=lambda body, at: Answer("down", status=500)), attempts=2)
    verdict = done.verdict(MAIL["query"])
    assert (verdict.status, verdict.difficulty) == ("discarded", None)
    assert verdict.evidence[-1] == "no attempt on the query alone came to an end: server: HTTP 500: down"


@pytest.mark.parametrize("kind", ["budget", "deadline", "stopped"])
def test_no_episode_is_started_where_nothing_may_be_asked_any_more(kind: str) -> None:
    class Closed(BrokenDesk):
        def start(self, task: Any) -> Any:
            raise AssertionError("an episode is started")

    explorer = evolve(model(), expeditions=[]).explorer
    budget = explorer.remaining_budget()
    match kind:
        case "budget":
            budget.pay(budget.tokens, 0)
        case "deadline":
            budget.end_time = 0.0
        case "stopped":
            budget.close()
    with pytest.raises(ChatFailure, match=f"{kind}: "):
        explorer.explore(Closed(), PARENT, None, (0, 1))
    # Of an evolution it is the expedition's error, and its budget counts.
    place = dataclasses.replace(PARENT, query="", solution=())
    done = evolve(model(), expeditions=[Expedition(place, "unguided")], environment=Closed(), deadline=1e-9)
    assert done.result.expeditions[0]["error"].startswith("deadline: ")
    assert done.result.counts["explorer_failures"] == 1
