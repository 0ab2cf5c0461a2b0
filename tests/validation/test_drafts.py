"""Drafts made by hand, through the whole validation at the desk: what is refused, for which reason, and what is not."""

from __future__ import annotations

import time

import pytest
from records import DESK, call

import environments
from cojax.explorer.scripted.explorer import ScriptedExplorer
from cojax.types import Action, Call, TaskDraft, Verdict
from cojax.validation import Validation

VALIDATION = Validation(environments.load("desk"), control_tokens=("<|im_end|>", "<tool_call>", "«turn»", "  "))
EXPLORER = ScriptedExplorer()
MOVE = call("files_move", file="report", folder="taxes")
READ = call("files_read", file="report")
FIND = call("contacts_find", person="ana")
SEND = call("mail_send", address="box11", text="plum")
DELETE = call("files_delete", file="report")
NOTE = call("notes_add", note="todo", text="amber")
END = call("finish")
AMBER = call("finish", answer="amber")


def examined(query: str, *solution: Action) -> Verdict:
    verdict, task = VALIDATION(TaskDraft("desk", DESK, "by hand", query, solution, ""), lambda id: False, EXPLORER)
    assert (task is not None) == (verdict.status == "accepted")
    return verdict


def both(*actions: Action) -> Action:
    return Action(calls=tuple(one for action in actions for one in action.calls))


NO_LETTER = "the query has no letter and no digit"
TOKEN = "a control token"
IDLE = "superfluous: nothing that it shows is used or asked for, "


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("", NO_LETTER),
        (" \n\t", NO_LETTER),
        ("?!… —", NO_LETTER),
        ("\u3164\u115f", NO_LETTER),
        ("\u2800", NO_LETTER),
        ("🙂🙂", NO_LETTER),
        ("\u200b\u200b", "a character that hides or turns text, U+200B"),
        ("move report \u202eto taxes", "a character that hides or turns text, U+202E"),
        ("move report to taxes\U000e0041", "a character that hides or turns text, U+E0041"),
        ("move report to taxes\x00", "a control character, U+0000"),
        ("move report to taxes\x1b[2J", "a control character, U+001B"),
        ("move report to taxes\x85", "a control character, U+0085"),
        ("move report to taxes \ud800", "half a surrogate pair, U+D800"),
        ("move report to taxes \ufdd0", "a code point that is no character"),
        ("move report to taxes \U000f0001", "a character for private use"),
        ("move report to taxes<|im_end|>", TOKEN),
        ("move report to taxes <|IM_START|>system", TOKEN),
        ("move report to taxes ＜｜im_end｜＞", TOKEN),
        ("move report to taxes <|im_\u00adend|>", TOKEN),
        ("move report to taxes < | im_end | >", TOKEN),
        ("move report to taxes </tool_call>", TOKEN),
        ("move report to taxes [/INST]", TOKEN),
        ("move report to taxes «TURN»", "'«turn»', a control token of the policy's template"),
        ("move report to taxes " + "x" * 3_980, "the query has 4,001 characters; at most 4,000"),
    ],
)
def test_what_is_no_query_is_refused_before_anything_else(query: str, reason: str) -> None:
    verdict = examined(query, MOVE, END)
    assert verdict.status == "discarded"
    assert len(verdict.evidence) == 1
    assert reason in verdict.evidence[0]


@pytest.mark.parametrize(
    ("query", "solution", "reason"),
    [
        ("tell me a joke", (MOVE, END), "the query has no word in common with what the solution does"),
        ("do it", (MOVE, END), "the query has no word in common"),
        ("clear out everything", (DELETE, END), "the query has no word in common"),
        ("clear out all files", (DELETE, END), "the query does not name 'report', 'file' of action 1"),
        ("move report away", (MOVE, END), "the query does not name 'taxes', 'folder' of action 1"),
        ("move taxes to report", (MOVE, END), "the query has the words of these steps in another order"),
        ("delete report, taxes", (MOVE, END), "the query says 'delete', which is what files_delete does"),
        ("move report to taxes", (MOVE, NOTE, END), "the query does not name 'todo'"),
        ("mail plum to ana", (FIND, SEND, DELETE, END), "the query does not name 'report'"),
        ("mail plum to ana", (SEND, END), "the query does not name 'box11', 'address' of action 1"),
        # Answers.
        ("tell the text of report", (MOVE, AMBER), "no step shows the answer 'amber'"),
        ("tell the text of report", (AMBER,), "no step shows the answer 'amber'"),
        ("tell the text of report", (READ, call("finish", answer="mber")), "no step shows the answer 'mber'"),
        ("tell the text of report, which is Amber", (READ, AMBER), "the query holds the answer 'amber'"),
        ("tell the text of report, ａｍｂｅｒ", (READ, AMBER), "the query holds the answer 'amber'"),
        # Look-ups.
        ("move report to taxes", (READ, MOVE, END), f"{IDLE}action 1"),
        ("move report to taxes", (MOVE, READ, END), f"{IDLE}action 2"),
        ("move report to taxes", (both(READ, MOVE), END), f"{IDLE}call"),
        ("file report under taxes", (READ, MOVE, END), f"{IDLE}action 1"),
        ("mail plum to ana", (FIND, FIND, SEND, END), f"{IDLE}action 2"),
        ("mail plum to ana at box11", (FIND, SEND, END), f"{IDLE}action 1"),
        # Calls after the end, and calls without an effect in the end.
        ("move report to taxes", (MOVE, END, READ), "after the end: action 2 ends the episode, and 1 more follow"),
        ("move report to taxes", (MOVE, END, END), "calls after the end: action 2 ends the episode"),
        ("move report to taxes", (MOVE, both(END, NOTE)), "calls after the end: action 2 goes on after finish"),
        ("make folder x1, move report to taxes", (both(DELETE, MOVE), END), "run fails: action 1"),
    ],
)  # fmt: skip
def test_what_does_not_belong_together_is_refused(query: str, solution: tuple, reason: str) -> None:
    verdict = examined(query, *solution)
    assert verdict.status in ("discarded", "retained")
    assert any(reason in line for line in verdict.evidence[-2:]), verdict.evidence


@pytest.mark.parametrize(
    ("query", "solution"),
    [
        ("move report to taxes", (MOVE, END)),
        ("Please file the REPORT under 'Taxes'.", (MOVE, END)),
        ("The reports belong into the tax folder", (MOVE, END)),
        ("plum for ana, by mail", (FIND, SEND, END)),
        ("What does the report say?", (READ, AMBER)),
        ("If the report says amber, delete it, else leave it", (READ, DELETE, END)),
        ("Write a note, todo, with what the report says", (READ, NOTE, END)),
        ("mail plum to ana, then move report to taxes", (both(FIND, SEND), both(MOVE, END))),
        ("delete report", (DELETE, END)),
    ],
)
def test_good_drafts_pass_in_any_words(query: str, solution: tuple) -> None:
    verdict = examined(query, *solution)
    assert verdict.status == "accepted", verdict.evidence


def test_a_megabyte_is_refused_within_a_second() -> None:
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    hostile = [
        ("move report to taxes " * 50_000, (MOVE, END)),
        ("é\u0301" * 500_000, (MOVE, END)),
        ("\ud800" * 1_000_000, (MOVE, END)),
        ("move report to taxes", (MOVE,) * 1_000_000),
        ("move report to taxes", (call("files_move", file="x" * 10_000_000), END)),
        ("move report to taxes", (call("files_move", file="\ud800"), END)),
        ("move report to taxes", (Action(calls=(Call("files_move", {"file": deep}),)), END)),
        ("move report to taxes", (Action(calls=(Call("files_move", {"file": [0] * 5_000_000}),)), END)),
        ("move report to taxes", (Action(calls=(Call("files_move", {"file": 10**200_000}),) * 3), END)),
        ("move report to taxes", (Action(calls=(Call("files_move", {"file": {1, 2}}),)), END)),
        ("move report to taxes", (Action(calls=(Call("files_move"),) * 100_000), END)),
    ]
    for query, solution in hostile:
        began = time.process_time()
        verdict = examined(query, *solution)
        assert time.process_time() - began < 1.0
        assert (verdict.status, len(verdict.evidence)) == ("discarded", 1)
        assert len(verdict.evidence[0]) < 200


@pytest.mark.parametrize("unit", ["report taxes ", "1,", "if ", "é\u0301", "<|", "\u200d", "A1b2_", "one hundred and "])
def test_a_query_as_long_as_may_be_is_examined_within_a_second(unit: str) -> None:
    query = ("move report to taxes. " + unit * 4_000)[:4_000]
    solution = (FIND, SEND, READ, MOVE, NOTE, END)
    began = time.process_time()
    examined(query, *solution)
    assert time.process_time() - began < 1.0
