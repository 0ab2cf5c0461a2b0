"""A mind behind an OpenAI-compatible endpoint (SGLang, vLLM, hosted): deadlines, retries, a budget and a journal.

The key comes from the environment variable OPENAI_API_KEY alone, and is struck out of whatever an endpoint sends back.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import math
import os
import random
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import openai

from cojax.explorer.journal import Journal
from cojax.explorer.mind import ChatFailure, FailureKind, Purse, Reply
from cojax.explorer.transport import Completion, Refused, completion, most_tokens, post
from cojax.types import Message, canonical

# Seconds between attempts, doubled each time up to the longest; an endpoint that asks for more patience is given up.
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 60.0
# So many calls failed one after another: the endpoint is down, and no other is tried in this evolution.
_IN_A_ROW = 8
# Optional parts of a request, and the words by which an endpoint says that it does not know them.
_OPTIONAL = {"seed": ("seed",), "response_format": ("response_format", "json_schema", "schema", "grammar", "guided")}
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
        for name in (
            "attempts", "concurrency", "max_tokens", "max_tokens_per_evolution", "max_requests_per_evolution"
        ):  # fmt: skip
            if (value := dataclasses.asdict(self)[name]) < 1:
                raise ValueError(f"llm.{name} is {value}; expected at least 1")
        for name in ("timeout", "deadline"):
            if not 0 < (seconds := dataclasses.asdict(self)[name]) < math.inf:
                raise ValueError(f"llm.{name} is {seconds}; expected seconds above 0")
        for name in ("temperature", "price_in", "price_out"):
            if not 0 <= (amount := dataclasses.asdict(self)[name]) < math.inf:
                raise ValueError(f"llm.{name} is {amount}; expected at least 0")


class ChatClient:
    """A `Mind`; any thread may call it. A finished call stands in the journal and is never made twice."""

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
        self._under_way: dict[str, threading.Lock] = {}
        self._unknown: set[str] = set()  # optional parts that this endpoint turned out not to know
        self._reset()

    def _reset(self) -> None:
        with self._guard:
            self._counts: collections.Counter[str] = collections.Counter()
            self._failures: collections.Counter[str] = collections.Counter()
            self._in_a_row = 0
            self._over: ChatFailure | None = None
            self._under_way.clear()

    def begin(self) -> Purse:
        self._reset()
        return Purse(
            self.settings.max_tokens_per_evolution,
            self.settings.max_requests_per_evolution,
            time.monotonic() + self.settings.deadline,
            least=(8 * self.settings.max_tokens, 8),
        )

    def figures(self) -> dict[str, Any]:
        """Calls answered, of them `replayed` from the journal, with the tokens and the cost of them all; requests
        sent by this process, of them `retries`, and the most tokens that those lost may have cost; failures by kind."""
        with self._guard:
            counts, failures = dict(self._counts), dict(self._failures)
        named = ("calls", "replayed", "requests", "retries", "tokens_in", "tokens_out", "tokens_lost")
        prices = {"tokens_in": self.settings.price_in, "tokens_out": self.settings.price_out}
        cost = sum(counts.get(name, 0) * price for name, price in prices.items()) / 1e6
        return {**{name: counts.get(name, 0) for name in named}, "cost": cost, "failures": failures}

    def failed(self, kind: FailureKind) -> None:
        with self._guard:
            self._failures[kind] += 1

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
            # Half a surrogate pair is a Python string but no text that can be sent.
            "messages": [{"role": m.role, "content": m.content.encode("utf-8", "replace").decode()} for m in messages],
            "temperature": self.settings.temperature if temperature is None else temperature,
            "max_tokens": self.settings.max_tokens,
            "seed": seed,
        }
        if schema is not None:
            shape = {"name": str(schema.get("title", "reply")), "schema": dict(schema)}
            body["response_format"] = {"type": "json_schema", "json_schema": shape}
        try:
            return self._call(body, purse, place)
        except ChatFailure as failure:
            self.failed(failure.kind)
            raise

    def _call(self, body: dict[str, Any], purse: Purse, place: str) -> Reply:
        """From the journal, which charges what the call cost then, or from the endpoint."""
        worst = most_tokens(body) + self.settings.max_tokens
        purse.check(worst)
        key = hashlib.sha256(canonical(body).encode()).hexdigest()[:32]
        with self._guard:
            once = self._under_way.setdefault(key, threading.Lock())
        with once:
            record = self.journal.find(key)
            if record is None:
                record = self._fresh(body, purse, place, worst)
                self.journal.add(key, record)
            else:
                self._count(replayed=1)
                purse.pay(record["tokens"], record["requests"])
        self._count(calls=1, tokens_in=record["usage"][0], tokens_out=record["usage"][1])
        return Reply(record["text"], record["truncated"])

    def _fresh(self, body: dict[str, Any], purse: Purse, place: str, worst: int) -> dict[str, Any]:
        """The record of a call made now; `tokens` and `requests` count its lost attempts too."""
        tokens, requests = purse.tokens, purse.requests
        found, sent = self._persist(body, purse, worst)
        return {
            "place": place,
            "model": self.settings.model,
            "sent": sent,
            "text": found.text,
            "truncated": found.truncated,
            "usage": [found.tokens_in, found.tokens_out],
            "tokens": tokens - purse.tokens,
            "requests": requests - purse.requests,
        }

    def _persist(self, body: dict[str, Any], purse: Purse, worst: int) -> tuple[Completion, dict[str, Any]]:
        """Attempts until a completion comes: it, and the request that brought it."""
        dropped: set[str] = set()
        attempt = 0
        while True:
            purse.check(worst)
            if self._over is not None:
                raise ChatFailure(self._over.kind, self._over.reason)
            sent = _without(body, self._unknown | dropped)
            try:
                found = self._attempt(sent, purse, worst)
            except Refused as refusal:
                if refusal.status in (400, 422) and (blamed := _blamed(refusal, sent)):
                    dropped.add(blamed)
                    continue
                attempt += 1
                self._bear(refusal, attempt, purse)
                continue
            with self._guard:
                self._in_a_row = 0
                self._unknown |= dropped
            return found, sent

    def _attempt(self, sent: dict[str, Any], purse: Purse, worst: int) -> Completion:
        """One request. Raises Refused; one that was lost on the way is paid as if it had been answered in full."""
        if not self._room.acquire(timeout=max(0.0, purse.seconds)):
            raise ChatFailure("deadline", "the evolution's time is up; raise llm.deadline")
        try:
            self._count(requests=1)
            purse.pay(0, 1)
            content = post(self._api, sent, min(self.settings.timeout, max(0.001, purse.seconds)))
            found = completion(self._struck(content.decode("utf-8", "replace")), worst - self.settings.max_tokens)
        except Refused as refusal:
            if refusal.lost:
                purse.pay(worst, 0)
                self._count(tokens_lost=worst)
            refusal.reason = self._struck(refusal.reason)
            raise
        finally:
            self._room.release()
        purse.pay(found.tokens_in + found.tokens_out, 0)
        return dataclasses.replace(found, text=self._struck(found.text))

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
        self._count(retries=1)
        purse.wait(pause)

    def _count(self, **amounts: int) -> None:
        with self._guard:
            self._counts.update(amounts)

    def _struck(self, text: str) -> str:
        """The text without the key."""
        return text.replace(self._key, "[key]") if len(self._key) >= _SECRET else text


def _without(body: Mapping[str, Any], parts: set[str]) -> dict[str, Any]:
    """The request without these parts; the bound on the reply has another name where it is not known by this one."""
    sent = {name: value for name, value in body.items() if name not in parts}
    return {**sent, "max_completion_tokens": body["max_tokens"]} if "max_tokens" in parts else sent


def _blamed(refusal: Refused, sent: Mapping[str, Any]) -> str:
    """The part of a request that a refusal is about, else the schema where there is one; empty where none is left."""
    said = refusal.reason.casefold()
    if refusal.kind == "too_long":
        return ""
    if "max_completion_tokens" in said and "max_tokens" in sent:
        return "max_tokens"
    for name, words in _OPTIONAL.items():
        if name in sent and any(word in said for word in words):
            return name
    return "response_format" if "response_format" in sent else ""
