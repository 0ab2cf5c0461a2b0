"""Conversations with a simulated customer, in the trainer's process: the customer is asked here, calls go to a worker.

The protocol is the official one: what an agent writes without a call is said to the customer, and the customer ends
the conversation. A model behind an OpenAI-compatible endpoint says what the customer says; its replies are untrusted.
"""

import dataclasses
import functools
import json
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from cojax.environment import Environment, EnvironmentFailure, Episode, EpisodeFailure, LimitExceeded, waiting
from cojax.environment.wrapping import Wrapped, WrappedEpisode
from cojax.openai_api import ApiClient, CallFailed, check_address, with_retries
from cojax.types import Action, Message, Observation, Task, content_hash
from .world import CUSTOMER

# Tokens that a reply may have, of which a thought may take most; the most characters of what the customer says.
_TOKENS, _LONGEST_REPLY = 2_048, 10_000
# The settings that say where the customer's model is, and which it is.
_SETTINGS = ("environment.user_url", "environment.user_model")
# Failures of a call that was taken: the agent's words may be why the endpoint refuses it, or says nothing usable.
_OF_WORDS = frozenset({"malformed", "refused", "too_long"})


def check(url: str, model: str, deadline: float) -> None:
    """Raises ValueError for an invalid address of the customer, an empty model, or an impossible deadline."""
    if not 0 < deadline < math.inf:
        raise ValueError(f"environment.user_deadline is {deadline}; expected seconds above 0")
    check_address(url.rstrip("/"), model, *_SETTINGS)


# What the customer is told, what was said until now, a seed → what the customer says.
Answer = Callable[[str, Sequence[tuple[str, str]], int], str]


def customer(url: str, model: str, deadline: float = 120.0, *, attempts: int = 4) -> Answer:
    """The customer's side of conversations, by `model` at `url`; any number of threads may call it.

    A reply takes at most `deadline` seconds and `attempts` requests. The temperature is 0. `lines` are the messages so
    far, as ("agent" or "customer", text). An answer raises EnvironmentFailure if no reply can be had, and
    EpisodeFailure if none is usable, because what the agent said may be the reason. The wait does not count against a
    deadline of the episode: it has its own. Raises ValueError for an invalid address, deadline or key.
    """
    check(url, model, deadline)
    url = url.rstrip("/")
    api = ApiClient(url, model, *_SETTINGS)
    down = ""  # why no further request can succeed

    def answer(prompt: str, lines: Sequence[tuple[str, str]], seed: int) -> str:
        nonlocal down
        # The model plays the customer: to it, the agent is the user.
        roles = {"agent": "user", "customer": "assistant"}
        chat = [{"role": "system", "content": prompt}, *({"role": roles[who], "content": text} for who, text in lines)]
        body = {"model": model, "messages": chat, "temperature": 0.0, "seed": seed, "max_tokens": _TOKENS}
        until = time.monotonic() + deadline

        def attempt() -> str:
            if down:
                raise EnvironmentFailure(down)
            return api.chat(body, max(0.1, until - time.monotonic()), functools.partial(_words, api))

        try:
            with waiting():
                return with_retries(attempt, attempts, lambda: until - time.monotonic(), time.sleep)
        except CallFailed as error:
            reason = f"the customer at {url} does not answer: {error.reason}"
            if error.kind == "unauthorised":
                down = reason
            suffix = f"; given up after {error.attempts} attempts" if error.passing else ""
            failure = EpisodeFailure if error.kind in _OF_WORDS else EnvironmentFailure
            raise failure(reason + suffix) from None

    return answer


def _words(api: ApiClient, reply: Any) -> str:
    """What the customer says in a reply. Raises ValueError, KeyError, IndexError, TypeError for no usable one."""
    text = reply["choices"][0]["message"]["content"]
    if not isinstance(text, str):
        raise TypeError("its content is not text")
    # A lone surrogate, which no encoding has, becomes a question mark.
    words = spoken(api.redact(text.encode("utf-8", "replace").decode()))
    if not words:
        raise ValueError("the customer says nothing")
    if len(words) > _LONGEST_REPLY:
        raise ValueError(f"the customer says {len(words):,} characters; at most {_LONGEST_REPLY:,} are taken")
    return words


def spoken(text: str) -> str:
    """What a text says to others: the part after its thoughts; nothing if a thought does not end."""
    words = text.rpartition("</think>")[2]
    return "" if "<think>" in words else words.strip()


# The most characters of one message of the agent, and of all of them: what it writes must not exceed the context of the
# customer's model, whose failure would be no failure of the agent.
_LONGEST, _IN_ALL = 4_000, 40_000


def with_customer(environment: Environment, customer: Answer) -> Environment:
    """`environment`, with `customer` answering in its official tasks. Its other tasks are played as before."""

    def start(task: Task) -> Episode:
        episode = environment.start(task)
        return _dialogue(episode, task, customer) if CUSTOMER in task.setup else episode

    return Wrapped(environment, start)


def _dialogue(episode: Episode, task: Task, customer: Answer) -> Episode:
    """The episode of one official task, in which `customer` answers."""
    prompt, remaining = "", _IN_ALL
    messages: list[tuple[str, str]] = []

    def reset() -> tuple[Message, ...]:
        """The official system message, the official first message of the agent, and the customer's answer to it."""
        nonlocal prompt
        *opening, last = episode.reset()
        prompt = last.content
        messages.append(("agent", opening[-1].content))
        try:
            return (*opening, *ask_customer().messages)
        except LimitExceeded as loss:  # nothing of it is the agent's doing
            raise EnvironmentFailure(str(loss)) from loss

    def step(action: Action) -> Observation:
        """Carries out the calls; without one, says the text to the customer, whose answer is the observation."""
        nonlocal remaining
        if action.calls:
            return episode.step(dataclasses.replace(action, text="", error=""))
        text = spoken(action.text.encode("utf-8", "replace").decode())
        if reason := _unsayable(action, text, remaining):
            return Observation((Message("tool", f"error: {reason}"),), ok=False)
        remaining -= len(text)
        messages.append(("agent", text))
        return ask_customer(text)

    def ask_customer(*agent: str) -> Observation:
        """The customer's answer, after both messages were recorded in the episode."""
        # The same conversation gets the same seed, whoever plays it.
        seed = int(content_hash([task.id, len(messages)])[:8], 16) >> 1
        words = customer(prompt, tuple(messages), seed)
        messages.append(("customer", words))
        new_messages = [*(("agent", text) for text in agent), ("customer", words)]
        observation = episode.step(Action(json.dumps(new_messages)))
        if not observation.ok and not observation.done:
            raise EnvironmentFailure(f"the conversation was not recorded: {observation.text}"[:500])
        return Observation((Message("user", words),), done=observation.done)

    return WrappedEpisode(episode, reset=reset, step=step)


def _unsayable(action: Action, text: str, remaining: int) -> str:
    """Why the text is not said to the customer, who reads `remaining` more characters; empty if it is said."""
    if "<tool_call>" in text or not text:
        return (action.error or "the message is empty")[:200]
    if len(text) > _LONGEST:
        return f"the message has {len(text):,} characters; the customer reads at most {_LONGEST:,} at once"
    if len(text) > remaining:
        return f"the customer has read too much; {remaining:,} characters are left of {_IN_ALL:,}"
    return ""
