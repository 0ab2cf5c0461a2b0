"""The plan of an evaluation task is recognised with other look-ups, in another order or under another wording."""

from __future__ import annotations

import dataclasses
import random

import pytest

import environments
from cojax.environment import Episode, play
from cojax.environment.replay import replay
from cojax.explorer.scripted.explorer import ScriptedExplorer
from cojax.types import Action, Call, Message, Task, TaskDraft, Trajectory, Turn
from cojax.validation import Exclusions, Validation

END = "an evaluation task on the same setup comes to the same end"
SEPARATOR = "\n\n[next turn]\n\n"


def offered(environment, task: Task) -> list[Action]:
    """The actions that the environment offers first, but for the ending."""
    seen: list[Action] = []

    def look(episode: Episode, messages: tuple[Message, ...]) -> Turn:
        seen.extend(episode.affordances())
        return Turn(Action())

    play(environment, task, look, max_turns=1)
    return [action for action in seen if action.calls and action.calls[0].name != "finish"]


def with_a_look_up(environment, task: Task) -> tuple[Action, ...] | None:
    """The solution after an offered call that leaves the world as it was; None where there is no such call."""
    start = replay(environment, task, task.solution[-1:]).states[0]
    for action in offered(environment, task):
        run = replay(environment, task, (action, *task.solution))
        world = {name: part for name, part in run.states[1].items() if isinstance(part, dict)}
        if run.complete and all(part == start[name] for name, part in world.items()):
            return (action, *task.solution)
    return None


def through(environment, held_out: list[Task], explorer: ScriptedExplorer) -> tuple[int, int]:
    """How many evaluation plans with a look-up in front are accepted under another wording, and of how many."""
    validate = Validation(environment, Exclusions.of(held_out, min_words=0))
    tried = accepted = 0
    for task in held_out:
        solution = with_a_look_up(environment, task)
        if solution is None:
            continue
        tried += 1
        query = SEPARATOR.join(["see to it as we agreed"] * (task.query.count(SEPARATOR) + 1))
        draft = TaskDraft(task.environment, task.setup, "", query, solution, "")
        verdict, _ = validate(draft, lambda id: False, explorer)
        accepted += verdict.status == "accepted"
    return accepted, tried


def test_of_the_desk_no_plan_behind_a_look_up_gets_through() -> None:
    desk = environments.load("desk")
    held_out = random.Random(4).sample(desk.tasks("eval", 1_000), 60)
    assert through(desk, held_out, ScriptedExplorer()) == (0, 60)


@pytest.mark.real
def test_of_bfcl_no_plan_behind_a_look_up_gets_through() -> None:
    bfcl = environments.load("bfcl")
    held_out = random.Random(4).sample(bfcl.tasks("eval", 200), 10)
    assert through(bfcl, held_out, ScriptedExplorer(ending="")) == (0, 10)


DESK = environments.load("desk")
MOVE = Action(calls=(Call("files_move", {"file": "map", "folder": "archive"}),))
DELETE = Action(calls=(Call("notes_delete", {"note": "memo"}),))
READ = Action(calls=(Call("files_read", {"file": "map"}),))
FINISH = Action(calls=(Call("finish", {}),))
SETUP = {
    "files": {"map": {"folder": "drafts", "text": "amber", "copies": []}},
    "notes": {"memo": {"text": "plum"}},
    "folders": {"archive": {"shared": []}, "drafts": {"shared": []}},
    "calendar": {}, "contacts": {}, "mail": {}, "sent": {},
}  # fmt: skip


def answer(text: str) -> Action:
    return Action(calls=(Call("finish", {"answer": text}),))


def reason(held_out: tuple[Action, ...], *solution: Action, **others: object) -> str:
    exclusions = Exclusions.of([Task("desk", "as it is evaluated", SETUP, held_out)])
    task = dataclasses.replace(Task("desk", "as it is drafted", SETUP, solution), **others)  # type: ignore[arg-type]
    run = replay(DESK, task, task.solution)
    return exclusions.find_end_rule(task, run, lambda one, actions: replay(DESK, one, actions))


def test_the_end_counts_and_not_the_way() -> None:
    both = (MOVE, DELETE, FINISH)
    assert reason(both, DELETE, MOVE, FINISH) == END
    assert reason(both, READ, MOVE, READ, DELETE, FINISH) == END
    assert reason(both, MOVE, DELETE, answer("amber")) == END
    # Part of the plan is another task, and so is more than the plan.
    assert reason(both, MOVE, FINISH) == ""
    assert reason((MOVE, FINISH), *both) == ""
    # Elsewhere it is another task as well.
    setup = {**SETUP, "notes": {"memo": {"text": "onyx"}}}
    assert reason(both, *both, setup=setup) == ""


def test_a_question_is_the_same_where_its_answer_earns_the_reward() -> None:
    asked = (READ, answer("amber"))
    assert reason(asked, Action(calls=(Call("notes_read", {"note": "memo"}),)), READ, answer("amber")) == END
    assert reason(asked, Action(calls=(Call("notes_read", {"note": "memo"}),)), answer("plum")) == ""
    # A question changes nothing, and an errand is no question.
    assert reason(asked, MOVE, answer("amber")) == ""


def test_a_solution_that_does_not_run_excludes_nothing() -> None:
    assert reason((Action(calls=(Call("files_move", {"file": "ghost", "folder": "x"}),)), FINISH), MOVE, FINISH) == ""
    assert reason((), MOVE, FINISH) == ""


def test_evaluation_tasks_are_run_once_a_setup_and_only_where_a_draft_is() -> None:
    runs: list[str] = []

    def again(task: Task, actions: tuple[Action, ...]):
        runs.append(task.query)
        return replay(DESK, task, actions)

    elsewhere = {**SETUP, "notes": {}}
    held_out = [Task("desk", "here", SETUP, (MOVE, FINISH)), Task("desk", "there", elsewhere, (MOVE, FINISH))]
    exclusions = Exclusions.of(held_out)
    task = Task("desk", "drafted", SETUP, (DELETE, FINISH))
    run = replay(DESK, task, task.solution)
    assert [exclusions.find_end_rule(task, run, again) for _ in range(3)] == ["", "", ""]
    assert runs == ["here"]


def test_an_end_that_is_not_known_lets_nothing_through() -> None:
    """One replay lost to an infrastructure failure must not let later drafts through."""
    desk = environments.load("desk")
    held_out = next(task for task in desk.tasks("eval", 50) if with_a_look_up(desk, task))
    lost = [True]

    def once_lost(environment, task: Task, act, **limits) -> Trajectory:
        if task == held_out and lost and lost.pop():
            return Trajectory(task, outcome="environment_error", error="the worker is gone")
        return play(environment, task, act, **limits)

    validate = Validation(desk, Exclusions.of([held_out], min_words=0), play=once_lost)
    solution = with_a_look_up(desk, held_out)
    assert solution is not None
    query = SEPARATOR.join(["see to it as we agreed"] * (held_out.query.count(SEPARATOR) + 1))
    draft = TaskDraft(held_out.environment, held_out.setup, "", query, solution, "")
    verdicts = [validate(draft, lambda id: False, ScriptedExplorer())[0] for _ in range(2)]
    assert [verdict.status for verdict in verdicts] == ["discarded", "discarded"]
    assert verdicts[0].evidence[-1] == "environment failed: the worker is gone"
    assert END in verdicts[1].evidence[-1]
