"""The chat client against a real HTTP server that misbehaves: deadlines, retries, budgets, journal, and the key."""

import collections
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
from chat_server import Answer, ChatServer, in_turn, says, serving, soon
from pydantic import BaseModel

from cojax.explorer.llm import chat_client
from cojax.explorer.llm.chat_client import ChatClient
from cojax.explorer.llm.chat_model import Budget, ChatFailure, structured
from cojax.explorer.llm.chat_settings import ChatSettings
from cojax.explorer.llm.journal import Journal
from cojax.types import Message

KEY = "sk-very-secret-0123456789"
HELLO = (Message("user", "hello"),)


class Word(BaseModel):
    word: str


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(chat_client, "_FIRST_WAIT", 0.01)


def client(server: ChatServer, journal: Journal | None = None, **settings) -> ChatClient:
    return ChatClient(ChatSettings(server.url, "m", **{"timeout": 5.0, "max_tokens": 50, **settings}), journal)


def reply(chat_model: ChatClient, budget: Budget | None = None, messages=HELLO, seed: int = 1, **settings):
    return chat_model.reply(messages, budget=budget or chat_model.begin(), seed=seed, place="0/test", **settings)


def failure(chat_model: ChatClient, budget: Budget | None = None, **settings) -> ChatFailure:
    with pytest.raises(ChatFailure) as caught:
        reply(chat_model, budget, **settings)
    return caught.value


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
        chat_model = client(server, timeout=0.8)
        assert reply(chat_model).text == "hi"
        assert server.requests == 3
        assert chat_model.figures()["retries"] == 2


@pytest.mark.parametrize(
    ("answer", "kind", "requests"),
    [
        (Answer("overloaded", status=500), "server", 3),
        (Answer("slow down", status=429), "rate", 3),
        (Answer(hang_up=True), "unreachable", 3),
        (Answer(raw=b"{}"), "malformed", 3),
        (Answer("late", stall=5.0), "timeout", 3),
        # Each byte comes within the timeout, all of them never would.
        (Answer("x" * 50, drip=0.1), "timeout", 3),
        (Answer(raw=b"x" * (9 * 2**20)), "malformed", 3),
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
        chat_model = client(server, timeout=0.3, attempts=3)
        began = time.monotonic()
        found = failure(chat_model)
        assert (found.kind, server.requests) == (kind, requests)
        assert str(found).startswith(f"{kind}: ")
        assert time.monotonic() - began < 3
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
        chat_model = ChatClient(ChatSettings(url, "m", timeout=0.4, attempts=1, max_tokens=50))
        began = time.monotonic()
        assert failure(chat_model).kind == "timeout"
        assert time.monotonic() - began < 2
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
    assert all("failed: server: HTTP 503" in line and "going on without" in line for line in said)


def test_an_endpoint_that_is_down_for_long_is_given_up() -> None:
    clock = itertools.count(0.0, 4.0)  # seconds between failures
    with serving(in_turn(Answer("down", status=500))) as server:
        chat_model = ChatClient(ChatSettings(server.url, "m", timeout=5.0, attempts=1), clock=lambda: next(clock))
        budget = chat_model.begin()
        for seed in range(16):
            assert "one after another" not in str(failure(chat_model, budget, seed=seed))
        found = failure(chat_model, budget, seed=16)
        assert "server: 16 calls failed one after another, for 60 s, the last by: HTTP 500: down" in str(found)
        assert server.requests == 16
        chat_model.begin()
        failure(chat_model)
        assert server.requests == 17


def test_many_that_fail_at_once_are_one_moment_s_trouble() -> None:
    clock = itertools.chain([100.0] * 20, [104.0] * 5, [200.0] * 9)
    answers = [Answer("down", status=500)] * 25 + [Answer("hi")] + [Answer("down", status=500)]
    with serving(in_turn(*answers)) as server:
        chat_model = ChatClient(ChatSettings(server.url, "m", timeout=5.0, attempts=1), clock=lambda: next(clock))
        whole = chat_model.begin()
        with concurrent.futures.ThreadPoolExecutor(8) as pool, whole.shared(25) as budgets:
            kinds = list(pool.map(lambda n: failure(chat_model, budgets[n], seed=n).kind, range(25)))
        assert kinds == ["server"] * 25
        assert reply(chat_model, whole, seed=25).text == "hi"
        # It counts from there.
        for seed in range(26, 35):
            failure(chat_model, whole, seed=seed)
        assert server.requests == 35


def test_a_schema_or_seed_that_is_not_known_is_left_out_for_good() -> None:
    def script(body, server):
        if "response_format" in body:
            return Answer("unknown field response_format", status=400)
        if "seed" in body:
            return Answer("Unrecognized request argument: seed", status=400)
        return says({"word": "hi"})

    with serving(script) as server:
        chat_model = client(server)
        budget = chat_model.begin()
        for seed in (1, 2):
            assert structured(chat_model, HELLO, Word, budget=budget, seed=seed, place="p").word == "hi"
        assert server.requests == 4
        assert budget.requests == 4_000 - 4
        assert "response_format" not in server.bodies[-1]


def test_a_request_refused_for_its_content_is_not_blamed_on_the_schema_for_good() -> None:
    def script(body, server):
        return Answer("bad words", status=400) if "bad" in body["messages"][0]["content"] else says({"word": "hi"})

    with serving(script) as server:
        chat_model = client(server)
        budget = chat_model.begin()
        with pytest.raises(ChatFailure, match="refused: HTTP 400: bad words"):
            structured(chat_model, (Message("user", "bad"),), Word, budget=budget, seed=1, place="p")
        assert structured(chat_model, HELLO, Word, budget=budget, seed=1, place="p").word == "hi"
        assert server.bodies[-1]["response_format"]["json_schema"]["schema"]["required"] == ["word"]


def test_one_stray_refusal_does_not_turn_structured_output_off() -> None:
    with serving(in_turn(Answer("bad gateway request", status=400), says({"word": "hi"}))) as server:
        chat_model = client(server)
        budget = chat_model.begin()
        for seed in range(4):
            assert structured(chat_model, HELLO, Word, budget=budget, seed=seed, place="p").word == "hi"
        assert ["response_format" in body for body in server.bodies] == [True, False, True, True, True]


def test_refusals_that_say_nothing_are_believed_once_they_come_again_and_doubted_after_a_success() -> None:
    def script(body, server):
        refuses = "response_format" in body and server.requests not in (3, 4)
        return Answer("bad", status=400) if refuses else says({"word": "hi"})

    with serving(script) as server:
        chat_model = client(server)
        budget = chat_model.begin("0/1")
        for seed in range(6):
            assert structured(chat_model, HELLO, Word, budget=budget, seed=seed, place="p").word == "hi"
        # Refused; taken twice; refused twice in a row, and left out from then on.
        sent = ["response_format" in body for body in server.bodies]
        assert sent == [True, False, True, True, True, False, True, False, False]
        # Another evolution finds out anew.
        structured(chat_model, HELLO, Word, budget=chat_model.begin("0/2"), seed=7, place="p")
        assert "response_format" in server.bodies[9]


def test_what_was_left_out_is_tried_again_ever_more_rarely() -> None:
    knows = threading.Event()

    def script(body, server):
        refuses = "response_format" in body and not knows.is_set()
        return Answer("response_format is not known", status=400) if refuses else says({"word": "hi"})

    def tried(server: ChatServer) -> list[int]:
        return [place for place, body in enumerate(server.bodies) if "response_format" in body]

    with serving(script) as server:
        chat_model = client(server)
        budget = chat_model.begin()
        for seed in range(60):
            structured(chat_model, HELLO, Word, budget=budget, seed=seed, place="p")
        assert tried(server) == [0, 18]
        knows.set()
        for seed in range(60, 120):
            structured(chat_model, HELLO, Word, budget=budget, seed=seed, place="p")
        # From where it is taken it is sent with every request.
        assert tried(server)[2:] == list(range(84, server.requests))


def test_a_part_that_is_taken_after_all_is_sent_again() -> None:
    gate = threading.Event()

    def script(body, server):
        if "slow" in body["messages"][0]["content"]:
            gate.wait(5)
        elif "response_format" in body and server.requests <= 2:
            return Answer("response_format is not known", status=400)
        return says({"word": "hi"})

    with serving(script) as server, concurrent.futures.ThreadPoolExecutor(1) as pool:
        chat_model = client(server)
        with chat_model.begin().shared(2) as budgets:
            slow = pool.submit(
                structured, chat_model, (Message("user", "slow"),), Word, budget=budgets[0], seed=1, place="p"
            )  # fmt: skip
            soon(lambda: server.requests == 1)
            for seed in (2, 3):
                structured(chat_model, HELLO, Word, budget=budgets[1], seed=seed, place="p")
            assert "response_format" not in server.bodies[-1]
            gate.set()
            slow.result()
            structured(chat_model, HELLO, Word, budget=budgets[1], seed=4, place="p")
            assert "response_format" in server.bodies[-1]


@pytest.mark.parametrize(
    "text",
    [
        '{"word": "hi"}',
        '```json\n{"word": "hi"}\n```',
        'Sure! Here it is: {"word": "hi"} Anything else?',
        '<think>{"word": "no"}</think>{"word": "hi"}',
        '<tool_call>\n{"word": "hi"}\n</tool_call>',
    ],
)
def test_json_is_found_where_models_put_it(text: str) -> None:
    with serving(in_turn(Answer(text))) as server:
        chat_model = client(server)
        assert structured(chat_model, HELLO, Word, budget=chat_model.begin(), seed=1, place="p").word == "hi"
        assert server.requests == 1


BAD = [
    (Answer(""), "empty"),
    (Answer(None), "empty"),
    (Answer(None, tool_calls=[{"function": {"name": "rm"}}]), "empty"),
    (Answer("no json here"), "invalid"),
    (Answer('{"word": '), "invalid"),
    (Answer('{"word": 3}'), "invalid"),
    (Answer('{"other": "hi"}'), "invalid"),
    (Answer('{"word": NaN}'), "invalid"),
    (Answer('{"word": 1e999}'), "invalid"),
    (Answer('{"word": "\\ud800"}'), "invalid"),
    (Answer('{"word": "hi", "x": ' + "[" * 50 + "]" * 50 + "}"), "invalid"),
    (Answer("[" * 100_000), "invalid"),
    (Answer('{"word": "hi"}', finish="length"), "truncated"),
]


@pytest.mark.parametrize(("answer", "kind"), BAD)
def test_a_reply_that_cannot_be_used_may_be_repaired_once(answer: Answer, kind: str) -> None:
    with serving(in_turn(answer, says({"word": "hi"}))) as server:
        chat_model = client(server)
        assert structured(chat_model, HELLO, Word, budget=chat_model.begin(), seed=1, place="p").word == "hi"
        assert f"({kind})" in server.bodies[1]["messages"][-1]["content"]
    with serving(in_turn(answer)) as server:
        chat_model = client(server)
        with pytest.raises(ChatFailure) as caught:
            structured(chat_model, HELLO, Word, budget=chat_model.begin(), seed=1, place="p")
        assert (caught.value.kind, server.requests) == (kind, 2)


@pytest.mark.parametrize(
    "usage", [None, {}, {"prompt_tokens": "many"}, {"prompt_tokens": -5, "completion_tokens": True}]
)
def test_tokens_that_are_not_told_are_estimated_from_above(usage) -> None:
    with serving(in_turn(Answer("four words are here", usage=usage))) as server:
        chat_model = client(server)
        budget = chat_model.begin()
        reply(chat_model, budget)
        spent = 2_000_000 - budget.tokens
        assert len(b"hello") + len(b"four words are here") < spent < 200


def test_a_request_that_could_exceed_the_budget_is_not_sent() -> None:
    with serving(in_turn(Answer("hi", usage={"prompt_tokens": 10, "completion_tokens": 50}))) as server:
        chat_model = client(server, max_tokens_per_evolution=300)
        budget = chat_model.begin()
        with pytest.raises(ChatFailure, match=r"budget: the request may take .*raise llm.max_tokens_per_evolution"):
            collections.deque(reply(chat_model, budget, seed=seed) for seed in range(100))
        assert 1 <= server.requests <= 300 // 60
        assert budget.tokens >= 0


def test_requests_are_counted_with_their_retries() -> None:
    with serving(in_turn(Answer("down", status=500))) as server:
        chat_model = client(server, attempts=10, max_requests_per_evolution=3)
        assert failure(chat_model).kind == "budget"
        assert server.requests == 3


def test_what_was_lost_on_the_way_is_paid_as_if_it_had_come() -> None:
    with serving(in_turn(Answer("late", stall=3.0))) as server:
        chat_model = client(server, timeout=0.1, attempts=2)
        budget = chat_model.begin()
        failure(chat_model, budget)
        lost = chat_model.figures()["tokens_lost"]
        assert lost == 2_000_000 - budget.tokens > 2 * 50


def test_the_time_of_an_evolution_ends() -> None:
    with serving(in_turn(Answer("late", stall=3.0))) as server:
        chat_model = client(server, deadline=0.3, timeout=5.0)
        budget = chat_model.begin()
        began = time.monotonic()
        assert failure(chat_model, budget).kind in ("timeout", "deadline")
        assert failure(chat_model, budget).kind == "deadline"
        assert time.monotonic() - began < 2


def test_no_more_go_at_once_than_allowed() -> None:
    with serving(in_turn(Answer("hi", stall=0.05))) as server:
        chat_model = client(server, concurrency=3)
        with concurrent.futures.ThreadPoolExecutor(12) as pool, chat_model.begin().shared(12) as budgets:
            list(pool.map(lambda n: reply(chat_model, budgets[n], seed=n), range(12)))
        assert server.requests == 12
        assert server.most_at_once == 3


def test_shares_hold_the_whole_and_give_back_what_they_have_left() -> None:
    budget = Budget(1_000, 100, least=(100, 10))
    with budget.shared(3) as parts:
        assert [(part.tokens, part.requests) for part in parts] == [(333, 33)] * 3
        assert (budget.tokens, budget.requests) == (1, 1)
        parts[0].pay(33, 3)
    assert (budget.tokens, budget.requests) == (967, 97)
    with budget.shared(20) as parts:
        assert [part.tokens for part in parts] == [107] * 9 + [0] * 11
    assert budget.tokens == 967


def test_a_purse_that_is_closed_ends_every_share_of_it_at_the_next_call() -> None:
    with serving(in_turn(Answer("hi"))) as server:
        chat_model = client(server)
        whole = chat_model.begin()
        with whole.shared(2) as halves, halves[0].shared(2) as quarters:
            reply(chat_model, quarters[0])
            halves[1].close()
            reply(chat_model, quarters[1], seed=2)
            assert failure(chat_model, halves[1], seed=3).kind == "stopped"
            whole.close()
            for budget in (*quarters, halves[0], whole):
                assert failure(chat_model, budget, seed=4).kind == "stopped"
        assert server.requests == 2
        reply(chat_model, chat_model.begin(), seed=5)


def test_who_waits_for_another_attempt_hears_at_once_that_the_purse_is_closed() -> None:
    with serving(in_turn(Answer("later", status=429, headers={"Retry-After": "30"}))) as server:
        chat_model = client(server)
        budget = chat_model.begin()
        threading.Timer(0.2, budget.close).start()
        began = time.monotonic()
        with budget.shared(1) as shares:
            assert failure(chat_model, shares[0]).kind == "stopped"
        assert time.monotonic() - began < 5
        assert server.requests == 1


def test_a_finished_call_is_never_made_again(tmp_path) -> None:
    with serving(in_turn(Answer("down", status=500), Answer("hi"))) as server:
        path = tmp_path / "journal.jsonl"
        first = client(server, Journal(path))
        paid = first.begin()
        assert reply(first, paid).text == "hi"
        with open(path, "ab") as file:
            file.write(b'{"key":"torn')
        again = client(server, Journal(path))
        budget = again.begin()
        assert reply(again, budget).text == "hi"
        assert server.requests == 2
        # It costs what it cost, so that the same budget runs out at the same place.
        assert (budget.tokens, budget.requests) == (paid.tokens, paid.requests)
        assert again.figures()["replayed"] == 1
        assert again.figures()["requests"] == 0
        reply(again, budget, seed=2)
        reply(again, budget, messages=(Message("user", "hello "),))
        reply(again, budget, temperature=0.0)
        assert server.requests == 5
        (record, *_) = Journal(path).read("0/test")
        assert record["sent"]["messages"] == [{"role": "user", "content": "hello"}]
        assert (record["text"], record["usage"], record["requests"]) == ("hi", [100, 10], 2)


def accounts(chat_model: ChatClient, budget: Budget) -> tuple[int, int]:
    """Tokens and requests that are paid; the figures add up to the tokens."""
    figures = chat_model.figures()
    paid = chat_model.settings.max_tokens_per_evolution - budget.tokens
    assert figures["tokens_in"] + figures["tokens_out"] + figures["tokens_lost"] == paid
    return paid, chat_model.settings.max_requests_per_evolution - budget.requests


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Answer("late", stall=3.0), "timeout"),
        (Answer("down", status=500), "server"),
        (Answer(raw=b"{}"), "malformed"),
        (Answer("no", status=400), "refused"),
        (Answer("the maximum context length is 8", status=400), "too_long"),
    ],
)
def test_an_evolution_that_goes_on_pays_for_what_failed_and_fails_alike(answer, kind, tmp_path) -> None:
    path = tmp_path / "journal.jsonl"
    with serving(in_turn(answer)) as server:
        first = client(server, Journal(path), timeout=0.1, attempts=2)
        budget = first.begin("0/5")
        assert failure(first, budget).kind == kind
        paid = accounts(first, budget)
        assert paid[1] == server.requests
    (record,) = Journal(path).read("0/test")
    assert (record["kind"], record["text"], record["tokens"], record["requests"]) == (kind, None, *paid)
    with serving(in_turn(Answer("hi"))) as server:
        again = client(server, Journal(path))
        budget = again.begin("0/5")
        assert failure(again, budget).kind == kind
        assert accounts(again, budget) == paid
        assert server.requests == 0
        assert reply(again, budget, seed=2).text == "hi"
        # Another evolution knows nothing of it, and the first one goes on as before.
        budget = again.begin("0/10")
        assert reply(again, budget).text == "hi"
        assert accounts(again, budget) == (110, 1)
        third = client(server, Journal(path))
        budget = third.begin("0/5")
        assert failure(third, budget).kind == kind
        assert accounts(third, budget) == paid


@pytest.mark.parametrize("end", ["down", "reopened"])
def test_what_failed_before_an_evolution_was_given_up_is_tried_again_on_top_of_what_it_cost(end, tmp_path) -> None:
    path = tmp_path / "journal.jsonl"
    clock = itertools.count(0.0, 10.0)
    with serving(in_turn(Answer("late", stall=3.0))) as server:
        settings = ChatSettings(server.url, "m", max_tokens=50, timeout=0.05, attempts=1)
        first = ChatClient(settings, Journal(path), clock=lambda: next(clock))
        budget = first.begin("0/initial")
        for seed in range(8 if end == "down" else 3):
            failure(first, budget, seed=seed)
        lost = accounts(first, budget)
        if end == "reopened":
            first.reopen()
    for seeds in (8 if end == "down" else 3,) * 2:  # the second time from the journal
        with serving(in_turn(Answer("hi"))) as server:
            again = client(server, Journal(path))
            budget = again.begin("0/initial")
            for seed in range(seeds):
                assert reply(again, budget, seed=seed).text == "hi"
            assert accounts(again, budget) == (lost[0] + 110 * seeds, lost[1] + seeds)


@pytest.mark.parametrize(("status", "kind"), [(401, "unauthorised"), (500, "budget")])
def test_failures_that_say_nothing_of_the_call_are_charged_and_tried_again(status, kind, tmp_path) -> None:
    path = tmp_path / "journal.jsonl"
    with serving(in_turn(Answer("no", status=status))) as server:
        first = client(server, Journal(path), attempts=5, max_requests_per_evolution=3)
        budget = first.begin("0/5")
        assert failure(first, budget).kind == kind
        _, sent = accounts(first, budget)
        assert sent == server.requests
    with serving(in_turn(Answer("hi"))) as server:
        again = client(server, Journal(path), max_requests_per_evolution=3)
        budget = again.begin("0/5")
        if kind == "budget":  # nothing is left of it, in whatever process
            assert failure(again, budget).kind == kind
            assert server.requests == 0
        else:
            assert reply(again, budget).text == "hi"
            assert accounts(again, budget)[1] == sent + 1
        more = client(server, Journal(path), max_requests_per_evolution=9)
        assert reply(more, more.begin("0/5")).text == "hi"


def test_what_an_attempt_lost_is_among_the_figures_when_the_call_is_replayed(tmp_path) -> None:
    path = tmp_path / "journal.jsonl"
    with serving(in_turn(Answer(raw=b"{}"), Answer("hi"))) as server:
        first = client(server, Journal(path))
        budget = first.begin("0/5")
        reply(first, budget)
        paid = accounts(first, budget)
        again = client(server, Journal(path))
        budget = again.begin("0/5")
        reply(again, budget)
        assert accounts(again, budget) == paid
        assert server.requests == 2


def test_an_endpoint_that_ignores_the_most_tokens_ends_the_budget_and_not_more() -> None:
    huge = Answer("word " * 100_000, usage={"prompt_tokens": 10, "completion_tokens": 100_000})
    with serving(in_turn(huge)) as server:
        chat_model = client(server, max_tokens_per_evolution=50_000)
        budget = chat_model.begin()
        with budget.shared(2) as shares:
            reply(chat_model, shares[0])
            assert failure(chat_model, shares[0], seed=2).kind == "budget"
        assert failure(chat_model, budget, seed=3).kind == "budget"
        assert server.requests == 1
        accounts(chat_model, budget)


def test_a_damaged_record_is_paid_again(tmp_path) -> None:
    with serving(in_turn(Answer("hi"))) as server:
        path = tmp_path / "journal.jsonl"
        reply(client(server, Journal(path)))
        line = path.read_text()
        path.write_text(line[:60] + "#" + line[61:-3] + "\n")
        assert reply(client(server, Journal(path))).text == "hi"
        assert server.requests == 2


def test_the_same_call_at_once_is_made_once() -> None:
    with serving(in_turn(Answer("hi", stall=0.1))) as server:
        chat_model = client(server)
        with concurrent.futures.ThreadPoolExecutor(6) as pool, chat_model.begin().shared(6) as budgets:
            assert {r.text for r in pool.map(lambda n: reply(chat_model, budgets[n]), range(6))} == {"hi"}
        assert server.requests == 1


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
    bomb = gzip.compress(b"x" * (64 * 2**20))
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
        ({"base_url": "localhost:1"}, "expected an address"),
        ({"base_url": "http://user:pass@host/v1"}, "holds credentials or a query; leave them out"),
        ({"model": ""}, "llm.model is empty; name the model"),
        ({"timeout": 0.0}, "llm.timeout is 0.0; expected seconds above 0"),
        ({"attempts": 0}, "llm.attempts is 0; expected at least 1"),
        ({"max_tokens_per_evolution": 0}, "expected at least 1"),
        ({"temperature": float("nan")}, "llm.temperature is nan"),
    ],
)
def test_settings_that_cannot_work_are_named(settings, message) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        ChatSettings(**{"base_url": "http://h/v1", "model": "m", **settings})
    assert "pass@" not in str(caught.value)
