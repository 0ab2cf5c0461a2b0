"""Reads a chat completion: its text, whether it was cut off, and the tokens it took. Nothing in it is trusted."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

# Tokens that a chat template may add to a message, and the most tokens that an endpoint is believed.
_TEMPLATE, _MOST = 16, 2**31


@dataclasses.dataclass(frozen=True)
class ChatCompletion:
    """The text, whether it was cut off, and the tokens of prompt and reply."""

    text: str
    truncated: bool
    tokens_in: int
    tokens_out: int


def most_prompt_tokens(body: Mapping[str, Any]) -> int:
    """An upper bound for the tokens of a request's prompt: no token is shorter than a byte."""
    sent = {name: body[name] for name in ("messages", "response_format") if name in body}
    return len(json.dumps(sent, ensure_ascii=False).encode()) + _TEMPLATE * len(body["messages"])


def read_completion(reply: Any, prompt_most: int) -> ChatCompletion:
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
    text = text.encode("utf-8", "replace").decode()  # half a surrogate pair is a Python string but no text
    truncated = choice.get("finish_reason") == "length"
    tokens_in, tokens_out = (_count(reply.get("usage"), name) for name in ("prompt_tokens", "completion_tokens"))
    if tokens_out is None or (tokens_out == 0 and text):
        tokens_out = len(text.encode())
    return ChatCompletion(text, truncated, tokens_in or prompt_most, tokens_out)


def _count(usage: Any, name: str) -> int | None:
    count = usage.get(name) if isinstance(usage, dict) else None
    return count if isinstance(count, int) and not isinstance(count, bool) and 0 <= count < _MOST else None
