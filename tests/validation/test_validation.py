import dataclasses
import itertools

import pytest
from broken_desks import BrokenDesk, always
from records import DESK, call

import environments
from cojax.environment import LimitExceeded
from cojax.explorer.scripted.explorer import ScriptedExplorer
from cojax.types import Action, Evaluation, Task, TaskDraft
from cojax.validation import Exclusions, Validation

MOVE = call("files_move", file="report", folder="taxes")
NOTE = call("notes_add", note="todo", text="amber")
FINISH = call("finish")
EXPLORER = ScriptedExplorer()


def draft(*solution: Action, query: str = "move report to taxes") -> TaskDraft:
    return TaskDraft("desk", DESK, "by hand", query, solution, "same final state")


def unknown(id: str) -> bool:
    return False


def judged(validation: Validation, *solution: Action, query: str = "move report to taxes") -> tuple[str, str]:
    """The status and the last line of evidence; a task comes with acceptance and only with it."""
    verdict, task = validation(draft(*solution, query=query), unknown, EXPLORER)
    assert (task is not None) == (verdict.status == "accepted")
    return verdict.status, verdict.evidence[-1]


@pytest.fixture
def validation() -> Validation:
    return Validation(environments.load("desk"))


def test_a_good_draft_is_accepted_with_a_line_for_each_examination(validation: Validation) -> None:
    query = "move report to taxes, then note text of report as todo"
    solution = (MOVE, call("files_read", file="report"), NOTE, FINISH)
    verdict, task = validation(draft(*solution, query=query), unknown, EXPLORER)
    assert verdict.status == "accepted"
    assert verdict.evidence == (
        "new, and no evaluation task",
        "runs: 4 actions, full reward",
        "repeatable: a second run passes through the same states",
        "has an effect, and doing nothing fails",
        "query and solution agree: the environment words these steps so",
        "look-up used: 'amber', first shown by action 2, files_read(file=report), stands in what follows",
        "negative control: fails without action 1, files_move(file=report, folder=taxes)",
        "negative control: fails without action 3, notes_add(note=todo, text=amber)",
    )
    assert task is not None
    assert (task.query, task.setup, len(task.solution)) == (query, DESK, 4)


def test_an_answer_alone_is_an_effect(validation: Validation) -> None:
    look, tell = call("files_read", file="report"), call("finish", answer="amber")
    verdict, task = validation(draft(look, tell, query="tell the text of report"), unknown, EXPLORER)
    assert task is not None
    assert verdict.evidence[3:5] == (
        "has an effect, and doing nothing fails",
        "the answer 'amber' is shown by an action, and not in the query",
    )


@pytest.mark.parametrize(
    ("solution", "line"),
    [
        ((), "has no actions"),
        ((FINISH,), "no effect: ends in the same state as doing nothing, and gives no answer"),
        (
            (call("files_read", file="report"), FINISH),
            "no effect: ends in the same state as doing nothing, and gives no answer",
        ),
        (
            (MOVE, call("files_move", file="report", folder="drafts"), FINISH),
            "no effect: ends in the same state as doing nothing, and gives no answer",
        ),
        # The first move is undone by the second, so the task passes without it.
        (
            (MOVE, call("files_move", file="report", folder="archive"), FINISH),
            "negative control: passes without action 1, files_move(file=report, folder=taxes)",
        ),
    ],
)
def test_what_proves_nothing_is_discarded(validation: Validation, solution: tuple, line: str) -> None:
    assert judged(validation, *solution, query="move report to taxes, then archive it") == ("discarded", line)


def test_a_failing_run_that_earns_reward_is_retained_and_makes_no_task() -> None:
    wrong = call("files_move", file="ghost", folder="taxes")
    half = Validation(BrokenDesk(judge=lambda episode: Evaluation(0.5)))
    verdict, task = half(draft(MOVE, wrong, FINISH), unknown, EXPLORER)
    assert (verdict.status, task) == ("retained", None)
    assert verdict.evidence[1].startswith("run fails: action 2, files_move(file=ghost, folder=taxes): error")
    assert verdict.evidence[2] == "the environment returned 0.50"
    none = Validation(BrokenDesk(judge=lambda episode: Evaluation(0.0)))
    assert judged(none, MOVE, wrong, FINISH) == ("discarded", "the environment returned 0.00")


def test_an_open_end_or_an_unpassed_check_fails_the_run() -> None:
    nothing = Validation(BrokenDesk(judge=lambda episode: Evaluation(0.0)))
    verdict, _ = nothing(draft(MOVE), unknown, EXPLORER)
    assert "run fails: the last action leaves the episode open (truncated)" in verdict.evidence
    verdict, _ = nothing(draft(MOVE, FINISH), unknown, EXPLORER)
    assert "run fails: the replayed solution does not pass its own checks" in verdict.evidence


def test_an_environment_that_rewards_everything_proves_nothing() -> None:
    generous = Validation(BrokenDesk(judge=lambda episode: Evaluation(1.0)))
    assert judged(generous, MOVE, FINISH) == ("discarded", "doing nothing earns full reward")


def test_a_run_that_ends_otherwise_the_second_time_is_discarded() -> None:
    status, line = judged(Validation(BrokenDesk(ticks=True)), MOVE, FINISH)
    assert (status, line) == ("discarded", "not repeatable: a second run differs in the state after action 0")


@pytest.mark.parametrize("where", ["reset", "step", "evaluate"])
def test_an_environment_that_breaks_is_evidence_and_no_crash(where: str) -> None:
    status, line = judged(Validation(BrokenDesk(on=always(where))), MOVE, FINISH)
    assert status == "discarded"
    assert line == f"environment failed: {where}: OSError: {where} is on fire"


def test_a_control_that_is_cut_off_proves_nothing() -> None:
    steps = itertools.count(1)

    def on(where: str) -> None:
        # The solution twice, doing nothing once; then the run without the first action.
        if where == "step" and next(steps) == 2 + 2 + 1 + 1:
            raise LimitExceeded("TIMEOUT: step took longer than 10 s")

    status, line = judged(Validation(BrokenDesk(on=on)), MOVE, FINISH)
    assert (status, line) == ("discarded", "environment failed: step: TIMEOUT: step took longer than 10 s")


@pytest.mark.parametrize("enabled", [True, False])
def test_duplicates_and_evaluation_tasks_never_pass(enabled: bool) -> None:
    elsewhere = {**DESK, "notes": {}}
    other = Task("desk", "put report with the taxes", DESK, (MOVE, FINISH))
    desk = environments.load("desk")
    plain = Validation(desk, enabled=enabled)
    verdict, _ = plain(draft(MOVE, FINISH), lambda id: True, EXPLORER)
    assert verdict.evidence[0].startswith("duplicate of task ")
    worded = Validation(desk, Exclusions.of([Task("desk", "MOVE report  to taxes", elsewhere)]), enabled=enabled)
    assert judged(worded, MOVE, FINISH) == ("discarded", "an evaluation task has the same query")
    planned = Validation(desk, Exclusions.of([other]), enabled=enabled)
    assert judged(planned, MOVE, FINISH) == ("discarded", "an evaluation task has the same setup and actions")
    more = "move report to taxes, then add note todo saying amber"
    assert judged(planned, MOVE, NOTE, FINISH, query=more)[0] == "accepted"
    moved = Validation(desk, Exclusions.of([dataclasses.replace(other, setup=elsewhere)]), enabled=enabled)
    assert judged(moved, MOVE, FINISH)[0] == "accepted"


def test_without_validation_nothing_is_run() -> None:
    off = Validation(BrokenDesk(on=always("reset")), enabled=False)
    assert judged(off, FINISH) == ("accepted", "not validated: validation is off")
