"""The trained policy as the explorer's model, in place of a served model. The paper finds it weaker."""

import dataclasses
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import wait
from typing import Any

from cojax.environment import PLAYING, EngineError, OutOfContext, Progress, running
from cojax.explorer.llm.chat_model import (
    Budget,
    ChatFailure,
    Counters,
    FailureKind,
    Journal,
    ModelReply,
    call_record,
    key_of,
    sent_messages,
)
from cojax.host.background import on_thread
from cojax.rollout.chat import Chat
from cojax.rollout.engine import Completion, Engine, Sampling
from cojax.types import Message

# Seconds between two checks of whether the budget was closed.
_LOOK_EVERY = 0.2


@dataclasses.dataclass(eq=False)
class PolicyModel:
    """A `ChatModel` that samples from the engine with the weights it holds; any thread may call it.

    A reply has at most `max_tokens` tokens. An evolution spends at most `most_tokens` tokens, prompts included, and
    `most_requests` requests, within `deadline` seconds. A completion is given up after `engine_deadline` seconds, not
    counting those in which it waits for a slot, when `deadline` is over, or when its budget is closed. A schema is
    described in the prompt but not enforced. The journal keeps every reply but never answers a call, as the next
    weights would answer differently.
    """

    engine: Engine
    chat: Chat
    name: str = "self"
    journal: Journal = dataclasses.field(default_factory=Journal)
    max_tokens: int = 2048
    temperature: float = 0.7
    most_tokens: int = 2_000_000
    most_requests: int = 4_000
    deadline: float = 3600.0
    engine_deadline: float = 600.0
    _counters: Counters = dataclasses.field(default_factory=Counters)

    def begin(self, evolution: str = "") -> Budget:
        self._counters = Counters()
        least = (8 * self.max_tokens, 8)
        return Budget(self.most_tokens, self.most_requests, time.monotonic() + self.deadline, least)

    def reopen(self) -> None:
        """Does nothing: failed calls are always made again."""

    def figures(self) -> dict[str, Any]:
        """Calls, their tokens, and failures by kind."""
        return {**self._counters.amounts("calls", "tokens_in", "tokens_out"), "failures": self._counters.failures()}

    def failed(self, kind: FailureKind) -> None:
        self._counters.failed(kind)

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
        with self._counters.failing():
            return self._sample(messages, budget, seed, place, self.temperature if temperature is None else temperature)

    def _sample(
        self, messages: Sequence[Message], budget: Budget, seed: int, place: str, temperature: float
    ) -> ModelReply:
        prompt = self.chat.open(tuple(messages))
        budget.check(len(prompt) + self.max_tokens)
        sampling = Sampling(temperature=temperature, max_tokens=self.max_tokens, stop_tokens=self.chat.stops)
        session = f"explorer-{place}-{seed}-{threading.get_ident()}"
        budget.pay(0, 1)
        done = self._generate(prompt, sampling, session, seed, budget)
        usage = len(prompt), len(done.tokens)
        budget.pay(sum(usage), 0)
        self._counters.count(calls=1, tokens_in=usage[0], tokens_out=usage[1])
        text = self.chat.read(done.tokens).text.encode("utf-8", "replace").decode()
        sent = {"messages": sent_messages(messages), "seed": seed, "weights_version": done.weights_version}
        key, truncated = key_of([sent, text]), done.finish_reason == "length"
        if self.journal.find(key) is None:
            said = {"text": text, "truncated": truncated, "usage": list(usage)}
            record = call_record(place, self.name, sent, (sum(usage), 1), **said)
            self.journal.add(key, record)
        return ModelReply(text, truncated)

    def _generate(
        self, prompt: Sequence[int], sampling: Sampling, session: str, seed: int, budget: Budget
    ) -> Completion:
        """The engine's completion. Raises ChatFailure.

        A completion that is given up ends on its own thread, because its session is released.
        """

        def complete() -> Completion:
            PLAYING.set(progress)
            try:
                return self.engine.generate(prompt, sampling, session=session, seed=(seed,))
            finally:
                self.engine.release(session)

        progress = Progress("act", running())
        answer = on_thread("chat model", complete)
        while True:
            left = min(self.engine_deadline - (running() - progress.since), budget.seconds)
            # A TimeoutError of `result` could be the engine's own.
            if wait([answer], max(0.0, min(_LOOK_EVERY, left))).done:
                try:
                    return answer.result()
                except OutOfContext as error:
                    raise ChatFailure("too_long", str(error)) from None
                except EngineError as error:
                    raise ChatFailure("server", str(error)[:300]) from None
            if budget.closed or left <= 0:
                self.engine.release(session)
                budget.check(0)
                raise ChatFailure("timeout", f"the engine gave no completion within {self.engine_deadline:.3g} s")
