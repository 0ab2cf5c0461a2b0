import dataclasses

import pytest
from records import call, task, trajectory

from cojax.explorer import GUIDANCE, make_context
from cojax.types import Check, Signal

A = task("mail amber to ana", [call("contacts_find", person="ana"), call("mail_send", address="box11", text="amber")])


def failing():
    plain = trajectory(A, 0, "mail_send", "mail_flag", "mail_send", "finish", episode="e7", failed=["mail_send"])
    return dataclasses.replace(plain, checks=(Check("sent ana", False), Check("finished", True)))


def test_a_context_tells_what_was_done_and_what_went_wrong() -> None:
    signal = Signal("boundary", A.id, "e7", "2 of 4 solved", ("contacts_find", "finish"))
    context = make_context(failing(), "boundary", signal, "finish")
    assert context.summary == (
        "'mail amber to ana': 4 turns (mail_send, mail_flag, mail_send, finish), finished, reward 0.00"
    )
    assert context.failure_cause == "checks failed: sent ana; mail_send(): error: no; mail_send(): error: no"
    assert context.instability_pattern == "2 of 4 solved"
    assert context.focus_patterns == ("contacts_find",)
    assert context.do_not_repeat == ("mail_send()",)
    assert context.objectives[1] == "vary contacts_find, which tell its successes from its failures"
    assert (context.task, context.kind, context.episode) == (A, "boundary", "e7")


def test_without_a_signal_the_focus_is_what_was_called() -> None:
    assert make_context(failing(), "trajectory", None, "finish").focus_patterns == ("mail_send", "mail_flag")


def test_of_a_policy_that_called_nothing_the_solution_is_the_focus() -> None:
    silent = dataclasses.replace(trajectory(A, 0), outcome="truncated")
    context = make_context(silent, "trajectory", None, "finish")
    assert context.focus_patterns == ("contacts_find", "mail_send")
    assert context.failure_cause == "ended as truncated"


def test_a_success_has_no_failure_cause() -> None:
    assert make_context(trajectory(A, 1, "mail_send", "finish"), "rare", None, "finish").failure_cause == ""


def test_each_signal_has_guidance_of_its_own_and_other_kinds_have_none() -> None:
    assert set(GUIDANCE) == {"forgetting", "boundary", "rare", "trajectory", "frontier", "posterior"}
    assert len({guidance.objectives for guidance in GUIDANCE.values()}) == 6
    with pytest.raises(ValueError, match="no guidance for contexts of kind 'unguided'"):
        make_context(failing(), "unguided", None, "finish")
