"""A model behind an OpenAI-compatible chat endpoint: messages and tools go out, what the model says comes back.

What the server says is untrusted, and a call that fails is an `EngineError`, never an empty action. Nothing is known of
tokens, so these episodes are for evaluation alone.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import tenacity
from openai import APIConnectionError, APIError, APIStatusError, DefaultHttpxClient, OpenAI
from openai.types.chat import ChatCompletion

from cojax.environment import EngineError, OutOfContext

_KEY = "OPENAI_API_KEY"
_MOST_BYTES = 64 * 2**20  # of one reply
_LONGEST_WAIT = 120.0  # seconds between two attempts, whatever the server asks for
_TEMPORARY = {408, 409, 425, 429}
# What no other request of the same kind would change: key, rights, address or model.
_LASTING = {401, 403, 404}
_TOO_LONG = re.compile(
    r"context.{0,20}length|maximum context|too long|exceeds? the .{0,20}(context|max)", re.IGNORECASE
)
MOST_TEXT = 200_000  # characters of a reply that are kept
_CALLS = 256
JsonObject = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class ChatReply:
    """What the model said, and the calls that it asks for: (id, name, arguments as the JSON text that it wrote)."""

    text: str
    calls: tuple[tuple[str, str, str], ...] = ()


# Messages, tools in OpenAI function format, and whether nobody waits any more → the reply.
Complete = Callable[[Sequence[JsonObject], Sequence[Mapping[str, Any]], threading.Event], ChatReply]


class _Temporary(Exception):
    """This attempt failed; another may not. `after` is how long the server asks to wait, in seconds."""

    def __init__(self, reason: str, after: float | None = None):
        super().__init__(reason)
        self.after = after


class ChatEndpoint:
    """Chat completions of `model` at `url`, with the key of OPENAI_API_KEY, which appears in no text of ours.

    `deadline` in seconds is for one reply with all its attempts, of which there are at most `attempts`; they wait as
    long as the server asks (Retry-After), else for `pause` seconds and each time up to twice as long. May be called
    from many threads at once; who calls bounds how many.
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
        pause: float = 1.0,
    ) -> None:
        if not re.match(r"https?://[^/\s]", url):
            raise ValueError(f"endpoint {url!r} is no address; expected http://HOST:PORT/v1 or https://HOST/v1")
        if not model:
            raise ValueError("an endpoint serves models by name; name one in --endpoint_model")
        self.url, self.model = url.rstrip("/"), model
        self._settings = {"temperature": temperature, "max_tokens": max_tokens}
        self._deadline, self._attempts, self._pause = deadline, attempts, pause
        # A server without keys takes any.
        self._key = os.environ.get(_KEY) or "none"
        # What it takes and gives is plain values here, checked below.
        # The key, and what a task says, go to this address and to no other that it may point to.
        client = DefaultHttpxClient(follow_redirects=False)
        api = OpenAI(base_url=self.url, api_key=self._key, max_retries=0, http_client=client)
        self._create: Any = api.chat.completions.with_streaming_response.create
        self._down = ""

    def __call__(
        self, messages: Sequence[JsonObject], tools: Sequence[Mapping[str, Any]], unwanted: threading.Event
    ) -> ChatReply:
        """The model's reply. Raises OutOfContext where the server says that the messages are too long for the model,
        EngineError where no reply can be had or `unwanted` is set."""
        began = time.monotonic()

        def attempt() -> ChatReply:
            if unwanted.is_set():
                raise EngineError(f"{self.url}: nobody waits for the reply any more")
            return self._once(messages, tools, max(0.1, began + self._deadline - time.monotonic()))

        def wait(state: tenacity.RetryCallState) -> float:
            error = state.outcome.exception() if state.outcome else None
            backoff = tenacity.wait_random_exponential(multiplier=self._pause, max=30.0)(state)
            return error.after if isinstance(error, _Temporary) and error.after is not None else backoff

        def pause(seconds: float) -> None:
            unwanted.wait(seconds)

        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(_Temporary),
            stop=tenacity.stop_after_attempt(self._attempts) | tenacity.stop_before_delay(self._deadline),
            wait=wait,
            sleep=pause,
            reraise=True,
        )
        try:
            return retrying(attempt)
        except _Temporary as error:
            tries = retrying.statistics["attempt_number"]
            raise EngineError(f"{self.url}: {error}; given up after {tries} attempts") from None

    def _once(self, messages: Sequence[JsonObject], tools: Sequence[Mapping[str, Any]], seconds: float) -> ChatReply:
        if self._down:
            raise EngineError(self._down)
        offered = {"tools": list(tools)} if tools else {}
        try:
            sent = {"model": self.model, "messages": list(messages), **offered, **self._settings}
            answer = _within(seconds, lambda: self._asked(sent, seconds))
        except TimeoutError:
            raise _Temporary(f"Timeout: no reply within {seconds:.3g} s") from None
        except APIStatusError as error:
            raise self._refused(error) from None
        except (APIConnectionError, APIError) as error:
            raise _Temporary(self._told(error)) from None
        except (ValueError, RecursionError) as error:
            # No JSON where JSON was announced, or nested deeper than can be read.
            raise _Temporary(f"the reply cannot be read: {self._told(error)}") from None
        return _reply(answer)

    def _asked(self, sent: Mapping[str, Any], seconds: float) -> ChatCompletion:
        """The completion, which is read until it is whole, too long or too late. Raises what openai raises, ValueError
        for what is none, TimeoutError."""
        until, content = time.monotonic() + seconds, bytearray()
        with self._create(**sent, timeout=seconds) as response:
            for part in response.iter_bytes():
                content += part
                if len(content) > _MOST_BYTES:
                    raise ValueError(f"it is longer than {_MOST_BYTES:,} bytes")
                if time.monotonic() > until:
                    raise TimeoutError
        found = json.loads(content)
        if not isinstance(found, dict):
            raise ValueError("it is no object")
        return ChatCompletion.construct(**found)

    def _refused(self, error: APIStatusError) -> Exception:
        """What a status other than 200 means. Only what lasts is remembered."""
        said, status = self._told(error), error.status_code
        if status == 400 and "max_completion_tokens" in said and "max_tokens" in self._settings:
            self._settings = {
                "temperature": self._settings["temperature"],
                "max_completion_tokens": self._settings["max_tokens"],
            }
            return _Temporary(said, after=0.0)
        if status in (400, 413, 422) and _TOO_LONG.search(said):
            return OutOfContext(said)
        if status in _TEMPORARY or status >= 500:
            return _Temporary(said, _retry_after(error.response.headers.get("retry-after")))
        if status in _LASTING:
            self._down = f"{self.url}: {said}. Check --endpoint, --endpoint_model and {_KEY}"
            return EngineError(self._down)
        return EngineError(f"{self.url}: {said}")

    def _told(self, error: Exception) -> str:
        cause = f" ({error.__cause__})" if isinstance(error, APIConnectionError) and error.__cause__ else ""
        said = f"{type(error).__name__}: {error}{cause}"
        return " ".join((said if self._key == "none" else said.replace(self._key, f"${_KEY}")).split())[:500]


def _within(seconds: float, call: Callable[[], Any]) -> Any:
    """What the call returns or raises; TimeoutError after so many seconds, when it is left to itself.

    Timeouts of HTTP bound one read each, of which an answer that drips takes any number.
    """
    answer: Future[Any] = Future()

    def work() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=work, name="endpoint", daemon=True).start()
    return answer.result(timeout=seconds)


def _retry_after(header: str | None) -> float | None:
    """Seconds, at most _LONGEST_WAIT; None for none and for a date, which is answered by the usual pause."""
    try:
        seconds = float(header or "")
    except ValueError:
        return None
    return min(seconds, _LONGEST_WAIT) if seconds >= 0 else None


def _reply(answer: Any) -> ChatReply:
    """What a completion holds. Raises _Temporary for what is none."""
    try:
        message = answer.choices[0].message
        text = message.content or ""
        calls = tuple(
            (str(call.id or ""), call.function.name, call.function.arguments or "{}")
            for call in (message.tool_calls or ())[:_CALLS]
        )
        if not all(isinstance(part, str) for part in (text, *(part for call in calls for part in call))):
            raise TypeError("content, names and arguments must be text")
    except (AttributeError, IndexError, TypeError, KeyError) as error:
        raise _Temporary(f"the reply is no chat completion: {type(error).__name__}: {error}"[:300]) from None
    return ChatReply(_sound(text[:MOST_TEXT]), tuple((_sound(i), _sound(name), _sound(raw)) for i, name, raw in calls))


def _sound(text: str) -> str:
    """Half a surrogate pair is a Python string but no text."""
    return text.encode("utf-8", "replace").decode()
