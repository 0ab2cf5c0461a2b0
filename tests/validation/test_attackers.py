"""Attackers of `cojax audit` refuse drafts whose reward can be gamed, if a run names them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from broken_desks import BrokenDesk
from records import DESK, call

import environments
from cojax.explorer.scripted.explorer import ScriptedExplorer
from cojax.types import Action, Evaluation, TaskDraft
from cojax.validation import Validation
from environments.audit.examination import FOR_DRAFTS, choose_for_drafts

LOOK = (call("files_read", file="report"), call("finish", answer="amber"))
MOVE = (call("files_move", file="report", folder="taxes"), call("finish"))


def judged(environment: Any, names: str, query: str, solution: tuple[Action, ...]) -> str:
    """The last line of evidence."""
    draft = TaskDraft("desk", DESK, "by hand", query, solution, "same final state")
    validation = Validation(environment, audit=choose_for_drafts(names, {}) if names else None)
    return validation(draft, lambda id: False, ScriptedExplorer())[0].evidence[-1]


def takes_part_of_answer(episode: Any) -> Evaluation:
    verdict = episode.evaluate()
    found = str(episode.state()["answer"]) in "amber"
    return dataclasses.replace(
        verdict, reward=float(all(c.passed or (c.name == "answer" and found) for c in verdict.checks))
    )


def forgets_what_else_changed(episode: Any) -> Evaluation:
    verdict = episode.evaluate()
    checks = [check for check in verdict.checks if check.name != "nothing else changed"]
    return dataclasses.replace(verdict, reward=float(all(check.passed for check in checks)))


def test_at_the_desk_no_attacker_is_paid():
    names = ",".join(FOR_DRAFTS)
    assert judged(environments.load("desk"), names, "move report to taxes", MOVE) == "the attackers named find nothing"


@pytest.mark.parametrize(
    ("judge", "query", "solution", "attacker"),
    [
        (takes_part_of_answer, "tell me text of report", LOOK, "shotgun"),
        (forgets_what_else_changed, "move report to taxes", MOVE, "extra"),
    ],
)
def test_a_judge_with_a_hole_is_noticed(judge, query, solution, attacker):
    desk = BrokenDesk(judge=judge)
    assert "attacker" not in judged(desk, "", query, solution)
    assert judged(desk, attacker, query, solution).startswith(f"attacker {attacker}: earns 1")
    assert judged(desk, "greeting", query, solution) == "the attackers named find nothing"


def test_what_the_world_accepts_by_design_is_left_out():
    find_attack = choose_for_drafts("extra", {"BY_DESIGN": {"extra": "more may be done"}})
    validation = Validation(BrokenDesk(judge=forgets_what_else_changed), audit=find_attack)  # type: ignore[arg-type]
    draft = TaskDraft("desk", DESK, "by hand", "move report to taxes", MOVE, "same final state")
    assert validation(draft, lambda id: False, ScriptedExplorer())[0].status == "accepted"


@pytest.mark.parametrize("name", ["null", "drop", "clock", "random", "nobody", "my.module:attack", " extra", ""])
def test_other_attackers_are_refused(name):
    with pytest.raises(ValueError, match=r"expected some of greeting,stop,swap,shotgun,echo,inject,extra,double"):
        choose_for_drafts(f"greeting,{name}", {})
