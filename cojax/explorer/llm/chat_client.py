"""The models that answer an explorer: one behind an OpenAI-compatible endpoint (SGLang, vLLM, hosted), or the policy.

In the paper the policy in training is the weaker explorer.
"""

import dataclasses
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cojax.environment import PLAYING, EngineError, OutOfContext, Progress, running
from cojax.explorer.llm import chat_model
from cojax.explorer.llm.chat_model import Budget, ChatFailure, Counters, FailureKind, Journal, ModelReply
from cojax.host.background import done_within, on_thread
from cojax.openai_api import ApiClient, CallFailed, with_retries
from cojax.rollout.chat import Chat
from cojax.rollout.engine import Completion, Engine, Sampling
from cojax.settings.tree import LLMSettings
from cojax.types import Message

_LOG = logging.getLogger(__name__)
# Seconds between two checks of a budget, while other requests are running.
_LOOK_EVERY = 0.05
# An endpoint counts as down after this many failed calls in a row, over at least this many seconds. Then the evolution
# makes no further call. Both must hold: a few calls may fail by chance, and many may fail in one short disturbance.
_IN_A_ROW, _DOWN = 8, 60.0
# Kinds of failure that belong to the call itself, so that the same call would fail again.
_LASTING = frozenset({"refused", "too_long", "unreachable", "timeout", "server", "rate", "malformed"})
# Parts of a request that some endpoints do not support: words in their refusals, and the setting that omits the part.
_OPTIONAL = {
    "response_format": (("response_format", "json_schema", "schema", "grammar", "guided"), "llm.send_schema"),
    "seed": (("seed",), "llm.send_seed"),
}
# Tokens that a chat template may add to a message, and the most tokens that an endpoint is believed.
_TEMPLATE, _MOST = 16, 2**31


def read_completion(reply: Any, most_prompt_tokens: int) -> ModelReply:
    """The first choice of a reply.

    Token counts come from its `usage`. If that is missing, they are upper bounds: `prompt_most` for the prompt, and one
    token for each byte of the text. Raises KeyError, IndexError, TypeError or AttributeError for a reply that is not a
    chat completion.
    """
    choice = reply["choices"][0]
    text = choice["message"].get("content")
    text = "" if text is None else text
    if not isinstance(text, str):
        raise TypeError(f"content is of type {type(text).__name__}")
    text = text.encode("utf-8", "replace").decode()  # Python allows half a surrogate pair, UTF-8 does not
    truncated = choice.get("finish_reason") == "length"
    tokens_in, tokens_out = (_count(reply.get("usage"), name) for name in ("prompt_tokens", "completion_tokens"))
    if tokens_out is None or (tokens_out == 0 and text):
        tokens_out = len(text.encode())
    return ModelReply(text, truncated, (tokens_in or most_prompt_tokens, tokens_out))


def _count(usage: Any, name: str) -> int | None:
    count = usage.get(name) if isinstance(usage, dict) else None
    return count if isinstance(count, int) and not isinstance(count, bool) and 0 <= count < _MOST else None


class ChatClient:
    """A `ChatModel` at `settings.base_url`; any thread may call it. A reply takes at most `attempts` requests.

    The journal keeps a finished call, which is never made twice. It keeps a failed call that cost something for its
    evolution. If the run was killed and the evolution is repeated, the call is not made again: it fails again at the
    same cost, so that the evolution has the same result. Two kinds of failed calls are made again, and their old cost
    is added: those whose failure does not belong to the call (a wrong key, no time or budget left), and those of an
    evolution that was given up afterwards (the endpoint was down, or `reopen` was called). Other evolutions do not see
    failed calls. `clock` returns seconds; it decides whether an endpoint is down. Raises ValueError for an invalid
    address.
    """

    def __init__(
        self,
        settings: LLMSettings,
        journal: Journal | None = None,
        *,
        attempts: int = 4,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.settings, self.journal, self._attempts = settings, journal or Journal(), attempts
        self.name = settings.model
        self._api, self._clock = ApiClient(settings.base_url, settings.model, "llm.base_url", "llm.model"), clock
        sends = {"response_format": settings.send_schema, "seed": settings.send_seed}
        self._left_out = [part for part in sends if not sends[part]]
        self._room = threading.Semaphore(settings.concurrency)
        self._guard = threading.Lock()
        self._running: dict[str, threading.Lock] = {}  # key of a call → held while the call is made
        self._reset("")

    def _reset(self, evolution: str) -> None:
        self._counters = Counters()
        with self._guard:
            # Calls that failed since the last completion, and when the first of them did.
            self._in_a_row, self._since, self._warned = 0, 0.0, False
            self._over: ChatFailure | None = None
            self._running.clear()
            self._evolution = evolution
            # The numbers of the journal's last record at the start, and of the record that this evolution was given up.
            self._begun, self._given_up = self.journal.length, self.journal.number(self._end)

    @property
    def _end(self) -> str:
        """The key of the record that the evolution was given up."""
        return chat_model.key_of(["given up", self._evolution])

    def begin(self, evolution: str = "") -> Budget:
        self._reset(evolution)
        return Budget.of(self.settings)

    def reopen(self) -> None:
        if self._evolution:
            place = f"{self._evolution}/given up"
            given_up = {"text": None, "kind": "stopped", "reason": "given up"}
            self.journal.add(self._end, chat_model.call_record(place, self.settings.model, {}, (0, 0), **given_up))

    def figures(self) -> dict[str, Any]:
        """What the evolution has cost so far. Tokens in, out and lost add up to what the budget paid.

        calls, replayed         answered calls, and how many of them the journal answered
        requests, retries       requests that this process sent, and how many of them were retries
        tokens_in, tokens_out   of the answered calls; `cost` is their price
        tokens_lost             an upper bound for requests without an answer, those of earlier processes included
        failures                number of failures of each kind
        """
        names = "calls", "replayed", "requests", "retries", "tokens_in", "tokens_out", "tokens_lost"
        figures = self._counters.figures(*names)
        prices = {"tokens_in": self.settings.price_in, "tokens_out": self.settings.price_out}
        return {**figures, "cost": sum(figures[name] * price for name, price in prices.items()) / 1e6}

    def count_failure(self, kind: FailureKind) -> None:
        self._counters.count_failure(kind)

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
            "messages": chat_model.sent_messages(messages),
            "temperature": self.settings.temperature if temperature is None else temperature,
            "max_tokens": self.settings.max_tokens,
            "seed": seed,
        }
        if schema is not None:
            shape = {"name": str(schema.get("title", "reply")), "schema": dict(schema)}
            body["response_format"] = {"type": "json_schema", "json_schema": shape}
        with self._counters.counting_failures():
            return self._call(body, budget, place)

    def _call(self, body: dict[str, Any], budget: Budget, place: str) -> ModelReply:
        """The reply from the journal, at the cost recorded there, or else from the endpoint."""
        # No token is shorter than a byte.
        read = {name: body[name] for name in ("messages", "response_format") if name in body}
        prompt = len(json.dumps(read, ensure_ascii=False).encode()) + _TEMPLATE * len(body["messages"])
        worst = prompt + self.settings.max_tokens
        budget.check(worst)
        # The key covers the whole request, even parts that are not sent, so that calls with different seeds differ.
        key = chat_model.key_of(body)
        with self._guard:
            once = self._running.setdefault(key, threading.Lock())
        with once:
            earlier_cost = self._earlier_cost(body, budget)
            record = self.journal.find(key)
            if record is None:
                record = self._make_call(body, budget, place, worst, earlier_cost)
                self.journal.add(key, record)
            else:
                self._counters.count(replayed=1, tokens_lost=max(0, record["tokens"] - sum(record["usage"])))
                budget.pay(record["tokens"], record["requests"])
        self._counters.count(calls=1, tokens_in=record["usage"][0], tokens_out=record["usage"][1])
        return ModelReply(record["text"], record["truncated"])

    def _failure_key(self, body: Mapping[str, Any]) -> str:
        """The key of this evolution's record that the call failed; "" for an evolution without a name."""
        return chat_model.key_of(["failed", self._evolution, body, *self._left_out]) if self._evolution else ""

    def _earlier_cost(self, body: Mapping[str, Any], budget: Budget) -> tuple[int, int]:
        """Tokens and requests that earlier processes spent on this call, which failed and is made again.

        If the call failed and is not made again, its cost is paid and its ChatFailure is raised.
        """
        key = self._failure_key(body)
        number = self.journal.number(key)
        record = self.journal.find(key) if number else None
        if record is None:
            return 0, 0
        if record["kind"] in _LASTING and number > self._given_up:
            self._counters.count(tokens_lost=record["tokens"])
            budget.pay(record["tokens"], record["requests"])
            raise ChatFailure(record["kind"], record["reason"])
        # What this process spent is already paid.
        return (record["tokens"], record["requests"]) if number <= self._begun else (0, 0)

    def _make_call(
        self, body: dict[str, Any], budget: Budget, place: str, worst: int, earlier_cost: tuple[int, int]
    ) -> dict[str, Any]:
        """Makes a call and returns its record. The cost includes what earlier processes spent on the call."""
        tokens, requests = budget.tokens, budget.requests
        budget.pay(*earlier_cost)
        self._counters.count(tokens_lost=earlier_cost[0])
        request = {name: value for name, value in body.items() if name not in self._left_out}
        try:
            reply = self._completion(request, budget, worst)
        except ChatFailure as failure:
            cost = tokens - budget.tokens, requests - budget.requests
            if self._evolution and any(cost):
                details = {"text": None, "kind": failure.kind, "reason": failure.reason}
                record = chat_model.call_record(place, self.settings.model, request, cost, **details)
                self.journal.add(self._failure_key(body), record)
                if self._over is not None:
                    self.reopen()
            raise
        answer = {"text": reply.text, "truncated": reply.truncated, "usage": [*reply.usage]}
        cost = tokens - budget.tokens, requests - budget.requests
        return chat_model.call_record(place, self.settings.model, self._api.spell(request), cost, **answer)

    def _completion(self, request: dict[str, Any], budget: Budget, worst: int) -> ModelReply:
        """The completion of the first successful attempt. Raises ChatFailure."""

        def attempt() -> ModelReply:
            budget.check(worst)
            if self._over is not None:
                raise ChatFailure(self._over.kind, self._over.reason)
            return self._attempt(request, budget, worst)

        def wait(seconds: float) -> None:
            self._counters.count(retries=1)
            budget.wait(seconds)

        try:
            reply = with_retries(attempt, self._attempts, lambda: budget.seconds, wait)
        except CallFailed as error:
            raise self._failure_of(error, request) from None
        with self._guard:
            self._in_a_row = 0
        return reply

    def _attempt(self, request: dict[str, Any], budget: Budget, worst: int) -> ModelReply:
        """Sends one request. Raises CallFailed, or ChatFailure if the time is up before.

        A request without an answer costs as much as if it had been answered in full.
        """
        while not self._room.acquire(timeout=_LOOK_EVERY):  # fewer than `concurrency` requests may run
            budget.check(0)
        try:
            budget.check(0)
            self._counters.count(requests=1)
            budget.pay(0, 1)
            reply = self._api.chat(
                request,
                min(self.settings.timeout, max(0.001, budget.seconds)),
                lambda answer: read_completion(answer, worst - self.settings.max_tokens),
            )
        except CallFailed as error:
            if error.may_charge:
                budget.pay(worst, 0)
                self._counters.count(tokens_lost=worst)
            raise
        finally:
            self._room.release()
        budget.pay(sum(reply.usage), 0)
        return dataclasses.replace(reply, text=self._api.redact(reply.text))

    def _failure_of(self, error: CallFailed, request: Mapping[str, Any]) -> ChatFailure:
        """The ChatFailure of a call whose last attempt failed. Also decides whether later calls are tried at all."""
        hint = _hint(error, request)
        failure = ChatFailure(error.kind, error.reason + hint)
        if error.kind == "unauthorised":
            self._over = failure
        if hint or error.passing:
            self._warn(failure)
        if not error.passing:
            return failure
        with self._guard:
            now = self._clock()
            self._since = self._since if self._in_a_row else now
            self._in_a_row += 1
            if self._in_a_row >= _IN_A_ROW and (seconds := now - self._since) >= _DOWN:
                reason = (
                    f"{self._in_a_row} calls failed in a row, over {seconds:.0f} s, the last with: {failure.reason}"
                )
                self._over = ChatFailure(failure.kind, reason)
        return failure

    def _warn(self, failure: ChatFailure) -> None:
        """Logs the first failure of an evolution, so that a failing endpoint does not go unnoticed."""
        with self._guard:
            first, self._warned = not self._warned, True
        if first:
            _LOG.warning("a call to %s failed: %s; continuing without it", self.settings.base_url, failure)


def _hint(error: CallFailed, request: Mapping[str, Any]) -> str:
    """The setting to change, if a refusal names an optional part of the request; else ""."""
    if error.kind == "refused" and error.status in (400, 422):
        refusal = error.reason.casefold()
        for part, (words, setting) in _OPTIONAL.items():
            if part in request and any(word in refusal for word in words):
                return f". If the endpoint does not take {part}, set {setting} to False"
    return ""


@dataclasses.dataclass(eq=False)
class PolicyModel:
    """A `ChatModel` that samples from the engine with the weights it holds; any thread may call it.

    It reads the limits and the temperature of `settings`. A completion is given up after `engine_deadline` seconds, not
    counting those in which it waits for a slot, when the evolution's time is over, or when its budget is closed. The
    prompt describes a schema, but nothing enforces it. The journal keeps every reply but never answers a call, because
    the next weights would answer differently.
    """

    engine: Engine
    chat: Chat
    name: str = "self"
    journal: Journal = dataclasses.field(default_factory=Journal)
    settings: LLMSettings = dataclasses.field(default_factory=LLMSettings)
    engine_deadline: float = 600.0
    _counters: Counters = dataclasses.field(default_factory=Counters)

    def begin(self, evolution: str = "") -> Budget:
        self._counters = Counters()
        return Budget.of(self.settings)

    def reopen(self) -> None:
        """Does nothing: failed calls are always made again."""

    def figures(self) -> dict[str, Any]:
        """Calls, their tokens, and failures by kind."""
        return self._counters.figures("calls", "tokens_in", "tokens_out")

    def count_failure(self, kind: FailureKind) -> None:
        self._counters.count_failure(kind)

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
        heat, max_tokens = self.settings.temperature if temperature is None else temperature, self.settings.max_tokens
        with self._counters.counting_failures():
            prompt = self.chat.open(tuple(messages))
            budget.check(len(prompt) + max_tokens)
            sampling = Sampling(temperature=heat, max_tokens=max_tokens, stop_tokens=self.chat.stops)
            session = f"explorer-{place}-{seed}-{threading.get_ident()}"
            budget.pay(0, 1)
            completion = self._generate(prompt, sampling, session, seed, budget)
            usage, version = (len(prompt), len(completion.tokens)), completion.weights_version
            budget.pay(sum(usage), 0)
            self._counters.count(calls=1, tokens_in=usage[0], tokens_out=usage[1])
            text = self.chat.read(completion.tokens).text.encode("utf-8", "replace").decode()
            request = {"messages": chat_model.sent_messages(messages), "seed": seed, "weights_version": version}
            key, truncated = chat_model.key_of([request, text]), completion.finish_reason == "length"
            if self.journal.find(key) is None:
                answer = {"text": text, "truncated": truncated, "usage": list(usage)}
                record = chat_model.call_record(place, self.name, request, (sum(usage), 1), **answer)
                self.journal.add(key, record)
            return ModelReply(text, truncated)

    def _generate(
        self, prompt: Sequence[int], sampling: Sampling, session: str, seed: int, budget: Budget
    ) -> Completion:
        """The engine's completion. Raises ChatFailure.

        If a completion is given up, its session is released, which ends it on its own thread.
        """

        def complete() -> Completion:
            PLAYING.set(progress)
            try:
                return self.engine.generate(prompt, sampling, session=session, seed=(seed,))
            finally:
                self.engine.release(session)

        def remaining_seconds() -> float:
            return 0.0 if budget.closed else min(progress.since + self.engine_deadline - running(), budget.seconds)

        progress = Progress("act", running())
        answer = on_thread("chat model", complete)
        if not done_within(answer, remaining_seconds):
            self.engine.release(session)
            budget.check(0)
            raise ChatFailure("timeout", f"the engine gave no completion within {self.engine_deadline:.3g} s")
        try:
            return answer.result()
        except OutOfContext as error:
            raise ChatFailure("too_long", str(error)) from None
        except EngineError as error:
            raise ChatFailure("server", str(error)[:300]) from None
