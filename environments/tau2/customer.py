"""Asks a model behind an OpenAI-compatible endpoint what a simulated customer says next. Its replies are untrusted."""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from cojax.environment import EnvironmentFailure, EpisodeFailure, waiting
from cojax.openai_api import Address, ApiClient, CallFailed, with_retries

# Tokens that a reply may have, of which a thought may take most; the most characters of what the customer says.
_TOKENS, _LONGEST = 2_048, 10_000
# How a call fails that was taken: the agent's words may be why the endpoint refuses it, or says nothing usable.
_OF_WORDS = frozenset({"malformed", "refused", "too_long"})


def address(url: str, model: str, deadline: float) -> Address:
    """Where the customer's model is. Raises ValueError for what cannot be an address, an empty model, a deadline that
    cannot be kept."""
    if not 0 < deadline < math.inf:
        raise ValueError(f"environment.user_deadline is {deadline}; expected seconds above 0")
    return Address(url.rstrip("/"), model, "environment.user_url", "environment.user_model")


class Customer:
    """The customer's side of conversations, by `model` at `url`; any number of threads may call it.

    A reply takes at most `deadline` seconds and `attempts` requests. Raises ValueError for an invalid address,
    deadline or key.
    """

    def __init__(self, url: str, model: str, deadline: float = 120.0, *, attempts: int = 4) -> None:
        self._address = address(url, model, deadline)
        self._deadline, self._attempts = deadline, attempts
        self._api = ApiClient(self._address)
        self._down = ""  # why no further request can succeed

    def __call__(self, told: str, said: Sequence[tuple[str, str]], seed: int) -> str:
        """What the customer says next, who was `told` their part.

        `said` are the messages so far, as ("agent" or "customer", text). The temperature is 0. Raises
        EnvironmentFailure where no reply can be had, EpisodeFailure where none is usable, as what the agent said may
        be the reason. The wait counts for no deadline of the episode: it has one of its own.
        """
        # The model plays the customer: to it, the agent is the user.
        roles = {"agent": "user", "customer": "assistant"}
        messages = [{"role": "system", "content": told}, *({"role": roles[who], "content": text} for who, text in said)]
        body = {
            "model": self._address.model,
            "messages": messages,
            "temperature": 0.0,
            "seed": seed,
            "max_tokens": _TOKENS,
        }
        until = time.monotonic() + self._deadline
        with waiting():
            return self._ask(body, until)

    def _ask(self, body: Mapping[str, Any], until: float) -> str:
        def attempt() -> str:
            if self._down:
                raise EnvironmentFailure(self._down)
            return self._api.chat(body, max(0.1, until - time.monotonic()), self._words)

        try:
            return with_retries(attempt, self._attempts, lambda: until - time.monotonic(), time.sleep)
        except CallFailed as failed:
            reason = f"the customer at {self._address.url} does not answer: {failed.reason}"
            if failed.kind == "unauthorised":
                self._down = reason
            given_up = f"; given up after {failed.attempts} attempts" if failed.passing else ""
            failure = EpisodeFailure if failed.kind in _OF_WORDS else EnvironmentFailure
            raise failure(reason + given_up) from None

    def _words(self, reply: Any) -> str:
        """What the customer says in a reply. Raises ValueError, KeyError, IndexError, TypeError for no usable one."""
        text = reply["choices"][0]["message"]["content"]
        if not isinstance(text, str):
            raise TypeError("its content is no text")
        # A lone surrogate, which no encoding has, becomes a question mark.
        words = spoken(self._api.redact(text.encode("utf-8", "replace").decode()))
        if not words:
            raise ValueError("the customer says nothing")
        if len(words) > _LONGEST:
            raise ValueError(f"the customer says {len(words):,} characters; at most {_LONGEST:,} are taken")
        return words


def spoken(text: str) -> str:
    """What a text says to others: what follows its thoughts; nothing where a thought is not ended."""
    said = text.rpartition("</think>")[2]
    return "" if "<think>" in said else said.strip()
