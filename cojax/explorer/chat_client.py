"""A mind behind an OpenAI-compatible endpoint (SGLang, vLLM, hosted): deadlines, retries, a budget and a journal.

The key comes from the environment variable OPENAI_API_KEY alone, and is struck out of whatever an endpoint sends back.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import random
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import openai

from cojax.explorer.journal import Journal, failed, finished, key_of, spoken
from cojax.explorer.mind import ChatFailure, FailureKind, Purse, Reply, check_limits
from cojax.explorer.tally import Tally
from cojax.explorer.transport import Completion, Refused, completion, most_tokens, post
from cojax.types import Message

# Seconds between attempts, doubled each time up to the longest; an endpoint that asks for more patience is given up.
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 60.0
# Seconds between two looks at a purse, while others hold all the room.
_LOOK_EVERY = 0.05
# So many calls failed one after another: the endpoint is down, and no other is tried in this evolution.
_IN_A_ROW = 8
# Optional parts of a request, and the words by which an endpoint says that it does not know them.
_OPTIONAL = {"seed": ("seed",), "response_format": ("response_format", "json_schema", "schema", "grammar", "guided")}
# Refusals in a row that do not say what they are about, after which an optional part is believed to be unknown.
_REPEATED = 2
# After so many completions without such a part one request has it again, after several times as many the next one.
_AGAIN, _RARER = 16, 4
# What a failure says of its call: the same call would fail again. The other kinds say something of the moment.
_LASTING = frozenset({"refused", "too_long", "unreachable", "timeout", "server", "rate", "malformed"})
# A shorter key is a placeholder, and may be a common word.
_SECRET = 8


@dataclasses.dataclass(frozen=True)
class ChatSettings:
    """Where and how to call `model`: `base_url` is like http://HOST:PORT/v1.

    `timeout` bounds one request and `deadline` an evolution, in seconds; a reply takes at most `attempts` requests and
    has at most `max_tokens` tokens; `concurrency` requests go at once. An evolution spends at most
    `max_tokens_per_evolution`, prompts included, and `max_requests_per_evolution`: a request that could exceed them is
    not sent. `price_in` and `price_out` are per million tokens, in any currency. Raises ValueError for settings that
    cannot work.
    """

    base_url: str
    model: str
    timeout: float = 120.0
    deadline: float = 3600.0
    attempts: int = 4
    concurrency: int = 8
    max_tokens: int = 2048
    max_tokens_per_evolution: int = 2_000_000
    max_requests_per_evolution: int = 4_000
    temperature: float = 0.7
    price_in: float = 0.0
    price_out: float = 0.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.base_url)
        if "@" in parts.netloc or parts.query:
            raise ValueError(
                "llm.base_url holds credentials or a query; leave them out: the key comes from OPENAI_API_KEY"
            )
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(
                f"llm.base_url is {self.base_url!r}; expected an address like http://HOST:PORT/v1, "
                "set by --config.llm.base_url"
            )
        if not self.model:
            raise ValueError("llm.model is empty; name the model that the endpoint serves by --config.llm.model")
        check_limits(dataclasses.asdict(self))


class ChatClient:
    """A `Mind`; any thread may call it.

    A finished call stands in the journal and is never made twice. One that failed and cost something stands there for
    its evolution: gone through once more, because the run was killed, the evolution pays for it again what it cost then
    and has it fail again, so that it comes to the same end. But it is made again, on top of what it cost, where its
    failure says nothing of it (the key was wrong, or time or budget were up) or where the evolution was given up
    afterwards: the endpoint was down, or `reopen` was called. Another evolution knows nothing of it.
    """

    def __init__(self, settings: ChatSettings, journal: Journal | None = None):
        self.settings, self.journal = settings, journal or Journal()
        self.name = settings.model
        self._key = os.environ.get("OPENAI_API_KEY", "").strip()
        if not (self._key.isascii() and self._key.isprintable()):
            raise ValueError("OPENAI_API_KEY holds characters that no header can carry; set it again")
        self._api = openai.OpenAI(
            api_key=self._key or "none", base_url=settings.base_url, timeout=settings.timeout, max_retries=0
        )
        self._room = threading.Semaphore(settings.concurrency)
        self._guard = threading.Lock()
        self._tally = Tally()
        self._under_way: dict[str, threading.Lock] = {}
        self._reset("")

    def _reset(self, evolution: str) -> None:
        self._tally.reset()
        with self._guard:
            self._in_a_row = 0
            self._over: ChatFailure | None = None
            self._under_way.clear()
            # Optional parts that this endpoint turned out not to know → completions before one is sent again.
            self._unknown: dict[str, int] = {}
            self._patience: dict[str, int] = {}
            self._doubts: collections.Counter[str] = collections.Counter()
            self._evolution = evolution
            # Records up to here are of earlier processes; failures up to there came before the evolution was given up.
            self._begun, self._given_up = self.journal.length, self.journal.number(self._end)

    @property
    def _end(self) -> str:
        return key_of(["given up", self._evolution])

    def begin(self, evolution: str = "") -> Purse:
        self._reset(evolution)
        return Purse(
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
        purse: Purse,
        seed: int,
        place: str,
        schema: Mapping[str, Any] | None = None,
        temperature: float | None = None,
    ) -> Reply:
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
            return self._call(body, purse, place)

    def _call(self, body: dict[str, Any], purse: Purse, place: str) -> Reply:
        """From the journal, which charges what the call cost then, or from the endpoint."""
        worst = most_tokens(body) + self.settings.max_tokens
        purse.check(worst)
        key = key_of(body)
        with self._guard:
            once = self._under_way.setdefault(key, threading.Lock())
        with once:
            lost = self._lost(body, purse)
            record = self.journal.find(key)
            if record is None:
                record = self._fresh(body, purse, place, worst, lost)
                self.journal.add(key, record)
            else:
                self._tally.count(replayed=1, tokens_lost=max(0, record["tokens"] - sum(record["usage"])))
                purse.pay(record["tokens"], record["requests"])
        self._tally.count(calls=1, tokens_in=record["usage"][0], tokens_out=record["usage"][1])
        return Reply(record["text"], record["truncated"])

    def _failure(self, body: Mapping[str, Any]) -> str:
        """The key under which this evolution keeps that a call failed; empty for one that has no name."""
        return key_of(["failed", self._evolution, body]) if self._evolution else ""

    def _lost(self, body: Mapping[str, Any], purse: Purse) -> tuple[int, int]:
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
            purse.pay(record["tokens"], record["requests"])
            raise ChatFailure(record["kind"], record["reason"])
        # What this process lost, it has paid.
        return (record["tokens"], record["requests"]) if number <= self._begun else (0, 0)

    def _fresh(
        self, body: dict[str, Any], purse: Purse, place: str, worst: int, lost: tuple[int, int]
    ) -> dict[str, Any]:
        """The record of a call made now, which counts what was lost on it, by earlier processes too."""
        tokens, requests = purse.tokens, purse.requests
        purse.pay(*lost)
        self._tally.count(tokens_lost=lost[0])
        try:
            found, sent = self._persist(body, purse, worst)
        except ChatFailure as failure:
            cost = tokens - purse.tokens, requests - purse.requests
            if self._evolution and any(cost):
                record = failed(place, self.settings.model, body, failure.kind, failure.reason, cost)
                self.journal.add(self._failure(body), record)
                if self._over is not None:
                    self.reopen()
            raise
        usage, cost = (found.tokens_in, found.tokens_out), (tokens - purse.tokens, requests - purse.requests)
        return finished(place, self.settings.model, sent, found.text, found.truncated, usage, cost)

    def _persist(self, body: dict[str, Any], purse: Purse, worst: int) -> tuple[Completion, dict[str, Any]]:
        """Attempts until a completion comes: it, and the request that brought it."""
        dropped: dict[str, bool] = {}  # parts left out → whether their refusal named them
        attempt = 0
        while True:
            purse.check(worst)
            if self._over is not None:
                raise ChatFailure(self._over.kind, self._over.reason)
            sent = _without(body, self._left_out() | dropped.keys())
            try:
                found = self._attempt(sent, purse, worst)
            except Refused as refusal:
                blamed, named = _blamed(refusal, sent) if refusal.status in (400, 422) else ("", False)
                if blamed:
                    dropped[blamed] = named
                    continue
                attempt += 1
                self._bear(refusal, attempt, purse)
                continue
            self._believe(dropped, sent)
            return found, sent

    def _believe(self, dropped: Mapping[str, bool], sent: Mapping[str, Any]) -> None:
        """After a completion: the endpoint does not know a part whose refusal named it, or that was refused several
        times in a row, when the same request went through without; it knows those that were sent."""
        with self._guard:
            self._in_a_row = 0
            for part, named in dropped.items():
                self._doubts[part] += _REPEATED if named else 1
                if self._doubts[part] >= _REPEATED:
                    self._patience[part] = self._patience.get(part, _AGAIN // _RARER) * _RARER
                    self._unknown[part] = self._patience[part]
            for part in _OPTIONAL:
                if part in sent:
                    self._doubts[part] = 0
                    self._unknown.pop(part, None)
                elif part in self._unknown and part not in dropped:
                    self._unknown[part] -= 1

    def _left_out(self) -> set[str]:
        """The parts that a request goes without; one is tried again when its time has come."""
        with self._guard:
            due = {part for part, left in self._unknown.items() if left <= 0}
            # Others wait for what comes of it.
            self._unknown.update(dict.fromkeys(due, _AGAIN))
            return self._unknown.keys() - due

    def _attempt(self, sent: dict[str, Any], purse: Purse, worst: int) -> Completion:
        """One request. Raises Refused; one that was lost on the way is paid as if it had been answered in full."""
        self._enter(purse)
        try:
            self._tally.count(requests=1)
            purse.pay(0, 1)
            content = post(self._api, sent, min(self.settings.timeout, max(0.001, purse.seconds)))
            found = completion(self._struck(content.decode("utf-8", "replace")), worst - self.settings.max_tokens)
        except Refused as refusal:
            if refusal.lost:
                purse.pay(worst, 0)
                self._tally.count(tokens_lost=worst)
            refusal.reason = self._struck(refusal.reason)
            raise
        finally:
            self._room.release()
        purse.pay(found.tokens_in + found.tokens_out, 0)
        return dataclasses.replace(found, text=self._struck(found.text))

    def _enter(self, purse: Purse) -> None:
        """Waits for room among the requests that go at once. Raises ChatFailure where time is up before."""
        while not self._room.acquire(timeout=_LOOK_EVERY):
            purse.check(0)
        try:
            purse.check(0)
        except ChatFailure:
            self._room.release()
            raise

    def _bear(self, refusal: Refused, attempt: int, purse: Purse) -> None:
        """Waits for the next attempt. Raises ChatFailure where there is none to be made."""
        failure = ChatFailure(refusal.kind, refusal.reason)
        if refusal.kind == "unauthorised":
            self._over = failure
        if refusal.kind in ("unauthorised", "refused", "too_long"):
            raise failure from None
        pause = min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** (attempt - 1)) * (0.75 + 0.25 * random.random())
        pause = max(pause, refusal.wait)
        if attempt >= self.settings.attempts or pause > _LONGEST_WAIT or pause >= purse.seconds:
            with self._guard:
                self._in_a_row += 1
                if self._in_a_row >= _IN_A_ROW:
                    reason = f"{self._in_a_row} calls failed one after another, the last by: {failure.reason}"
                    self._over = ChatFailure(failure.kind, reason)
            raise failure from None
        self._tally.count(retries=1)
        purse.wait(pause)

    def _struck(self, text: str) -> str:
        """The text without the key."""
        return text.replace(self._key, "[key]") if len(self._key) >= _SECRET else text


def _without(body: Mapping[str, Any], parts: set[str]) -> dict[str, Any]:
    """The request without these parts; the bound on the reply has another name where it is not known by this one."""
    sent = {name: value for name, value in body.items() if name not in parts}
    return {**sent, "max_completion_tokens": body["max_tokens"]} if "max_tokens" in parts else sent


def _blamed(refusal: Refused, sent: Mapping[str, Any]) -> tuple[str, bool]:
    """The part of a request that a refusal is about, and true where it names it; else the schema where there is one,
    and false; empty where nothing is left to blame."""
    said = refusal.reason.casefold()
    if refusal.kind == "too_long":
        return "", False
    if "max_completion_tokens" in said and "max_tokens" in sent:
        return "max_tokens", True
    for name, words in _OPTIONAL.items():
        if name in sent and any(word in said for word in words):
            return name, True
    return ("response_format" if "response_format" in sent else ""), False
