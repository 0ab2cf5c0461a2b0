"""A report of calls is read as far as an honest worker could have written it."""

import json

import pytest

from cojax.environment import LimitExceeded
from cojax.types import Call, Message, Observation
from environments.appworld import report


def observation(*records: object, text: str = "") -> Observation:
    return Observation((Message("user", "printed"), Message("calls", text or json.dumps(records))))


RECORD = {"app": "venmo", "api": "show_account", "arguments": {"a": 1}, "digest": "0123456789abcdef"}


def test_calls_are_read_with_what_was_printed():
    printed, calls, size = report.read_report(observation(RECORD))
    assert printed == "printed"
    assert calls == [Call("venmo.show_account", {"arguments": {"a": 1}, "digest": "0123456789abcdef"})]
    assert size == 94


def test_numbers_that_json_lacks_are_words():
    text = '[{"app": "a", "api": "b", "arguments": {"a": [NaN, -Infinity, 1e999]}, "digest": ""}]'
    _, (call,), _ = report.read_report(observation(text=text))
    assert call.arguments["arguments"] == {"a": ["NaN", "-Infinity", "1e999"]}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps([RECORD | {"api": "\ud800"}]),
        json.dumps([RECORD | {"app": "venmo\n"}]),
        json.dumps([RECORD | {"app": "venmo.x"}]),
        json.dumps([RECORD | {"app": ""}]),
        json.dumps([RECORD | {"api": "a" * 61}]),
        json.dumps([RECORD | {"arguments": []}]),
        json.dumps([RECORD | {"arguments": {"a": json.loads("[" * 32 + "]" * 32)}}]),
        "[" + json.dumps(RECORD)[:-1] + ', "more": ' + "1" * 5_000 + "}]",
        "[" * 100_000,
        "5",
        "[{}]",
    ],
    ids=range(11),
)
def test_a_record_that_no_honest_worker_writes_is_the_steps_failure(text):
    with pytest.raises(LimitExceeded, match="the reply to step is none"):
        report.read_report(observation(text=text))


@pytest.mark.parametrize("text", ["[" + "{}," * 200_000 + "{}]", "[" + "0," * 400_001 + "0]", '"' + "x" * 2**22 + '"'])
def test_a_large_report_is_refused_before_it_is_parsed(text, monkeypatch):
    monkeypatch.setattr(report, "json", None)
    with pytest.raises(LimitExceeded, match="holds at most 4,194,304 bytes and 400,000 values"):
        report.read_report(observation(text=text))
