"""Reads and checks an SGLang server's reply to a completion request."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

# Log-probs that a sampled token can have: no float32 probability is below e^-104, and rounding makes none far above 1.
_LEAST, _MOST = -200.0, 0.01
# Characters of the label of weights: far above what ours have.
_LABEL = 200


@dataclasses.dataclass(frozen=True)
class ServerReply:
    """One sampled continuation.

    `spans` holds (label of the weights, number of tokens) for each stretch sampled by one version, oldest first.
    `cached` is the number of prompt tokens in the server's prefix cache. `routes` are the experts asked for, as text.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    spans: tuple[tuple[str, int], ...]
    stopped: bool
    cached: int = 0
    routes: str = ""


def read_reply(answer: Any, room: int, vocabulary: int, stops: Collection[int] = ()) -> ServerReply:
    """The completion of 1 to `room` tokens below `vocabulary` in the JSON of a reply, without routes.

    One of `stops` may only be its last token.

    Raises KeyError, TypeError, ValueError, IndexError or OverflowError for a reply that is not a complete completion.
    """
    about = answer["meta_info"]
    finish = about["finish_reason"]
    if finish["type"] not in ("stop", "length"):
        raise ValueError(f"it ended by {finish!r:.200}")
    pairs = about["output_token_logprobs"]
    tokens, logprobs = tuple(int(pair[1]) for pair in pairs), tuple(float(pair[0]) for pair in pairs)
    if list(tokens) != answer["output_ids"]:
        raise ValueError(f"{len(answer['output_ids'])} tokens, but log-probs of {len(tokens)} or of others")
    if min(tokens, default=0) < 0 or max(tokens, default=0) >= vocabulary:
        raise ValueError(f"tokens span {min(tokens)}–{max(tokens)}; the vocabulary has 0–{vocabulary - 1}")
    if not 0 < len(tokens) <= room:
        raise ValueError(f"{len(tokens)} tokens, asked for 1 to {room}")
    if beyond := [logprob for logprob in logprobs if not _LEAST <= logprob <= _MOST]:
        raise ValueError(f"a log-prob is {beyond[0]:g}, which no sampled token has")
    if not set(stops).isdisjoint(tokens[:-1]):
        raise ValueError("it goes on after a token that ends it")
    versions = about["weight_versions"]
    spans = tuple((label_of(span["version"]), int(span["end"]) - int(span["start"])) for span in versions)
    if sum(count for _, count in spans) != len(tokens) or min((count for _, count in spans), default=0) < 1:
        raise ValueError(f"versions of {sum(count for _, count in spans)} tokens, but there are {len(tokens)}")
    return ServerReply(tokens, logprobs, spans, finish["type"] == "stop", int(about.get("cached_tokens", 0)))


def label_of(found: Any) -> str:
    """The label of weights that a server names, cut."""
    return str(found)[:_LABEL]
