"""One request to an OpenAI-compatible endpoint: what came back, or why nothing did. Nothing it sends is trusted."""

from __future__ import annotations

import contextlib
import dataclasses
import email.utils
import json
import math
import re
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any

import openai

from cojax.explorer.llm.chat_model import FailureKind

# Bytes of a reply: far above what any number of tokens asked for gives.
_MOST_BYTES = 8 * 2**20
# Bytes of what comes instead of a reply: more is no message. Characters that are told of it.
_MOST_SAID, _REASON = 64 * 2**10, 300
# A shorter key is a placeholder, and may be a common word.
_SECRET = 8
# Of `time.monotonic`: when the request that this thread makes is given up.
_UNTIL: ContextVar[float] = ContextVar("until")
# Tokens that a chat template may add to a message.
_TEMPLATE = 16


class CallRefused(Exception):
    """An attempt that brought no completion. `status` is HTTP's, 0 where none came; `wait` are the seconds that the
    endpoint asks for; `lost` says that it may have worked on the request all the same."""

    def __init__(self, kind: FailureKind, reason: str, *, status: int = 0, wait: float = 0.0, lost: bool = False):
        super().__init__(reason)
        self.kind, self.reason, self.status, self.wait, self.lost = kind, reason, status, wait, lost


@dataclasses.dataclass(frozen=True)
class ChatCompletion:
    """The text, whether it was cut off, and the tokens of prompt and reply."""

    text: str
    truncated: bool
    tokens_in: int
    tokens_out: int


def connect(base_url: str, key: str) -> openai.OpenAI:
    """A client of the endpoint, for `post`."""

    def refuse(response: Any) -> None:
        # Here, before anything is read: openai reads what comes with an error whatever its length and time.
        if not response.is_success:
            raise _refusal(response, key)

    # Whoever is sent elsewhere reads what comes with that likewise, and would take the key along.
    http = openai.DefaultHttpxClient(follow_redirects=False, event_hooks={"response": [refuse]})
    return openai.OpenAI(api_key=key or "none", base_url=base_url, max_retries=0, http_client=http)


def struck(text: str, key: str) -> str:
    """The text without the key, white space within it or not."""
    if len(key) < _SECRET:
        return text
    return re.sub(r"\s*".join(re.escape(character) for character in key), lambda _: "[key]", text)


def most_tokens(body: Mapping[str, Any]) -> int:
    """Tokens that the prompt of a request has at most: no token is shorter than a byte."""
    sent = {name: body[name] for name in ("messages", "response_format") if name in body}
    return len(json.dumps(sent, ensure_ascii=False).encode()) + _TEMPLATE * len(body["messages"])


def post(api: openai.OpenAI, body: Mapping[str, Any], seconds: float) -> bytes:
    """The reply to a chat request. Raises CallRefused; one that takes longer than `seconds` in all is abandoned.

    Timeouts of HTTP bound one read each, so that an endpoint could dribble for ever: the whole is bounded here.
    """
    answer: Future[bytes] = Future()
    until = time.monotonic() + seconds

    def work() -> None:
        try:
            answer.set_result(_read(api, body, until))
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=work, name="chat", daemon=True).start()
    late = f"no reply within {seconds:.3g} s"
    try:
        return answer.result(timeout=seconds)
    except (TimeoutError, openai.APITimeoutError):
        raise CallRefused("timeout", late, lost=True) from None
    except CallRefused as refusal:
        raise refusal from None
    except Exception as error:
        if isinstance(error.__cause__, CallRefused):  # older releases of openai wrap what `connect` raises
            raise error.__cause__ from None
        # Not openai's own errors alone: those of the HTTP library pass through while a body is read.
        reason = _told(f"{type(error).__name__}: {error.__cause__ or error}", api.api_key)
        raise CallRefused("unreachable", reason, lost=not isinstance(error, openai.APIConnectionError)) from None


def _read(api: openai.OpenAI, body: Mapping[str, Any], until: float) -> bytes:
    _UNTIL.set(until)
    with api.chat.completions.with_streaming_response.create(
        **body, timeout=max(0.001, until - time.monotonic())
    ) as response:
        content = _received(response, _MOST_BYTES)
    if content is None:
        raise CallRefused("malformed", f"the reply is longer than {_MOST_BYTES:,} bytes", lost=True)
    return content


def _received(response: Any, most: int) -> bytes | None:
    """What comes, or None where it is more than `most` bytes. Raises TimeoutError once time is up."""
    content = bytearray()
    for piece in response.iter_bytes():
        content += piece
        if len(content) > most:
            return None
        if time.monotonic() > _UNTIL.get():
            raise TimeoutError
    return bytes(content)


def _refusal(response: Any, key: str) -> CallRefused:
    """What a status other than success says, with what comes with it."""
    status = response.status_code
    if response.has_redirect_location:
        elsewhere = _told(response.headers["location"], key)
        reason = f"HTTP {status}: the endpoint is elsewhere: {elsewhere}. Set llm.base_url to where it is"
        return CallRefused("unauthorised", reason, status=status)
    try:
        content: bytes | None = _received(response, _MOST_SAID)
    except Exception:  # the status counts, whatever becomes of the words that come with it, as long as there is time
        if time.monotonic() > _UNTIL.get():
            return CallRefused(
                "timeout", f"HTTP {status}, and no end of what comes with it in time", status=status, lost=True
            )
        content = b""
    # Of what is cut off nothing is told: half a key is not known for one.
    said = f"it says more than {_MOST_SAID:,} bytes" if content is None else _told(_message(content), key)
    reason = f"HTTP {status}: {said or 'it says nothing'}"
    if status in (401, 403, 404):
        return CallRefused("unauthorised", f"{reason}. Check OPENAI_API_KEY, llm.base_url and llm.model", status=status)
    if status in (408, 409, 429) or status >= 500:
        kind: FailureKind = "rate" if status == 429 else "server"
        return CallRefused(kind, reason, status=status, wait=_wait(response.headers))
    too_long = any(words in reason.casefold() for words in ("context length", "context_length", "maximum context"))
    return CallRefused("too_long" if too_long else "refused", reason, status=status)


def _message(content: bytes) -> str:
    """The message of an error as OpenAI words it, or else all that came, what JSON escapes spelled out."""
    text = content.decode("utf-8", "replace")
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return text
    error = body.get("error", body) if isinstance(body, dict) else body
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) else json.dumps(body, ensure_ascii=False)


def _told(text: str, key: str) -> str:
    """One short line. The key is struck out of it before it is cut: half of it would pass."""
    return " ".join(struck(text, key).split())[:_REASON].encode("utf-8", "replace").decode()


def _wait(headers: Mapping[str, str]) -> float:
    """Seconds that Retry-After asks for, in seconds or as a date; 0 where it says nothing sensible."""
    asked = headers.get("retry-after", "")
    try:
        seconds = float(asked)
    except ValueError:
        seconds = 0.0
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            seconds = email.utils.parsedate_to_datetime(asked).timestamp() - time.time()
    return max(0.0, seconds) if not math.isnan(seconds) else 0.0


def completion(content: str, prompt_most: int) -> ChatCompletion:
    """The first choice of a reply. Tokens are those of its `usage`, or the most there can be where it names none.

    Raises CallRefused for what is no chat completion.
    """
    try:
        reply = json.loads(content)
        choice = reply["choices"][0]
        text = choice["message"].get("content")
        text = "" if text is None else text
        if not isinstance(text, str):
            raise TypeError(f"content is of type {type(text).__name__}")
        truncated = choice.get("finish_reason") == "length"
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        reason = f"the reply is no chat completion: {type(error).__name__}: {error}"[:_REASON]
        raise CallRefused("malformed", reason, lost=True) from None
    usage = reply.get("usage")
    tokens_in, tokens_out = (_counted(usage, name) for name in ("prompt_tokens", "completion_tokens"))
    text = text.encode("utf-8", "replace").decode()
    return ChatCompletion(
        text,
        truncated,
        tokens_in or prompt_most,
        tokens_out if tokens_out or (tokens_out == 0 and not text) else len(text.encode()),
    )


def _counted(usage: Any, name: str) -> int | None:
    count = usage.get(name) if isinstance(usage, dict) else None
    return count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else None
