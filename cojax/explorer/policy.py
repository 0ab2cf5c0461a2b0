"""The policy as its own explorer's mind: the same engine, no other model. The paper finds that it works, and weaker."""

from __future__ import annotations

import collections
import hashlib
import math
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from cojax.environment import EngineError, OutOfContext
from cojax.explorer.journal import Journal
from cojax.explorer.mind import ChatFailure, FailureKind, Purse, Reply
from cojax.rollout.chat import Chat
from cojax.rollout.engine import Engine, Sampling
from cojax.types import Message, canonical


class PolicyMind:
    """A `Mind` that samples from whatever weights the engine holds; any thread may call it.

    A reply has at most `max_tokens` tokens. An evolution spends at most `most_tokens`, prompts included, and
    `most_requests`, within `deadline` seconds. Schemas are asked for in words alone. What was said is kept in the
    journal and never answered from it: the weights of tomorrow are others.
    """

    def __init__(
        self,
        engine: Engine,
        chat: Chat,
        *,
        name: str = "self",
        journal: Journal | None = None,
        max_tokens: int = 2048,
        temperature: float = 0.7,
        most_tokens: int = 2_000_000,
        most_requests: int = 4_000,
        deadline: float = math.inf,
    ):
        self.engine, self.chat, self.name, self.journal = engine, chat, name, journal or Journal()
        self.max_tokens, self.temperature = max_tokens, temperature
        self.most_tokens, self.most_requests, self.deadline = most_tokens, most_requests, deadline
        self._guard = threading.Lock()
        self._counts: collections.Counter[str] = collections.Counter()
        self._failures: collections.Counter[str] = collections.Counter()

    def begin(self) -> Purse:
        with self._guard:
            self._counts.clear()
            self._failures.clear()
        least = (8 * self.max_tokens, 8)
        return Purse(self.most_tokens, self.most_requests, time.monotonic() + self.deadline, least)

    def figures(self) -> dict[str, Any]:
        """Calls and their tokens, failures by kind."""
        with self._guard:
            named = {name: self._counts[name] for name in ("calls", "tokens_in", "tokens_out")}
            return {**named, "failures": dict(self._failures)}

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
        try:
            return self._sampled(messages, purse, seed, place, self.temperature if temperature is None else temperature)
        except ChatFailure as failure:
            self.failed(failure.kind)
            raise

    def _sampled(self, messages: Sequence[Message], purse: Purse, seed: int, place: str, temperature: float) -> Reply:
        prompt = self.chat.open(tuple(messages))
        purse.check(len(prompt) + self.max_tokens)
        sampling = Sampling(temperature=temperature, max_tokens=self.max_tokens, stop_tokens=(self.chat.end,))
        session = f"mind-{place}-{seed}-{threading.get_ident()}"
        purse.pay(0, 1)
        try:
            done = self.engine.generate(prompt, sampling, session=session, seed=(seed,))
        except OutOfContext as error:
            raise ChatFailure("too_long", str(error)) from None
        except EngineError as error:
            raise ChatFailure("server", str(error)[:300]) from None
        finally:
            self.engine.release(session)
        purse.pay(len(prompt) + len(done.tokens), 0)
        with self._guard:
            self._counts.update(calls=1, tokens_in=len(prompt), tokens_out=len(done.tokens))
        truncated = done.finish_reason == "length"
        text = self.chat.read(done.tokens).text.encode("utf-8", "replace").decode()
        self._keep(messages, place, seed, done.weights_version, text, truncated, (len(prompt), len(done.tokens)))
        return Reply(text, truncated)

    def _keep(
        self,
        messages: Sequence[Message],
        place: str,
        seed: int,
        version: int,
        text: str,
        truncated: bool,
        usage: tuple[int, int],
    ) -> None:
        sent = {
            "messages": [{"role": message.role, "content": message.content} for message in messages],
            "seed": seed,
            "weights_version": version,
        }
        key = hashlib.sha256(canonical([sent, text]).encode()).hexdigest()[:32]
        if self.journal.find(key) is None:
            record = {"place": place, "model": self.name, "sent": sent, "text": text, "truncated": truncated}
            self.journal.add(key, {**record, "usage": list(usage), "tokens": sum(usage), "requests": 1})
