"""The chat client against a real HTTP server that misbehaves: deadlines, retries, settings, and the key."""

import concurrent.futures
import contextlib
import email.utils
import gzip
import itertools
import json
import logging
import socket
import threading
import time

import pytest
from chat_calls import KEY, client, failure, reply
from chat_server import Answer, in_turn, serving
from patience import patience

from cojax.explorer.llm.chat_client import ChatClient
from cojax.explorer.llm.chat_model import ChatFailure, Journal
from cojax.settings.tree import LLMSettings
from cojax.types import Message


def test_a_reply_is_what_the_endpoint_said_and_costs_what_it_says() -> None:
    with serving(in_turn(Answer("hi"))) as server:
        chat_model = client(server, price_in=10.0, price_out=100.0)
        budget = chat_model.begin()
        assert reply(chat_model, budget).text == "hi"
        assert server.paths == ["/v1/chat/completions"]
        assert server.headers[0]["authorization"] == f"Bearer {KEY}"
        assert server.bodies[0] == {
            "model": "m", "messages": [{"role": "user", "content": "hello"}], "temperature": 0.7, "max_tokens": 50,
            "seed": 1,
        }  # fmt: skip
        assert budget.tokens == 2_000_000 - 110
        assert budget.requests == 4_000 - 1
        assert chat_model.figures() == {
            "calls": 1, "replayed": 0, "requests": 1, "retries": 0, "tokens_in": 100, "tokens_out": 10,
            "tokens_lost": 0, "cost": pytest.approx(0.002), "failures": {},
        }  # fmt: skip


@pytest.mark.parametrize(
    "answer",
    [
        Answer("overloaded", status=500),
        Answer("slow down", status=429),
        Answer("slow down", status=429, headers={"Retry-After": "0.05"}),
        Answer("busy", status=503, headers={"Retry-After": "nonsense"}),
        Answer(hang_up=True),
        Answer(raw=b"{not json"),
        Answer(raw=b"[]"),
        Answer(raw=b'{"choices": []}'),
        Answer(raw=b'{"choices": [{"message": {"content": 7}}]}'),
        Answer(raw=b'{"choices": [{"message": null}]}'),
        Answer(raw=b"[" * 100_000),
        Answer(raw=b"\xff\xfe"),
        Answer("late", stall=2.0),
    ],
)
def test_what_passes_is_tried_again(answer: Answer) -> None:
    with serving(in_turn(answer, answer, Answer("hi"))) as server:
        chat_model = client(server, timeout=0.4)
        assert reply(chat_model).text == "hi"
        assert server.requests == 3
        assert chat_model.figures()["retries"] == 2


@pytest.mark.parametrize(
    ("answer", "kind", "requests"),
    [
        (Answer("overloaded", status=500), "server", 2),
        (Answer("slow down", status=429), "rate", 2),
        (Answer(hang_up=True), "unreachable", 2),
        (Answer(raw=b"{}"), "malformed", 2),
        (Answer("late", stall=5.0), "timeout", 2),
        # Each byte comes within the timeout, all of them never would.
        (Answer("x" * 50, drip=0.1), "timeout", 2),
        (Answer(raw=b"x" * (9 * 2**20)), "malformed", 2),
        (Answer("no", status=400), "refused", 1),
        (Answer("the maximum context length is 8 tokens", status=400), "too_long", 1),
        (Answer("who are you", status=401), "unauthorised", 1),
        (Answer("no such model", status=404), "unauthorised", 1),
        # An hour is no time to sleep.
        (Answer("later", status=429, headers={"Retry-After": "3600"}), "rate", 1),
        (Answer("later", status=429, headers={"Retry-After": "1e999"}), "rate", 1),
        (Answer("later", status=503, headers={"Retry-After": email.utils.formatdate(4e9)}), "server", 1),
    ],
)
def test_what_does_not_pass_is_a_failure_of_its_kind_and_never_content(answer, kind, requests) -> None:
    with serving(in_turn(answer)) as server:
        chat_model = client(server, timeout=0.3, attempts=2)
        began = time.monotonic()
        found = failure(chat_model)
        assert (found.kind, server.requests) == (kind, requests)
        assert str(found).startswith(f"{kind}: ")
        assert time.monotonic() - began < patience(3)
        assert chat_model.figures()["failures"] == {kind: 1}
        assert list(chat_model.journal.read()) == []


def test_a_reply_whose_head_never_ends_is_given_up() -> None:
    over = threading.Event()

    def dribble(listener: socket.socket) -> None:
        with contextlib.suppress(OSError), listener.accept()[0] as peer:
            peer.sendall(b"HTTP/1.1 200 OK\r\nX-Filler: ")
            while not over.wait(0.05):
                peer.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=dribble, args=(listener,), daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        chat_model = ChatClient(LLMSettings(url, "m", timeout=0.2, max_tokens=50), attempts=1)
        began = time.monotonic()
        assert failure(chat_model).kind == "timeout"
        assert time.monotonic() - began < patience(2)
        over.set()


def test_nobody_listens() -> None:
    with serving(in_turn(Answer())) as server:
        pass
    assert failure(client(server, attempts=2)).kind == "unreachable"


def test_a_wrong_key_is_not_tried_on_every_call() -> None:
    with serving(in_turn(Answer("who are you", status=401))) as server:
        chat_model = client(server)
        budget = chat_model.begin()
        for seed in range(5):
            assert failure(chat_model, budget, seed=seed).kind == "unauthorised"
        assert server.requests == 1


def test_the_first_call_that_fails_in_an_evolution_is_said_aloud(caplog: pytest.LogCaptureFixture) -> None:
    with serving(lambda body, count: Answer(status=503)) as server:
        chat_model = client(server, attempts=1)
        for _ in range(2):
            budget = chat_model.begin()
            for seed in range(3):
                assert failure(chat_model, budget, seed=seed).kind == "server"
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == 2
    assert all("failed: server: HTTP 503" in line and "continuing without it" in line for line in said)


def test_an_endpoint_that_is_down_for_long_is_given_up() -> None:
    clock = itertools.count(0.0, 4.0)  # seconds between failures
    with serving(in_turn(Answer("down", status=500))) as server:
        chat_model = ChatClient(LLMSettings(server.url, "m", timeout=5.0), attempts=1, read_clock=lambda: next(clock))
        budget = chat_model.begin()
        for seed in range(16):
            assert "in a row" not in str(failure(chat_model, budget, seed=seed))
        found = failure(chat_model, budget, seed=16)
        assert "server: 16 calls failed in a row, over 60 s, the last with: HTTP 500: down" in str(found)
        assert server.requests == 16
        chat_model.begin()
        failure(chat_model)
        assert server.requests == 17


def test_many_that_fail_at_once_are_one_moment_s_trouble() -> None:
    clock = itertools.chain([100.0] * 20, [104.0] * 5, [200.0] * 9)
    answers = [Answer("down", status=500)] * 25 + [Answer("hi")] + [Answer("down", status=500)]
    with serving(in_turn(*answers)) as server:
        chat_model = ChatClient(LLMSettings(server.url, "m", timeout=5.0), attempts=1, read_clock=lambda: next(clock))
        whole = chat_model.begin()
        with concurrent.futures.ThreadPoolExecutor(8) as pool, whole.split(25) as budgets:
            kinds = list(pool.map(lambda n: failure(chat_model, budgets[n], seed=n).kind, range(25)))
        assert kinds == ["server"] * 25
        assert reply(chat_model, whole, seed=25).text == "hi"
        # It counts from there.
        for seed in range(26, 35):
            failure(chat_model, whole, seed=seed)
        assert server.requests == 35


def test_no_more_go_at_once_than_allowed() -> None:
    with serving(in_turn(Answer("hi", stall=0.05))) as server:
        chat_model = client(server, concurrency=3)
        with concurrent.futures.ThreadPoolExecutor(12) as pool, chat_model.begin().split(12) as budgets:
            list(pool.map(lambda n: reply(chat_model, budgets[n], seed=n), range(12)))
        assert server.requests == 12
        assert server.max_at_once == 3


@pytest.mark.parametrize("status", [200, 400, 401, 429, 500])
def test_the_key_is_nowhere(status, tmp_path, caplog) -> None:
    said = f"Incorrect API key provided: {KEY}. You can find your key at \\u0022{KEY}\\u0022"
    with serving(in_turn(Answer(said, status=status))) as server, caplog.at_level(logging.DEBUG):
        chat_model = client(server, Journal(tmp_path / "journal.jsonl"), attempts=2)
        text = ""
        try:
            text = reply(chat_model).text
        except ChatFailure as found:
            logging.getLogger("cojax").info("it failed", exc_info=True)
            text = f"{found!r} {found.reason} {found.__cause__}"
        assert text
        settings = f"{chat_model!r} {chat_model.settings!r} {vars(chat_model.settings)} {chat_model.figures()}"
        journal = (tmp_path / "journal.jsonl").read_text() if status == 200 else ""
        for place in (text, settings, journal, caplog.text):
            assert KEY not in place


def test_a_key_is_taken_without_the_line_end_it_was_pasted_with(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(in_turn(Answer("hi"))) as server:
        monkeypatch.setenv("OPENAI_API_KEY", f"{KEY}\n")
        assert reply(client(server)).text == "hi"
        assert server.headers[0]["authorization"] == f"Bearer {KEY}"
        for wrong in ("sk-\x01control-0123", "sk-schlüssel-0123"):
            monkeypatch.setenv("OPENAI_API_KEY", wrong)
            with pytest.raises(ValueError, match="OPENAI_API_KEY holds characters") as caught:
                client(server)
            assert wrong not in str(caught.value)


def test_compressed_replies_are_bounded_too() -> None:
    bomb = gzip.compress(b"x" * 2**20) * 64
    with serving(in_turn(Answer(raw=bomb, headers={"Content-Encoding": "gzip"}))) as server:
        assert failure(client(server, attempts=1)).kind == "malformed"


def test_text_that_is_none_is_sent_as_text() -> None:
    with serving(in_turn(Answer("hi \ud800"))) as server:
        chat_model = client(server)
        assert reply(chat_model, messages=(Message("user", "half \ud800 a pair"),)).text == "hi ?"
        assert json.dumps(server.bodies[0]["messages"][0]["content"]) == '"half ? a pair"'


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"base_url": ""}, r"llm.base_url is ''; expected an address like http://HOST:PORT/v1"),
        ({"model": ""}, "llm.model is empty; name the model"),
    ],
)
def test_an_address_that_cannot_work_is_named(settings, message) -> None:
    with pytest.raises(ValueError, match=message):
        ChatClient(LLMSettings(**{"base_url": "http://h/v1", "model": "m", **settings}))
