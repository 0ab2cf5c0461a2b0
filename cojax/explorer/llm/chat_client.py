"""A model behind an OpenAI-compatible endpoint (SGLang, vLLM, hosted): deadlines, retries, a budget and a journal.

The key comes from the environment variable OPENAI_API_KEY alone, and is struck out of whatever an endpoint sends back.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cojax.explorer.llm.capabilities import Capabilities, without
from cojax.explorer.llm.chat_model import Budget, ChatFailure, FailureKind, ModelReply
from cojax.explorer.llm.chat_settings import ChatSettings
from cojax.explorer.llm.counters import Counters
from cojax.explorer.llm.journal import Journal, failed, finished, key_of, spoken
from cojax.explorer.llm.transport import CallRefused, ChatCompletion, completion, connect, most_tokens, post, struck
from cojax.types import Message

_LOG = logging.getLogger(__name__)
# Seconds between attempts, doubled each time up to the longest; an endpoint that asks for more patience is given up.
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 60.0
# Seconds between two looks at a budget, while others hold all the room.
_LOOK_EVERY = 0.05
# So many calls failed one after another, for so many seconds: the endpoint is down, and no other is tried in this
# evolution. Few in a row may be the fault of what they ask; many may go at once, and fail by one moment's trouble.
_IN_A_ROW, _DOWN = 8, 60.0
# What a failure says of its call: the same call would fail again. The other kinds say something of the moment.
_LASTING = frozenset({"refused", "too_long", "unreachable", "timeout", "server", "rate", "malformed"})


class ChatClient:
    """A `Mind`; any thread may call it.

    A finished call stands in the journal and is never made twice. One that failed and cost something stands there for
    its evolution: gone through once more, because the run was killed, the evolution pays for it again what it cost then
    and has it fail again, so that it comes to the same end. But it is made again, on top of what it cost, where its
    failure says nothing of it (the key was wrong, or time or budget were up) or where the evolution was given up
    afterwards: the endpoint was down, or `reopen` was called. Another evolution knows nothing of it. `clock` tells
    seconds, by which an endpoint is down for long.
    """

    def __init__(
        self, settings: ChatSettings, journal: Journal | None = None, clock: Callable[[], float] = time.monotonic
    ):
        self.settings, self.journal = settings, journal or Journal()
        self.name = settings.model
        self._key = os.environ.get("OPENAI_API_KEY", "").strip()
        if not (self._key.isascii() and self._key.isprintable()):
            raise ValueError("OPENAI_API_KEY holds characters that no header can carry; set it again")
        self._api, self._clock = connect(settings.base_url, self._key), clock
        self._room = threading.Semaphore(settings.concurrency)
        self._guard = threading.Lock()
        self._tally = Counters()
        self._under_way: dict[str, threading.Lock] = {}
        self._reset("")

    def _reset(self, evolution: str) -> None:
        self._tally.reset()
        with self._guard:
            # Calls that failed since the last completion, and when the first of them did.
            self._in_a_row, self._since, self._told = 0, 0.0, False
            self._over: ChatFailure | None = None
            self._under_way.clear()
            self._capabilities = Capabilities()
            self._evolution = evolution
            # Records up to here are of earlier processes; failures up to there came before the evolution was given up.
            self._begun, self._given_up = self.journal.length, self.journal.number(self._end)

    @property
    def _end(self) -> str:
        return key_of(["given up", self._evolution])

    def begin(self, evolution: str = "") -> Budget:
        self._reset(evolution)
        return Budget(
            self.settings.max_tokens_per_evolution,
            self.settings.max_requests_per_evolution,
            time.monotonic() + self.settings.deadline,
            least=(8 * self.settings.max_tokens, 8),
        )

    def reopen(self) -> None:
        if self._evolution:
            place = f"{self._evolution}/given up"
            self.journal.add(self._end, failed(place, self.settings.model, {}, "stopped", "given up", (0, 0)))

    def figures(self) -> dict[str, Any]:
        """Calls answered, of them `replayed` from the journal, with the tokens and the cost of them all; requests
        sent by this process, of them `retries`; the most tokens that requests which were lost may have cost, those of
        earlier processes among them; failures by kind. Tokens in, out and lost are what the evolution has paid."""
        named = self._tally.amounts(
            "calls", "replayed", "requests", "retries", "tokens_in", "tokens_out", "tokens_lost"
        )  # fmt: skip
        prices = {"tokens_in": self.settings.price_in, "tokens_out": self.settings.price_out}
        cost = sum(named[name] * price for name, price in prices.items()) / 1e6
        return {**named, "cost": cost, "failures": self._tally.failures()}

    def failed(self, kind: FailureKind) -> None:
        self._tally.failed(kind)

    def reply(
        self,
        messages: Sequence[Message],
        *,
        budget: Budget,
        seed: int,
        place: str,
        schema: Mapping[str, Any] | None = None,
        temperature: float | None = None,
    ) -> ModelReply:
        body: dict[str, Any] = {
            "model": self.settings.model,
            "messages": spoken(messages),
            "temperature": self.settings.temperature if temperature is None else temperature,
            "max_tokens": self.settings.max_tokens,
            "seed": seed,
        }
        if schema is not None:
            shape = {"name": str(schema.get("title", "reply")), "schema": dict(schema)}
            body["response_format"] = {"type": "json_schema", "json_schema": shape}
        with self._tally.failing():
            return self._call(body, budget, place)

    def _call(self, body: dict[str, Any], budget: Budget, place: str) -> ModelReply:
        """From the journal, which charges what the call cost then, or from the endpoint."""
        worst = most_tokens(body) + self.settings.max_tokens
        budget.check(worst)
        key = key_of(body)
        with self._guard:
            once = self._under_way.setdefault(key, threading.Lock())
        with once:
            lost = self._lost(body, budget)
            record = self.journal.find(key)
            if record is None:
                record = self._fresh(body, budget, place, worst, lost)
                self.journal.add(key, record)
            else:
                self._tally.count(replayed=1, tokens_lost=max(0, record["tokens"] - sum(record["usage"])))
                budget.pay(record["tokens"], record["requests"])
        self._tally.count(calls=1, tokens_in=record["usage"][0], tokens_out=record["usage"][1])
        return ModelReply(record["text"], record["truncated"])

    def _failure(self, body: Mapping[str, Any]) -> str:
        """The key under which this evolution keeps that a call failed; empty for one that has no name."""
        return key_of(["failed", self._evolution, body]) if self._evolution else ""

    def _lost(self, body: Mapping[str, Any], budget: Budget) -> tuple[int, int]:
        """Tokens and requests that earlier processes lost on a call which is to be made again.

        Raises ChatFailure, for what it cost then, where a call failed and is not to be made again.
        """
        key = self._failure(body)
        number = self.journal.number(key)
        record = self.journal.find(key) if number else None
        if record is None:
            return 0, 0
        if record["kind"] in _LASTING and number > self._given_up:
            self._tally.count(tokens_lost=record["tokens"])
            budget.pay(record["tokens"], record["requests"])
            raise ChatFailure(record["kind"], record["reason"])
        # What this process lost, it has paid.
        return (record["tokens"], record["requests"]) if number <= self._begun else (0, 0)

    def _fresh(
        self, body: dict[str, Any], budget: Budget, place: str, worst: int, lost: tuple[int, int]
    ) -> dict[str, Any]:
        """The record of a call made now, which counts what was lost on it, by earlier processes too."""
        tokens, requests = budget.tokens, budget.requests
        budget.pay(*lost)
        self._tally.count(tokens_lost=lost[0])
        try:
            found, sent = self._persist(body, budget, worst)
        except ChatFailure as failure:
            cost = tokens - budget.tokens, requests - budget.requests
            if self._evolution and any(cost):
                record = failed(place, self.settings.model, body, failure.kind, failure.reason, cost)
                self.journal.add(self._failure(body), record)
                if self._over is not None:
                    self.reopen()
            raise
        usage, cost = (found.tokens_in, found.tokens_out), (tokens - budget.tokens, requests - budget.requests)
        return finished(place, self.settings.model, sent, found.text, found.truncated, usage, cost)

    def _persist(self, body: dict[str, Any], budget: Budget, worst: int) -> tuple[ChatCompletion, dict[str, Any]]:
        """Attempts until a completion comes: it, and the request that brought it."""
        dropped: dict[str, bool] = {}  # parts left out → whether their refusal named them
        attempt = 0
        while True:
            budget.check(worst)
            if self._over is not None:
                raise ChatFailure(self._over.kind, self._over.reason)
            sent = without(body, self._capabilities.unknown() | dropped.keys())
            try:
                found = self._attempt(sent, budget, worst)
            except CallRefused as refusal:
                blamed, named = self._capabilities.blamed(refusal, sent)
                if blamed:
                    dropped[blamed] = named
                    continue
                attempt += 1
                self._bear(refusal, attempt, budget)
                continue
            with self._guard:
                self._in_a_row = 0
            self._capabilities.learn(dropped, sent)
            return found, sent

    def _attempt(self, sent: dict[str, Any], budget: Budget, worst: int) -> ChatCompletion:
        """One request. Raises CallRefused; one that was lost on the way is paid as if it had been answered in full."""
        self._enter(budget)
        try:
            self._tally.count(requests=1)
            budget.pay(0, 1)
            content = post(self._api, sent, min(self.settings.timeout, max(0.001, budget.seconds)))
            found = completion(struck(content.decode("utf-8", "replace"), self._key), worst - self.settings.max_tokens)
        except CallRefused as refusal:
            if refusal.lost:
                budget.pay(worst, 0)
                self._tally.count(tokens_lost=worst)
            raise
        finally:
            self._room.release()
        budget.pay(found.tokens_in + found.tokens_out, 0)
        return dataclasses.replace(found, text=struck(found.text, self._key))

    def _enter(self, budget: Budget) -> None:
        """Waits for room among the requests that go at once. Raises ChatFailure where time is up before."""
        while not self._room.acquire(timeout=_LOOK_EVERY):
            budget.check(0)
        try:
            budget.check(0)
        except ChatFailure:
            self._room.release()
            raise

    def _bear(self, refusal: CallRefused, attempt: int, budget: Budget) -> None:
        """Waits for the next attempt. Raises ChatFailure where there is none to be made."""
        failure = ChatFailure(refusal.kind, refusal.reason)
        if refusal.kind == "unauthorised":
            self._over = failure
        if refusal.kind in ("unauthorised", "refused", "too_long"):
            raise failure from None
        pause = min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** (attempt - 1)) * (0.75 + 0.25 * random.random())
        pause = max(pause, refusal.wait)
        if attempt >= self.settings.attempts or pause > _LONGEST_WAIT or pause >= budget.seconds:
            with self._guard:
                now = self._clock()
                self._since = self._since if self._in_a_row else now
                self._in_a_row += 1
                if not self._told:
                    # Once an evolution: who watches the run should not take its silence for work.
                    _LOG.warning("a call to %s failed: %s; going on without", self.settings.base_url, failure)
                    self._told = True
                if self._in_a_row >= _IN_A_ROW and (lasted := now - self._since) >= _DOWN:
                    reason = (
                        f"{self._in_a_row} calls failed one after another, for {lasted:.0f} s, the last by: "
                        f"{failure.reason}"
                    )
                    self._over = ChatFailure(failure.kind, reason)
            raise failure from None
        self._tally.count(retries=1)
        budget.wait(pause)
