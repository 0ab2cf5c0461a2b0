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
from .world import CUSTOMER_SPEAKER

# Limits on a reply: its tokens, of which a thought may take most, and the characters that the customer says.
_MAX_TOKENS, _MAX_REPLY_CHARS = 2_048, 10_000
# The settings that say where the customer's model is, and which it is.
_ENDPOINT_SETTINGS = ("environment.user_url", "environment.user_model")
# Failures of a call that was taken: the agent's words may be why the endpoint refuses it, or says nothing usable.
_AGENT_CAUSED_KINDS = frozenset({"malformed", "refused", "too_long"})


def check_endpoint(url: str, model: str, timeout_s: float) -> None:
    """Raises ValueError for an invalid address of the customer, an empty model, or an impossible deadline."""
    if not 0 < timeout_s < math.inf:
        raise ValueError(f"environment.user_deadline is {timeout_s}; expected seconds above 0")
    check_address(url.rstrip("/"), model, *_ENDPOINT_SETTINGS)


# What the customer is told, what was said until now, a seed → what the customer says.
AskCustomer = Callable[[str, Sequence[tuple[str, str]], int], str]


def make_customer(url: str, model: str, timeout_s: float = 120.0, *, attempts: int = 4) -> AskCustomer:
    """The customer's side of conversations, by `model` at `url`; any number of threads may call it.

    A reply takes at most `timeout_s` seconds and `attempts` requests. The temperature is 0. `messages` are the messages
    so far, as ("agent" or "customer", text). An answer raises EnvironmentFailure if no reply can be had, and
    EpisodeFailure if none is usable, because what the agent said may be the reason. The wait does not count against a
    deadline of the episode: it has its own. Raises ValueError for an invalid address, deadline or key.
    """
    check_endpoint(url, model, timeout_s)
    url = url.rstrip("/")
    api = ApiClient(url, model, *_ENDPOINT_SETTINGS)
    lasting_failure = ""  # why no further request can succeed

    def ask_model(prompt: str, lines: Sequence[tuple[str, str]], seed: int) -> str:
        nonlocal lasting_failure
        # The model plays the customer: to it, the agent is the user.
        roles = {"agent": "user", "customer": "assistant"}
        chat = [{"role": "system", "content": prompt}, *({"role": roles[who], "content": text} for who, text in lines)]
        request_body = {"model": model, "messages": chat, "temperature": 0.0, "seed": seed, "max_tokens": _MAX_TOKENS}
        deadline = time.monotonic() + timeout_s

        def attempt() -> str:
            if lasting_failure:
                raise EnvironmentFailure(lasting_failure)
            return api.chat(request_body, max(0.1, deadline - time.monotonic()), functools.partial(_read_words, api))

        try:
            with waiting():
                return with_retries(attempt, attempts, lambda: deadline - time.monotonic(), time.sleep)
        except CallFailed as error:
            reason = f"the customer at {url} does not answer: {error.reason}"
            if error.kind == "unauthorised":
                lasting_failure = reason
            suffix = f"; given up after {error.attempts} attempts" if error.may_pass else ""
            failure_type = EpisodeFailure if error.kind in _AGENT_CAUSED_KINDS else EnvironmentFailure
            raise failure_type(reason + suffix) from None

    return ask_model


def _read_words(api: ApiClient, reply: Any) -> str:
    """What the customer says in a reply. Raises ValueError, KeyError, IndexError, TypeError for no usable one."""
    content = reply["choices"][0]["message"]["content"]
    if not isinstance(content, str):
        raise TypeError("its content is not text")
    # A lone surrogate, which no encoding has, becomes a question mark.
    reply_text = strip_thought(api.redact(content.encode("utf-8", "replace").decode()))
    if not reply_text:
        raise ValueError("the customer says nothing")
    if len(reply_text) > _MAX_REPLY_CHARS:
        raise ValueError(f"the customer says {len(reply_text):,} characters; at most {_MAX_REPLY_CHARS:,} are taken")
    return reply_text


def strip_thought(text: str) -> str:
    """What a text says to others: the part after its thoughts; nothing if a thought does not end."""
    speech = text.rpartition("</think>")[2]
    return "" if "<think>" in speech else speech.strip()


# Limits on the characters of one message of the agent, and of all of them: what it writes must not exceed the context
# of the customer's model, whose failure would not be the agent's.
_MAX_SAID_CHARS, _MAX_DIALOGUE_CHARS = 4_000, 40_000


def add_customer(environment: Environment, customer: AskCustomer) -> Environment:
    """`environment`, with `customer` answering in its official tasks. Its other tasks are played as before."""

    def start(task: Task) -> Episode:
        episode = environment.start(task)
        return _make_dialogue(episode, task, customer) if CUSTOMER_SPEAKER in task.setup else episode

    return Wrapped(environment, start)


def _make_dialogue(episode: Episode, task: Task, customer: AskCustomer) -> Episode:
    """The episode of one official task, in which `customer` answers."""
    customer_prompt, remaining_chars = "", _MAX_DIALOGUE_CHARS
    messages: list[tuple[str, str]] = []

    def reset() -> tuple[Message, ...]:
        """The official system message, the official first message of the agent, and the customer's answer to it."""
        nonlocal customer_prompt
        *opening, prompt_message = episode.reset()
        customer_prompt = prompt_message.content
        messages.append(("agent", opening[-1].content))
        try:
            return (*opening, *ask_customer().messages)
        except LimitExceeded as error:  # nothing of it is the agent's doing
            raise EnvironmentFailure(str(error)) from error

    def step(action: Action) -> Observation:
        """Carries out the calls; without one, says the text to the customer, whose answer is the observation."""
        nonlocal remaining_chars
        if action.calls:
            return episode.step(dataclasses.replace(action, text="", error=""))
        said_text = strip_thought(action.text.encode("utf-8", "replace").decode())
        if complaint := _explain_unsayable(action, said_text, remaining_chars):
            return Observation((Message("tool", f"error: {complaint}"),), ok=False)
        remaining_chars -= len(said_text)
        messages.append(("agent", said_text))
        return ask_customer(said_text)

    def ask_customer(*agent_texts: str) -> Observation:
        """The customer's answer, after both messages were recorded in the episode."""
        # The same conversation gets the same seed, whoever plays it.
        seed = int(content_hash([task.id, len(messages)])[:8], 16) >> 1
        reply_text = customer(customer_prompt, tuple(messages), seed)
        messages.append(("customer", reply_text))
        new_messages = [*(("agent", said_text) for said_text in agent_texts), ("customer", reply_text)]
        observation = episode.step(Action(json.dumps(new_messages)))
        if not observation.ok and not observation.done:
            raise EnvironmentFailure(f"the conversation was not recorded: {observation.text}"[:500])
        return Observation((Message("user", reply_text),), done=observation.done)

    return WrappedEpisode(episode, reset=reset, step=step)


def _explain_unsayable(action: Action, text: str, remaining_chars: int) -> str:
    """Why the text is not said to the customer, who reads `remaining_chars` more characters; empty if it is said."""
    if "<tool_call>" in text or not text:
        return (action.error or "the message is empty")[:200]
    if len(text) > _MAX_SAID_CHARS:
        return f"the message has {len(text):,} characters; the customer reads at most {_MAX_SAID_CHARS:,} at once"
    if len(text) > remaining_chars:
        return f"the customer has read too much; {remaining_chars:,} characters are left of {_MAX_DIALOGUE_CHARS:,}"
    return ""
