"""One request to an OpenAI-compatible endpoint: what came back, or why nothing did. Nothing it sends is trusted."""

from __future__ import annotations

import contextlib
import dataclasses
import email.utils
import json
import math
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import openai

from cojax.explorer.mind import FailureKind

# Bytes of a reply: far above what any number of tokens asked for gives.
_MOST_BYTES = 8 * 2**20
_REASON = 300
# Tokens that a chat template may add to a message.
_TEMPLATE = 16


class Refused(Exception):
    """An attempt that brought no completion. `status` is HTTP's, 0 where none came; `wait` are the seconds that the
    endpoint asks for; `lost` says that it may have worked on the request all the same."""

    def __init__(self, kind: FailureKind, reason: str, *, status: int = 0, wait: float = 0.0, lost: bool = False):
        super().__init__(reason)
        self.kind, self.reason, self.status, self.wait, self.lost = kind, reason, status, wait, lost


@dataclasses.dataclass(frozen=True)
class Completion:
    """The text, whether it was cut off, and the tokens of prompt and reply."""

    text: str
    truncated: bool
    tokens_in: int
    tokens_out: int


def most_tokens(body: Mapping[str, Any]) -> int:
    """Tokens that the prompt of a request has at most: no token is shorter than a byte."""
    sent = {name: body[name] for name in ("messages", "response_format") if name in body}
    return len(json.dumps(sent, ensure_ascii=False).encode()) + _TEMPLATE * len(body["messages"])


def post(api: openai.OpenAI, body: Mapping[str, Any], seconds: float) -> bytes:
    """The reply to a chat request. Raises Refused; one that takes longer than `seconds` in all is abandoned.

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
        raise Refused("timeout", late, lost=True) from None
    except openai.APIStatusError as error:
        raise _of_status(error) from None
    except Refused as refusal:
        raise refusal from None
    except Exception as error:
        # Not openai's own errors alone: those of the HTTP library pass through while a body is read.
        reason = f"{type(error).__name__}: {error.__cause__ or error}"[:_REASON]
        raise Refused("unreachable", reason, lost=not isinstance(error, openai.APIConnectionError)) from None


def _read(api: openai.OpenAI, body: Mapping[str, Any], until: float) -> bytes:
    content = bytearray()
    with api.chat.completions.with_streaming_response.create(
        **body, timeout=max(0.001, until - time.monotonic())
    ) as response:
        for piece in response.iter_bytes():
            content += piece
            if len(content) > _MOST_BYTES:
                raise Refused("malformed", f"the reply is longer than {_MOST_BYTES:,} bytes", lost=True)
            if time.monotonic() > until:
                raise TimeoutError
    return bytes(content)


def _of_status(error: openai.APIStatusError) -> Refused:
    status = error.status_code
    reason = f"HTTP {status}: {_said(error)}"
    if status in (401, 403, 404):
        return Refused("unauthorised", f"{reason}. Check OPENAI_API_KEY, llm.base_url and llm.model", status=status)
    if status in (408, 409, 429) or status >= 500:
        kind: FailureKind = "rate" if status == 429 else "server"
        return Refused(kind, reason, status=status, wait=_wait(error))
    too_long = any(words in reason.casefold() for words in ("context length", "context_length", "maximum context"))
    return Refused("too_long" if too_long else "refused", reason, status=status)


def _said(error: openai.APIStatusError) -> str:
    body = error.body
    message = body.get("message", body) if isinstance(body, dict) else body
    return " ".join(str(message or error.message).split())[:_REASON]


def _wait(error: openai.APIStatusError) -> float:
    """Seconds that Retry-After asks for, in seconds or as a date; 0 where it says nothing sensible."""
    asked = error.response.headers.get("retry-after", "")
    try:
        seconds = float(asked)
    except ValueError:
        seconds = 0.0
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            seconds = email.utils.parsedate_to_datetime(asked).timestamp() - time.time()
    return max(0.0, seconds) if not math.isnan(seconds) else 0.0


def completion(content: str, prompt_most: int) -> Completion:
    """The first choice of a reply. Tokens are those of its `usage`, or the most there can be where it names none.

    Raises Refused for what is no chat completion.
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
        raise Refused("malformed", reason, lost=True) from None
    usage = reply.get("usage")
    tokens_in, tokens_out = (_counted(usage, name) for name in ("prompt_tokens", "completion_tokens"))
    text = text.encode("utf-8", "replace").decode()
    return Completion(
        text,
        truncated,
        tokens_in or prompt_most,
        tokens_out if tokens_out or (tokens_out == 0 and not text) else len(text.encode()),
    )


def _counted(usage: Any, name: str) -> int | None:
    count = usage.get(name) if isinstance(usage, dict) else None
    return count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else None
