"""Tools and episodes: literal calls on a literal office."""

import copy
import dataclasses

import pytest

import environments
from cojax.types import Action, Call, Check, Task
from environments.desk.episode import DeskEpisode
from environments.desk.office import TOOLS

OFFICE = {
    "files": {
        "report": {"folder": "archive", "text": "amber", "copies": []},
        "budget": {"folder": "drafts", "text": "cedar", "copies": ["archive"]},
    },
    "folders": {"archive": {"shared": []}, "drafts": {"shared": ["box11"]}},
    "notes": {"memo": {"text": "honey"}},
    "contacts": {"ana": {"address": "box11"}, "bob": {"address": "box12"}},
    "calendar": {"standup": {"day": "monday", "guests": []}},
    "mail": {"ana": {"text": "ruby", "flagged": False, "forwarded": []}},
    "sent": {},
}


def call(name, *arguments):
    parameters = ("answer",) if name == "finish" else tuple(TOOLS[name].slots)
    return Action(calls=(Call(name, dict(zip(parameters, arguments, strict=False))),))


def episode(query="", solution=(), office=OFFICE):
    return DeskEpisode(Task("desk", query, office, solution))


@pytest.mark.parametrize(
    ("action", "observed", "path", "value"),
    [
        (call("files_find", "report"), "archive", None, None),
        (call("files_read", "report"), "amber", None, None),
        (call("files_write", "report", "mint"), "ok", "files/report/text", "mint"),
        (call("files_move", "report", "drafts"), "ok", "files/report/folder", "drafts"),
        (call("files_copy", "report", "drafts"), "ok", "files/report/copies", ["drafts"]),
        (call("files_rename", "report", "essay"), "ok", "files/essay/text", "amber"),
        (call("files_delete", "report"), "ok", "files/report", None),
        (call("folders_create", "music"), "ok", "folders/music/shared", []),
        (call("folders_share", "drafts", "box12"), "ok", "folders/drafts/shared", ["box11", "box12"]),
        (call("notes_read", "memo"), "honey", None, None),
        (call("notes_add", "todo", "mint"), "ok", "notes/todo/text", "mint"),
        (call("notes_write", "memo", "mint"), "ok", "notes/memo/text", "mint"),
        (call("notes_delete", "memo"), "ok", "notes/memo", None),
        (call("contacts_find", "bob"), "box12", None, None),
        (call("contacts_add", "carl", "box13"), "ok", "contacts/carl/address", "box13"),
        (call("contacts_delete", "bob"), "ok", "contacts/bob", None),
        (call("calendar_day", "standup"), "monday", None, None),
        (call("calendar_add", "lunch", "friday"), "ok", "calendar/lunch/day", "friday"),
        (call("calendar_move", "standup", "friday"), "ok", "calendar/standup/day", "friday"),
        (call("calendar_cancel", "standup"), "ok", "calendar/standup", None),
        (call("calendar_invite", "standup", "box12"), "ok", "calendar/standup/guests", ["box12"]),
        (call("mail_send", "box12", "mint"), "ok", "sent/box12/texts", ["mint"]),
        (call("mail_read", "ana"), "ruby", None, None),
        (call("mail_flag", "ana"), "ok", "mail/ana/flagged", True),
        (call("mail_forward", "ana", "box12"), "ok", "mail/ana/forwarded", ["box12"]),
        (call("mail_delete", "ana"), "ok", "mail/ana", None),
        (call("finish", "mint"), "ok", "answer", "mint"),
        (call("finish"), "ok", "finished", True),
    ],
)
def test_each_tool(action, observed, path, value):
    desk = episode()
    before = desk.state()
    observation = desk.step(action)
    assert (observation.text, observation.ok, observation.messages[0].role) == (observed, True, "tool")
    assert observation.done == (action.calls[0].name == "finish")
    if path is None:
        assert desk.state() == before
    else:
        after = desk.state()
        assert after != before
        *shelves, last = path.split("/")
        for key in shelves:
            after = after[key]
        assert after.get(last) == value


def test_every_tool_is_tested_above():
    tested = next(m for m in test_each_tool.pytestmark if m.name == "parametrize").args[1]
    assert {row[0].calls[0].name for row in tested} == {*TOOLS, "finish"}
    documented = environments.load("desk").tools()
    assert [entry["function"]["name"] for entry in documented] == [*TOOLS, "finish"]
    assert documented[3]["function"]["parameters"] == {
        "type": "object",
        "properties": {"file": {"type": "string"}, "folder": {"type": "string"}},
        "required": ["file", "folder"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("action", "error"),
    [
        (call("files_read", "essay"), "no such file"),
        (call("files_move", "report", "music"), "no such folder"),
        (call("files_move", "report", "archive"), "unchanged"),
        (call("files_copy", "budget", "archive"), "unchanged"),
        (call("files_rename", "report", "budget"), "file exists"),
        (call("folders_create", "drafts"), "folder exists"),
        (call("folders_share", "archive", "ana"), "no such address"),
        (call("notes_add", "memo", "mint"), "note exists"),
        (call("notes_write", "todo", "mint"), "no such note"),
        (call("contacts_add", "ana", "box30"), "contact exists"),
        (call("contacts_find", "zoe"), "no such contact"),
        (call("calendar_add", "lunch", "someday"), "no such day"),
        (call("calendar_move", "lunch", "friday"), "no such event"),
        (call("mail_send", "box30", "mint"), "no such address"),
        (call("mail_read", "bob"), "no such mail"),
        (call("files_read"), "expects file"),
        (
            Action(calls=(Call("files_move", {"file": "report", "folder": "drafts", "force": "yes"}),)),
            "expects file folder",
        ),
        (Action(calls=(Call("files_read", {"file": ["report"]}),)), "expects file"),
        (Action(calls=(Call("files_read", {"file": "Report"}),)), "expects file"),
        (Action(calls=(Call("files_write", {"file": "report", "text": "x" * 25}),)), "expects file text"),
        (Action(calls=(Call("finish", {"answer": 3}),)), "expects answer"),
        (Action(calls=(Call("files_fly", {"file": "report"}),)), "no such tool"),
        (Action(text="I would rather not"), "no call"),
        (Action(text="{", error="invalid JSON"), "invalid JSON"),
    ],
)
def test_a_bad_action_is_answered_and_changes_nothing(action, error):
    desk = episode()
    before = desk.state()
    observation = desk.step(action)
    assert (observation.text, observation.ok, observation.done) == (f"error: {error}", False, False)
    assert desk.state() == before == {**OFFICE, "answer": None, "finished": False}


def test_several_calls_stop_at_the_first_error():
    desk = episode()
    calls = (
        *call("files_read", "report").calls,
        *call("notes_delete", "todo").calls,
        *call("notes_delete", "memo").calls,
    )
    observation = desk.step(Action(calls=calls))
    assert [message.content for message in observation.messages] == ["amber", "error: no such note"]
    assert not observation.ok
    assert "memo" in desk.state()["notes"]


def test_nothing_works_after_finish():
    desk = episode()
    finishing = Action(calls=(*call("finish", "amber").calls, *call("notes_delete", "memo").calls))
    seen = desk.step(finishing)
    # What follows was not called, so the action has not worked, and raises no signal of a rare tool.
    assert (seen.text, seen.ok, seen.done) == ("ok\nerror: already finished", False, True)
    late = desk.step(call("notes_delete", "memo"))
    assert (late.text, late.ok, late.done) == ("error: already finished", False, True)
    assert desk.state() == {**OFFICE, "answer": "amber", "finished": True}
    assert desk.affordances() == ()


def test_the_verdict_names_every_fact():
    solution = (call("files_move", "report", "drafts"), call("mail_send", "box12", "mint"), call("finish"))
    desk = episode(solution=solution)
    desk.step(call("files_move", "report", "drafts"))
    desk.step(call("notes_delete", "memo"))
    desk.step(call("finish"))
    verdict = desk.evaluate()
    assert verdict.reward == 0.0
    assert verdict.checks == (
        Check("files/report/folder", True),
        Check("sent/box12/texts", False),
        Check("nothing else changed", False),
        Check("finished", True),
    )


@pytest.mark.parametrize(
    ("answer", "reward", "checks"),
    [
        ("amber", 1.0, (Check("answer", True), Check("nothing else changed", True), Check("finished", True))),
        ("cedar", 0.0, (Check("answer", False), Check("nothing else changed", True), Check("finished", True))),
    ],
)
def test_an_answer_is_a_check(answer, reward, checks):
    desk = episode(solution=(call("files_read", "report"), call("finish", "amber")))
    desk.step(call("finish", answer))
    assert desk.evaluate() == dataclasses.replace(desk.evaluate(), reward=reward, checks=checks)


def test_an_answer_nobody_asked_for_and_a_missing_finish_fail():
    solution = (call("notes_delete", "memo"), call("finish"))
    desk = episode(solution=solution)
    desk.step(solution[0])
    assert [c.name for c in desk.evaluate().checks if not c.passed] == ["finished"]
    desk.step(call("finish", "honey"))
    assert [c.name for c in desk.evaluate().checks if not c.passed] == ["nothing else changed"]


def test_without_a_solution_there_is_no_reward():
    desk = episode()
    desk.step(call("finish"))
    assert desk.evaluate().reward == 0.0
    assert desk.evaluate().checks == ()


def test_the_task_and_states_handed_out_stay_as_they_are():
    office = copy.deepcopy(OFFICE)
    desk = episode(office=office)
    handed = desk.state()
    handed["folders"]["drafts"]["shared"].append("box30")
    desk.step(call("folders_share", "drafts", "box12"))
    assert desk.state()["folders"]["drafts"]["shared"] == ["box11", "box12"]
    assert office == OFFICE


@pytest.mark.parametrize(
    ("office", "message"),
    [
        ({}, "an office has the shelves"),
        ({**OFFICE, "notes": {"memo": {}}}, "notes/memo has the attributes \\[\\]; expected \\['text'\\]"),
    ],
)
def test_a_setup_that_is_no_office_is_refused(office, message):
    with pytest.raises(ValueError, match=message):
        episode(office=office)
