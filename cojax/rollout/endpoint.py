"""Replies of a model behind an OpenAI-compatible chat endpoint to messages and tools, for evaluation.

The server's replies are untrusted. A failed call raises `EngineError`; it never becomes an empty action. Tokens are
unknown, so these episodes cannot be trained on.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cojax.environment import EngineError, OutOfContext
from cojax.openai_api.calls import Address, CallFailed, with_retries
from cojax.openai_api.client import ApiClient

MOST_TEXT = 200_000  # characters of a reply that are kept
_MOST_CALLS = 256
JsonObject = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class ChatReply:
    """The model's text, and the calls that it asks for: (id, name, arguments as the JSON text that it wrote)."""

    text: str
    calls: tuple[tuple[str, str, str], ...] = ()


# Messages, tools in OpenAI function format, an event that is set once the reply is no longer wanted → the reply.
Complete = Callable[[Sequence[JsonObject], Sequence[Mapping[str, Any]], threading.Event], ChatReply]


class ChatEndpoint:
    """Chat completions of `model` at `url`, with the key in OPENAI_API_KEY. Any number of threads may call it.

    One reply takes at most `deadline` seconds and `attempts` requests. Raises ValueError for an invalid address.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        temperature: float = 0.0,
        max_tokens: int = 4096,
        deadline: float = 300.0,
        attempts: int = 6,
    ) -> None:
        self.url, self.model = url.rstrip("/"), model
        self._api = ApiClient(Address(self.url, model, "--endpoint", "--endpoint_model"))
        self._settings = {"temperature": temperature, "max_tokens": max_tokens}
        self._deadline, self._attempts = deadline, attempts
        self._down = ""  # why no further request can succeed

    def __call__(
        self, messages: Sequence[JsonObject], tools: Sequence[Mapping[str, Any]], unwanted: threading.Event
    ) -> ChatReply:
        """The model's reply.

        Raises OutOfContext if the server says that the messages are too long for the model, EngineError if no reply can
        be obtained or `unwanted` is set.
        """
        until = time.monotonic() + self._deadline
        offered = {"tools": list(tools)} if tools else {}
        body = {"model": self.model, "messages": list(messages), **offered, **self._settings}

        def attempt() -> ChatReply:
            if unwanted.is_set():
                raise EngineError(f"{self.url}: nobody waits for the reply any more")
            if self._down:
                raise EngineError(self._down)
            return self._api.chat(body, max(0.1, until - time.monotonic()), self._reply)

        try:
            return with_retries(attempt, self._attempts, lambda: until - time.monotonic(), unwanted.wait)
        except CallFailed as failed:
            if failed.kind == "too_long":
                raise OutOfContext(failed.reason) from None
            reason = f"{self.url}: {failed.reason}"
            if failed.kind == "unauthorised":
                self._down = reason
            given_up = f"; given up after {failed.attempts} attempts" if failed.passing else ""
            raise EngineError(reason + given_up) from None

    def _reply(self, reply: Any) -> ChatReply:
        """A completion's first choice. Raises KeyError, IndexError, TypeError or AttributeError if it has none."""
        message = reply["choices"][0]["message"]
        text = message.get("content") or ""
        calls = [
            (str(call.get("id") or ""), call["function"]["name"], call["function"].get("arguments") or "{}")
            for call in (message.get("tool_calls") or ())[:_MOST_CALLS]
        ]
        if not all(isinstance(part, str) for part in (text, *(part for call in calls for part in call))):
            raise TypeError("content, names and arguments must be text")
        clean = self._clean
        return ChatReply(clean(text[:MOST_TEXT]), tuple((clean(i), clean(name), clean(raw)) for i, name, raw in calls))

    def _clean(self, text: str) -> str:
        """The text without the API key. A lone surrogate, which UTF-8 cannot encode, becomes a question mark."""
        return self._api.redact(text.encode("utf-8", "replace").decode())
