"""Calls that the journal keeps: none is paid twice, and what failed fails again."""

import concurrent.futures
import itertools
import os

import pytest
from chat_calls import accounts, client, failure, reply
from chat_server import Answer, in_turn, serving

from cojax.explorer.llm.chat_client import ChatClient
from cojax.explorer.llm.chat_model import Journal, make_record
from cojax.settings.tree import LLMSettings
from cojax.storage.checksums import CheckedLog
from cojax.storage.files import StorageError
from cojax.types import Message


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
        settings = LLMSettings(server.url, "m", max_tokens=50, timeout=0.05)
        first = ChatClient(settings, Journal(path), attempts=1, read_clock=lambda: next(clock))
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
        with concurrent.futures.ThreadPoolExecutor(6) as pool, chat_model.begin().split(6) as budgets:
            assert {r.text for r in pool.map(lambda n: reply(chat_model, budgets[n]), range(6))} == {"hi"}
        assert server.requests == 1


ANSWERED = make_record("0/test", "m", {}, (2, 1), text="hi", truncated=False, usage=[1, 1])


@pytest.mark.parametrize(
    "forged",
    [{"tokens": -(10**9)}, {"requests": True}, {"tokens": "2"}, {"usage": [1]}, {"usage": [-9, 1]}, {"deep": True},
     {"text": None, "kind": "refused", "reason": 1}],
)  # fmt: skip
def test_a_forged_record_is_no_reply_and_gives_no_budget(tmp_path, forged) -> None:
    path = tmp_path / "journal.jsonl"
    Journal(path).add("k" * 32, ANSWERED | forged)
    if "deep" in forged:
        path.write_bytes(path.read_bytes().replace(b"true", b"[" * 100_000))
    assert Journal(path).find("k" * 32) is None
    Journal(path).add("l" * 32, ANSWERED)
    assert Journal(path).find("l" * 32) == {"key": "l" * 32, **ANSWERED}


def test_a_journal_that_is_no_file_or_has_no_end_holds_nobody(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="is not a file"):
        Journal(tmp_path / "pipe")
    with open(tmp_path / "endless", "xb") as file:
        file.truncate(2**40)
    with pytest.raises(StorageError, match="line 1: it has more than"):
        CheckedLog(tmp_path / "endless", is_shared=True).count_new_lines()
