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
from cojax.host.background import run_on_thread, wait_until_done
from cojax.openai_api import ApiClient, CallFailed, with_retries
from cojax.rollout.chat import Chat
from cojax.rollout.engine import Completion, Engine, Sampling
from cojax.settings.tree import LLMSettings
from cojax.types import Message

_LOG = logging.getLogger(__name__)
# While other requests are running, a budget is checked after this many seconds.
_BUDGET_CHECK_S = 0.05
# An endpoint counts as down after this many failed calls in a row, over at least this many seconds. Then the evolution
# makes no further call. Both must hold: a few calls may fail by chance, and many may fail in one short disturbance.
_MAX_FAILURES, _OUTAGE_S = 8, 60.0
# Kinds of failure that belong to the call itself, so that the same call would fail again.
_LASTING_FAILURES = frozenset({"refused", "too_long", "unreachable", "timeout", "server", "rate", "malformed"})
# Parts of a request that some endpoints do not support: words in their refusals, and the setting that omits the part.
_OPTIONAL_PARTS = {
    "response_format": (("response_format", "json_schema", "schema", "grammar", "guided"), "llm.send_schema"),
    "seed": (("seed",), "llm.send_seed"),
}
# A chat template may add this many tokens to a message. A larger count of tokens from an endpoint is not believed.
_ADDED_TOKENS, _MAX_TOKEN_COUNT = 16, 2**31


def read_completion(reply: Any, max_prompt_tokens: int) -> ModelReply:
    """The first choice of a reply.

    Token counts come from its `usage`. If that is missing, they are upper bounds: `max_prompt_tokens` for the prompt,
    and one token for each byte of the text. Raises KeyError, IndexError, TypeError or AttributeError for a reply that
    is not a chat completion.
    """
    choice = reply["choices"][0]
    reply_text = choice["message"].get("content")
    reply_text = "" if reply_text is None else reply_text
    if not isinstance(reply_text, str):
        raise TypeError(f"content is of type {type(reply_text).__name__}")
    reply_text = reply_text.encode("utf-8", "replace").decode()  # Python allows half a surrogate pair, UTF-8 does not
    truncated = choice.get("finish_reason") == "length"
    tokens_in, tokens_out = (_token_count(reply.get("usage"), key) for key in ("prompt_tokens", "completion_tokens"))
    if tokens_out is None or (tokens_out == 0 and reply_text):
        tokens_out = len(reply_text.encode())
    return ModelReply(reply_text, truncated, (tokens_in or max_prompt_tokens, tokens_out))


def _token_count(usage: Any, usage_key: str) -> int | None:
    count = usage.get(usage_key) if isinstance(usage, dict) else None
    return count if isinstance(count, int) and not isinstance(count, bool) and 0 <= count < _MAX_TOKEN_COUNT else None


class ChatClient:
    """A `ChatModel` at `settings.base_url`; any thread may call it. A reply takes at most `attempts` requests.

    The journal keeps a finished call, which is never made twice. It keeps a failed call that cost something for its
    evolution. If the run was killed and the evolution is repeated, the call is not made again: it fails again at the
    same cost, so that the evolution has the same result. Two kinds of failed calls are made again, and their old cost
    is added: those whose failure does not belong to the call (a wrong key, no time or budget left), and those of an
    evolution that was given up afterwards (the endpoint was down, or `reopen` was called). Other evolutions do not see
    failed calls. `read_clock` returns seconds; it decides whether an endpoint is down. Raises ValueError for an invalid
    address.
    """

    def __init__(
        self,
        settings: LLMSettings,
        journal: Journal | None = None,
        *,
        attempts: int = 4,
        read_clock: Callable[[], float] = time.monotonic,
    ):
        self.settings, self.journal, self._attempts = settings, journal or Journal(), attempts
        self.name = settings.model
        self._api, self._clock = ApiClient(settings.base_url, settings.model, "llm.base_url", "llm.model"), read_clock
        is_sent = {"response_format": settings.send_schema, "seed": settings.send_seed}
        self._omitted_parts = [part for part in is_sent if not is_sent[part]]
        self._slots = threading.Semaphore(settings.concurrency)
        self._lock = threading.Lock()
        self._call_locks: dict[str, threading.Lock] = {}  # key of a call → held while the call is made
        self._reset_evolution("")

    def _reset_evolution(self, evolution_name: str) -> None:
        self._counters = Counters()
        with self._lock:
            # Calls that failed since the last completion, and when the first of them did.
            self._failures, self._failing_since, self._has_warned = 0, 0.0, False
            self._final_failure: ChatFailure | None = None
            self._call_locks.clear()
            self._evolution = evolution_name
            # The numbers of the journal's last record at the start, and of the record that this evolution was given up.
            self._starting_length, self._give_up_number = (
                self.journal.length,
                self.journal.last_record_number(self._end_key),
            )

    @property
    def _end_key(self) -> str:
        """The key of the record that the evolution was given up."""
        return chat_model.make_key(["given up", self._evolution])

    def begin(self, evolution_name: str = "") -> Budget:
        self._reset_evolution(evolution_name)
        return Budget.of(self.settings)

    def reopen(self) -> None:
        if self._evolution:
            place = f"{self._evolution}/given up"
            failure = {"text": None, "kind": "stopped", "reason": "given up"}
            self.journal.add(self._end_key, chat_model.make_record(place, self.settings.model, {}, (0, 0), **failure))

    def figures(self) -> dict[str, Any]:
        """What the evolution has cost so far. Tokens in, out and lost add up to what the budget paid.

        calls, replayed         answered calls, and how many of them the journal answered
        requests, retries       requests that this process sent, and how many of them were retries
        tokens_in, tokens_out   of the answered calls; `cost` is their price
        tokens_lost             an upper bound for requests without an answer, those of earlier processes included
        failures                number of failures of each kind
        """
        count_names = "calls", "replayed", "requests", "retries", "tokens_in", "tokens_out", "tokens_lost"
        figures = self._counters.figures(*count_names)
        prices = {"tokens_in": self.settings.price_in, "tokens_out": self.settings.price_out}
        return {**figures, "cost": sum(figures[count_name] * price for count_name, price in prices.items()) / 1e6}

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
            "messages": chat_model.format_messages(messages),
            "temperature": self.settings.temperature if temperature is None else temperature,
            "max_tokens": self.settings.max_tokens,
            "seed": seed,
        }
        if schema is not None:
            named_schema = {"name": str(schema.get("title", "reply")), "schema": dict(schema)}
            body["response_format"] = {"type": "json_schema", "json_schema": named_schema}
        with self._counters.counting_failures():
            return self._call(body, budget, place)

    def _call(self, body: dict[str, Any], budget: Budget, call_place: str) -> ModelReply:
        """The reply from the journal, at the cost recorded there, or else from the endpoint."""
        # No token is shorter than a byte.
        fields = {field: body[field] for field in ("messages", "response_format") if field in body}
        prompt_tokens = len(json.dumps(fields, ensure_ascii=False).encode()) + _ADDED_TOKENS * len(body["messages"])
        reserved_tokens = prompt_tokens + self.settings.max_tokens
        budget.check(reserved_tokens)
        # The key covers the whole request, even parts that are not sent, so that calls with different seeds differ.
        journal_key = chat_model.make_key(body)
        with self._lock:
            call_lock = self._call_locks.setdefault(journal_key, threading.Lock())
        with call_lock:
            earlier_cost = self._find_earlier_cost(body, budget)
            record = self.journal.find(journal_key)
            if record is None:
                record = self._make_call(body, budget, call_place, reserved_tokens, earlier_cost)
                self.journal.add(journal_key, record)
            else:
                self._counters.count(replayed=1, tokens_lost=max(0, record["tokens"] - sum(record["usage"])))
                budget.pay(record["tokens"], record["requests"])
        self._counters.count(calls=1, tokens_in=record["usage"][0], tokens_out=record["usage"][1])
        return ModelReply(record["text"], record["truncated"])

    def _make_failure_key(self, body: Mapping[str, Any]) -> str:
        """The key of this evolution's record that the call failed; "" for an evolution without a name."""
        return chat_model.make_key(["failed", self._evolution, body, *self._omitted_parts]) if self._evolution else ""

    def _find_earlier_cost(self, body: Mapping[str, Any], budget: Budget) -> tuple[int, int]:
        """Tokens and requests that earlier processes spent on this call, which failed and is made again.

        If the call failed and is not made again, its cost is paid and its ChatFailure is raised.
        """
        failure_key = self._make_failure_key(body)
        position = self.journal.last_record_number(failure_key)
        record = self.journal.find(failure_key) if position else None
        if record is None:
            return 0, 0
        if record["kind"] in _LASTING_FAILURES and position > self._give_up_number:
            self._counters.count(tokens_lost=record["tokens"])
            budget.pay(record["tokens"], record["requests"])
            raise ChatFailure(record["kind"], record["reason"])
        # What this process spent is already paid.
        return (record["tokens"], record["requests"]) if position <= self._starting_length else (0, 0)

    def _make_call(
        self, body: dict[str, Any], budget: Budget, call_place: str, reserved_tokens: int, earlier_cost: tuple[int, int]
    ) -> dict[str, Any]:
        """Makes a call and returns its record. The cost includes what earlier processes spent on the call."""
        tokens_before, requests_before = budget.tokens, budget.requests
        budget.pay(*earlier_cost)
        self._counters.count(tokens_lost=earlier_cost[0])
        request = {field: value for field, value in body.items() if field not in self._omitted_parts}
        try:
            reply = self._request_completion(request, budget, reserved_tokens)
        except ChatFailure as failure:
            cost = tokens_before - budget.tokens, requests_before - budget.requests
            if self._evolution and any(cost):
                failure_fields = {"text": None, "kind": failure.kind, "reason": failure.reason}
                record = chat_model.make_record(call_place, self.settings.model, request, cost, **failure_fields)
                self.journal.add(self._make_failure_key(body), record)
                if self._final_failure is not None:
                    self.reopen()
            raise
        reply_fields = {"text": reply.text, "truncated": reply.truncated, "usage": [*reply.usage]}
        cost = tokens_before - budget.tokens, requests_before - budget.requests
        return chat_model.make_record(call_place, self.settings.model, self._api.spell(request), cost, **reply_fields)

    def _request_completion(self, request: dict[str, Any], budget: Budget, reserved_tokens: int) -> ModelReply:
        """The completion of the first successful attempt. Raises ChatFailure."""

        def try_once() -> ModelReply:
            budget.check(reserved_tokens)
            if self._final_failure is not None:
                raise ChatFailure(self._final_failure.kind, self._final_failure.reason)
            return self._send_request(request, budget, reserved_tokens)

        def wait(duration_s: float) -> None:
            self._counters.count(retries=1)
            budget.wait(duration_s)

        try:
            reply = with_retries(try_once, self._attempts, lambda: budget.seconds, wait)
        except CallFailed as error:
            raise self._to_failure(error, request) from None
        with self._lock:
            self._failures = 0
        return reply

    def _send_request(self, request: dict[str, Any], budget: Budget, reserved_tokens: int) -> ModelReply:
        """Sends one request. Raises CallFailed, or ChatFailure if the time is up before.

        A request without an answer costs as much as if it had been answered in full.
        """
        while not self._slots.acquire(timeout=_BUDGET_CHECK_S):  # fewer than `concurrency` requests may run
            budget.check(0)
        try:
            budget.check(0)
            self._counters.count(requests=1)
            budget.pay(0, 1)
            reply = self._api.chat(
                request,
                min(self.settings.timeout, max(0.001, budget.seconds)),
                lambda answer: read_completion(answer, reserved_tokens - self.settings.max_tokens),
            )
        except CallFailed as error:
            if error.may_charge:
                budget.pay(reserved_tokens, 0)
                self._counters.count(tokens_lost=reserved_tokens)
            raise
        finally:
            self._slots.release()
        budget.pay(sum(reply.usage), 0)
        return dataclasses.replace(reply, text=self._api.redact(reply.text))

    def _to_failure(self, error: CallFailed, request: Mapping[str, Any]) -> ChatFailure:
        """The ChatFailure of a call whose last attempt failed. Also decides whether later calls are tried at all."""
        settings_hint = _suggest_setting(error, request)
        failure = ChatFailure(error.kind, error.reason + settings_hint)
        if error.kind == "unauthorised":
            self._final_failure = failure
        if settings_hint or error.may_pass:
            self._log_failure(failure)
        if not error.may_pass:
            return failure
        with self._lock:
            failure_time = self._clock()
            self._failing_since = self._failing_since if self._failures else failure_time
            self._failures += 1
            if self._failures >= _MAX_FAILURES and (failing_s := failure_time - self._failing_since) >= _OUTAGE_S:
                reason = (
                    f"{self._failures} calls failed in a row, over {failing_s:.0f} s, the last with: {failure.reason}"
                )
                self._final_failure = ChatFailure(failure.kind, reason)
        return failure

    def _log_failure(self, failure: ChatFailure) -> None:
        """Logs the first failure of an evolution, so that a failing endpoint does not go unnoticed."""
        with self._lock:
            is_first, self._has_warned = not self._has_warned, True
        if is_first:
            _LOG.warning("a call to %s failed: %s; continuing without it", self.settings.base_url, failure)


def _suggest_setting(error: CallFailed, request: Mapping[str, Any]) -> str:
    """The setting to change, if a refusal names an optional part of the request; else ""."""
    if error.kind == "refused" and error.status in (400, 422):
        refusal_text = error.reason.casefold()
        for field_name, (refusal_words, setting_name) in _OPTIONAL_PARTS.items():
            if field_name in request and any(refusal_word in refusal_text for refusal_word in refusal_words):
                return f". If the endpoint does not take {field_name}, set {setting_name} to False"
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
        temperature = self.settings.temperature if temperature is None else temperature
        with self._counters.counting_failures():
            prompt_tokens = self.chat.open(tuple(messages))
            budget.check(len(prompt_tokens) + self.settings.max_tokens)
            sampling = Sampling(temperature, self.settings.max_tokens, stop_tokens=self.chat.stops)
            session_name = f"explorer-{place}-{seed}-{threading.get_ident()}"
            budget.pay(0, 1)
            completion = self._generate(prompt_tokens, sampling, session_name, seed, budget)
            usage, version = (len(prompt_tokens), len(completion.tokens)), completion.weights_version
            budget.pay(sum(usage), 0)
            self._counters.count(calls=1, tokens_in=usage[0], tokens_out=usage[1])
            reply_text = self.chat.read(completion.tokens).text.encode("utf-8", "replace").decode()
            request = {"messages": chat_model.format_messages(messages), "seed": seed, "weights_version": version}
            journal_key, truncated = chat_model.make_key([request, reply_text]), completion.finish_reason == "length"
            if self.journal.find(journal_key) is None:
                reply_fields = {"text": reply_text, "truncated": truncated, "usage": list(usage)}
                record = chat_model.make_record(place, self.name, request, (sum(usage), 1), **reply_fields)
                self.journal.add(journal_key, record)
            return ModelReply(reply_text, truncated)

    def _generate(
        self, prompt_tokens: Sequence[int], sampling: Sampling, session_name: str, seed: int, budget: Budget
    ) -> Completion:
        """The engine's completion. Raises ChatFailure.

        If a completion is given up, its session is released, which ends it on its own thread.
        """

        def complete() -> Completion:
            PLAYING.set(progress)
            try:
                return self.engine.generate(prompt_tokens, sampling, session=session_name, seed=(seed,))
            finally:
                self.engine.release(session_name)

        def remaining_seconds() -> float:
            return 0.0 if budget.is_closed else min(progress.since + self.engine_deadline - running(), budget.seconds)

        progress = Progress("act", running())
        future = run_on_thread("chat model", complete)
        if not wait_until_done(future, remaining_seconds):
            self.engine.release(session_name)
            budget.check(0)
            raise ChatFailure("timeout", f"the engine gave no completion within {self.engine_deadline:.3g} s")
        try:
            return future.result()
        except OutOfContext as error:
            raise ChatFailure("too_long", str(error)) from None
        except EngineError as error:
            raise ChatFailure("server", str(error)[:300]) from None
