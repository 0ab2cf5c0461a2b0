"""What a node sends is data: its size and depth are bounded, and it must match its record."""

import json

import pytest

from cojax.environment import EnvironmentFailure, EpisodeFailure, LimitExceeded, SandboxLost
from environments.cluster import host as messages
from environments.worker.wire import Malformed


def test_a_value_comes_back_with_what_its_call_counted():
    line = messages.encode_answer(7, 3, {"count": 2, "text": "\ud800ü"}, 0.25)
    assert messages.decode_reply(line, 7, 3) == (0.25, {"count": 2, "text": "\ud800ü"}, None)


@pytest.mark.parametrize("kind", [EnvironmentFailure, EpisodeFailure, LimitExceeded, SandboxLost, Malformed])
def test_a_failure_keeps_its_name_and_message(kind):
    counted, _, failure = messages.decode_reply(messages.encode_failure(7, kind("step: too late"), 1.5), 7, 3)
    assert (counted, str(failure)) == (1.5, "step: too late")
    # A malformed reply of a worker is a failure of its episode.
    assert type(failure) is (EpisodeFailure if kind is Malformed else kind)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"id":7,"counted":0.1,"value":1', "cannot be read"),
        (b"[7]", "cannot be read"),
        ("text", "not text of at most"),
        (None, "not text of at most"),
        (b'{"id":8,"counted":0.1,"value":1}', "a reply to call 8, expected one to 7"),
        (b'{"id":7,"counted":"soon","value":1}', "found str, expected float"),
        (b'{"id":7,"counted":0.1}', "neither a value nor a known failure"),
        (b'{"id":7,"counted":0.1,"value":1,"more":2}', "neither a value nor a known failure"),
        (b'{"id":7,"counted":0.1,"failure":"SystemExit","message":"x"}', "neither a value nor a known failure"),
        (b'{"id":7,"counted":0.1,"failure":"LimitExceeded","message":1}', "found int, expected str"),
        (b'{"id":7,"counted":0.1,"value":' + b"[" * 300 + b"]" * 300 + b"}", "nests deeper"),
        (b'{"id":7,"counted":0.1,"value":[' + b"1," * 1_000_001 + b"1]}", "more than 1,000,000 values"),
        (b'{"id":7,"counted":0.1,"value":"' + b"x" * 33 * 2**20 + b'"}', "at most 33,554,432 bytes"),
    ],
)
def test_a_reply_that_is_none_is_refused(line, said):
    with pytest.raises(Malformed, match=said):
        messages.decode_reply(line, 7, 3)


def test_replies_about_the_whole_environment_may_be_longer():
    tasks = ["x" * 10_000] * 3_500
    line = messages.encode_answer(1, 0, tasks, 0.0)
    assert messages.decode_reply(line, 1, 0)[1] == tasks
    with pytest.raises(LimitExceeded, match="the reply has"):
        messages.encode_answer(1, 5, tasks, 0.0)


def test_a_request_that_is_too_long_is_not_sent(monkeypatch):
    monkeypatch.setattr(messages, "MAX_REQUEST_BYTES", 1_000)
    assert json.loads(messages.encode_request(1, 2, "step", ["x" * 100]))["op"] == "step"
    with pytest.raises(EnvironmentFailure, match=r"step has 1,\d+ bytes, more than the 1,000"):
        messages.encode_request(1, 2, "step", ["x" * 1_000])


def test_progress_is_a_number_of_seconds_for_each_call():
    assert messages.decode_progress(b'{"counted":{"3":0.5,"12":2},"process":4}') == {"3": 0.5, "12": 2}
    for line in (b'{"counted":[1]}', b'{"counted":{"3":"x"}}', b"{}"):
        with pytest.raises(Malformed):
            messages.decode_progress(line)
