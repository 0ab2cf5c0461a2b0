"""A chat endpoint as an actor: what goes out, what comes back, and how it fails without ever becoming an action."""

import contextlib
import socket
import threading
import time

import pytest
from chat_endpoint import ScriptedEndpoint, refused, said, serving, solver
from counter_environment import CounterEnvironment
from patience import patience

from cojax import openai_api as calls
from cojax.environment import EngineError, OutOfContext, play
from cojax.rollout.collect import EpisodeCollector, Limits
from cojax.rollout.endpoint import (
    Complete,
    EndpointActors,
    make_assistant_message,
    make_chat_endpoint,
    make_environment_messages,
    parse_reply,
)
from cojax.types import Call, Message
from environments import load

KEY = "sk-0123456789-secret"
NEVER = threading.Event()
ASK = [{"role": "user", "content": "x"}]


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(calls, "FIRST_WAIT_S", 0.001)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def asked(server: ScriptedEndpoint, **settings) -> Complete:
    return make_chat_endpoint(server.url, "m", **{"timeout_s": 20.0, **settings})


def scripted(*answers):
    """One answer after another, the last for ever."""
    return lambda request, number: answers[min(number, len(answers) - 1)]


def test_the_desk_is_solved_by_who_knows_the_solutions():
    desk = load("desk")
    tasks = desk.tasks("eval", 6)
    with serving(solver(tasks)) as server:
        actors = EndpointActors(asked(server, temperature=0.25, max_tokens=77))
        groups = EpisodeCollector(actors, desk, Limits(concurrency=3)).collect(tasks, seed=(0,), label="eval")
    assert [group.score for group in groups] == [1.0] * 6
    first = next(request for request in server.requests if len(request["messages"]) > 1)
    assert first["path"] == "/v1/chat/completions"
    assert (first["model"], first["temperature"], first["max_tokens"]) == ("m", 0.25, 77)
    assert first["tools"][0]["type"] == "function"
    assistant, result = [message for message in first["messages"] if message["role"] in ("assistant", "tool")][:2]
    assert assistant["tool_calls"][0]["id"] == result["tool_call_id"] == "call_0"
    assert set(server.keys) == {f"Bearer {KEY}"}
    (trajectory,) = groups[0].trajectories
    assert trajectory.turns[0].action.calls == tasks[0].solution[0].calls
    assert (trajectory.turns[0].action_tokens, trajectory.turns[0].weights_version) == ((), -1)


@pytest.mark.parametrize(
    "failure",
    [
        refused(500), refused(429, retry_after="0"), refused(429, retry_after="soon"), refused(408),
        (200, {}, b"{no json"), (200, {}, {"choices": []}), (200, {}, {"choices": None}), (200, {}, {}),
        (200, {"Content-Type": "text/html"}, b"<html>gateway</html>"), (200, {}, {"choices": [{"message": None}]}),
    ],
)  # fmt: skip
def test_what_fails_once_is_asked_again(failure):
    with serving(scripted(failure, said("hello"))) as server:
        assert asked(server)(ASK, (), NEVER) == ("hello", ())
    assert len(server.requests) == 2


def test_a_wait_the_server_asks_for_is_kept_and_one_beyond_the_deadline_is_not_begun():
    with serving(scripted(refused(429, retry_after="0.2"), said("hello"))) as server:
        began = time.monotonic()
        assert asked(server)(ASK, (), NEVER) == ("hello", ())
        assert time.monotonic() - began >= 0.2
    with serving(scripted(refused(503, "busy", retry_after="60"))) as server:
        began = time.monotonic()
        with pytest.raises(EngineError, match=r"busy.*given up after 1 attempts"):
            asked(server, timeout_s=5.0)(ASK, (), NEVER)
        assert time.monotonic() - began < patience(4)


def test_an_endpoint_that_stays_down_is_an_engine_error_and_no_action():
    with serving(scripted(refused(500, "broken"))) as server:
        trajectory = play(
            CounterEnvironment(), CounterEnvironment().tasks("x", 1)[0],
            EndpointActors(asked(server, max_attempts=3))("a", ()),
        )  # fmt: skip
        assert (trajectory.outcome, trajectory.turns) == ("engine_error", ())
        assert "broken" in trajectory.error
        assert "3 attempts" in trajectory.error
    assert len(server.requests) == 3
    with pytest.raises(EngineError, match="APIConnectionError"):
        make_chat_endpoint(server.url, "m", max_attempts=2)(ASK, (), NEVER)


def test_a_stall_ends_at_the_deadline():
    ended = threading.Event()

    def stall(request, number):
        ended.wait(patience(10))
        return said("late")

    with serving(stall) as server:
        began = time.monotonic()
        with pytest.raises(EngineError, match="no reply within"):
            asked(server, timeout_s=0.2)(ASK, (), NEVER)
        assert time.monotonic() - began < patience(4)
        ended.set()


def test_a_reply_that_drips_ends_at_the_deadline():
    ended = threading.Event()

    def drip(connection):
        with contextlib.suppress(OSError):
            connection.recv(65_536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n")
            while not ended.wait(0.05):
                connection.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=lambda: drip(listening.accept()[0]), daemon=True).start()
        endpoint = make_chat_endpoint(
            f"http://127.0.0.1:{listening.getsockname()[1]}/v1", "m", timeout_s=0.2, max_attempts=1
        )
        began = time.monotonic()
        with pytest.raises(EngineError, match=r"no reply within 0\.[12]\d* s"):
            endpoint(ASK, (), NEVER)
        assert time.monotonic() - began < patience(4)
        ended.set()


def test_a_wrong_key_is_asked_once_for_all_and_never_told():
    with serving(scripted(refused(401, f"Incorrect API key provided: {KEY}"))) as server:
        endpoint = asked(server)
        for _ in range(3):
            with pytest.raises(EngineError, match="Check OPENAI_API_KEY, --endpoint and --endpoint_model") as caught:
                endpoint(ASK, (), NEVER)
            assert KEY not in str(caught.value)
    assert len(server.requests) == 1
    assert KEY not in repr(endpoint)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_neither_key_nor_task_goes_where_the_server_points_to(status):
    with serving(scripted(said("hello"))) as other:
        elsewhere = refused(status, Location=f"{other.url}/chat/completions")
        with serving(scripted(elsewhere)) as server, pytest.raises(EngineError):
            asked(server, max_attempts=2)(ASK, (), NEVER)
    assert other.requests == []


def test_messages_too_long_for_the_model_end_the_episode():
    answer = refused(400, "This model's maximum context length is 8192 tokens.")
    with serving(scripted(answer)) as server, pytest.raises(OutOfContext):
        asked(server)(ASK, (), NEVER)


def test_other_refusals_are_the_machinerys_and_asked_once():
    with serving(scripted(refused(400, "tools are not supported"))) as server:
        with pytest.raises(EngineError, match="tools are not supported"):
            asked(server)(ASK, (), NEVER)
        assert len(server.requests) == 1


def test_a_server_that_wants_the_other_name_for_the_limit_gets_it():
    wrong = refused(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
    with serving(scripted(wrong, said("hello"))) as server:
        assert asked(server, max_tokens=9)(ASK, (), NEVER) == ("hello", ())
    assert "max_tokens" not in server.requests[1]
    assert server.requests[1]["max_completion_tokens"] == 9


def test_nobody_waits_for_an_episode_that_was_given_up():
    with serving(scripted(refused(503, retry_after="15"))) as server:
        actors = EndpointActors(asked(server, timeout_s=60.0))
        environment = CounterEnvironment()
        actor = actors("s", (0,))
        threading.Timer(0.3, actors.release, ("s",)).start()
        began = time.monotonic()
        trajectory = play(environment, environment.tasks("x", 1)[0], actor)
        assert time.monotonic() - began < patience(10)
    assert trajectory.outcome == "engine_error"
    assert len(server.requests) == 1


def test_calls_are_read_from_what_was_asked_for_or_else_from_the_text():
    assert parse_reply(("so", (("1", "add", '{"by": 2}'), ("2", "add", "{}")))).calls == (
        Call("add", {"by": 2}), Call("add"),
    )  # fmt: skip
    assert parse_reply(('<tool_call>{"name": "add"}</tool_call>', ())).calls == (Call("add"),)
    assert parse_reply(("prose", ())).error == "no tool call found"


@pytest.mark.parametrize(
    ("written", "error"),
    [
        ('{"by": ', "tool call is not valid JSON"), ("[1]", "tool call is without an object of arguments"),
        ('{"by": NaN}', "tool call is not valid JSON"), ('{"a": ' * 40 + "1" + "}" * 40, "tool call is nested"),
    ],
)  # fmt: skip
def test_a_call_that_cannot_be_read_goes_back_as_text(written, error):
    reply = ("hm", (("1", "add", "{}"), ("2", "add", written)))
    action = parse_reply(reply)
    assert action.calls == ()
    assert action.error.startswith(error)
    entry, waiting = make_assistant_message(reply, action, 3)
    assert waiting == ()
    assert "tool_calls" not in entry
    assert written in entry["content"]
    assert make_environment_messages((Message("tool", "error"),), waiting) == [{"role": "user", "content": "error"}]


@pytest.mark.parametrize(
    ("messages", "results"),
    [
        (["a", "b"], ["a", "b"]), (["a"], ["a", ""]), ([], ["", ""]), (["a", "b", "c"], ["a", "b\nc"]),
    ],
)  # fmt: skip
def test_every_call_gets_a_result_whatever_the_environment_says(messages, results):
    told = make_environment_messages(
        [Message("tool", text) for text in messages] + [Message("user", "next")], ("1", "2")
    )
    assert [message["content"] for message in told[:2]] == results
    assert [message.get("tool_call_id") for message in told] == ["1", "2", None]
    assert told[2] == {"role": "user", "content": "next"}


def test_calls_without_ids_of_their_own_get_some():
    reply = ("", (("", "add", "{}"), ("", "add", "{}")))
    entry, waiting = make_assistant_message(reply, parse_reply(reply), 4)
    assert waiting == ("call_4_0", "call_4_1")
    assert [call["id"] for call in entry["tool_calls"]] == list(waiting)


def test_half_characters_come_back_as_text():
    with serving(scripted((200, {}, b'{"choices": [{"message": {"content": "a\\ud800b"}}]}'))) as server:
        assert asked(server)(ASK, (), NEVER) == ("a?b", ())


@pytest.mark.parametrize("url", ["localhost:8000", "", "ftp://x"])
def test_what_is_no_address_is_refused(url):
    with pytest.raises(ValueError, match="expected an address like http://HOST:PORT/v1"):
        make_chat_endpoint(url, "m")
    with pytest.raises(ValueError, match="--endpoint_model"):
        make_chat_endpoint("http://x/v1", "")
