"""What calls to a chat model cost, and how its budget ends them."""

import collections
import threading
import time

import pytest
from chat_calls import accounts, client, failure, reply
from chat_server import Answer, in_turn, serving
from patience import patience

from cojax.explorer.llm.chat_model import Budget, ChatFailure


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {},
        {"prompt_tokens": "many"},
        {"prompt_tokens": -5, "completion_tokens": True},
        {"prompt_tokens": 10**4000, "completion_tokens": 10**4000},
    ],
)
def test_tokens_that_are_not_told_are_estimated_from_above(usage) -> None:
    with serving(in_turn(Answer("four words are here", usage=usage))) as server:
        chat_model = client(server)
        budget = chat_model.begin()
        reply(chat_model, budget)
        spent = 2_000_000 - budget.tokens
        assert len(b"hello") + len(b"four words are here") < spent < 200
        assert chat_model.figures()["cost"] == 0.0


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
        assert time.monotonic() - began < patience(2)


def test_shares_hold_the_whole_and_give_back_what_they_have_left() -> None:
    budget = Budget(1_000, 100, min_share=(100, 10))
    with budget.split(3) as parts:
        assert [(part.tokens, part.requests) for part in parts] == [(333, 33)] * 3
        assert (budget.tokens, budget.requests) == (1, 1)
        parts[0].pay(33, 3)
    assert (budget.tokens, budget.requests) == (967, 97)
    with budget.split(20) as parts:
        assert [part.tokens for part in parts] == [107] * 9 + [0] * 11
    assert budget.tokens == 967


def test_a_purse_that_is_closed_ends_every_share_of_it_at_the_next_call() -> None:
    with serving(in_turn(Answer("hi"))) as server:
        chat_model = client(server)
        whole = chat_model.begin()
        with whole.split(2) as halves, halves[0].split(2) as quarters:
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
        with budget.split(1) as shares:
            assert failure(chat_model, shares[0]).kind == "stopped"
        assert time.monotonic() - began < patience(5)
        assert server.requests == 1


def test_an_endpoint_that_ignores_the_most_tokens_ends_the_budget_and_not_more() -> None:
    huge = Answer("word " * 100_000, usage={"prompt_tokens": 10, "completion_tokens": 100_000})
    with serving(in_turn(huge)) as server:
        chat_model = client(server, max_tokens_per_evolution=50_000)
        budget = chat_model.begin()
        with budget.split(2) as shares:
            reply(chat_model, shares[0])
            assert failure(chat_model, shares[0], seed=2).kind == "budget"
        assert failure(chat_model, budget, seed=3).kind == "budget"
        assert server.requests == 1
        accounts(chat_model, budget)
