"""Conversations with a simulated customer, in the trainer's process: the customer is asked here, calls go to a worker.

The protocol is the official one: what an agent writes without a call is said to the customer, and the customer ends
the conversation.
"""

import dataclasses
import json
from collections.abc import Callable, Sequence

from cojax.environment import Environment, EnvironmentFailure, Episode, LimitExceeded
from cojax.environment.wrapping import Wrapped, WrappedEpisode
from cojax.types import Action, Message, Observation, Task, content_hash
from .customer import spoken
from .tasks import CUSTOMER

# What the customer is told, what was said until now, a seed → what the customer says.
Answer = Callable[[str, Sequence[tuple[str, str]], int], str]
# The most characters of one message of the agent, and of all of them: what it writes must not exceed the context of the
# customer's model, whose failure would be no failure of the agent.
_LONGEST, _IN_ALL = 4_000, 40_000


def conversing(environment: Environment, customer: Answer) -> Environment:
    """`environment`, in whose official tasks `customer` answers. Its other tasks are played as before."""

    def start(task: Task) -> Episode:
        episode = environment.start(task)
        if CUSTOMER not in task.setup:
            return episode
        dialogue = _Dialogue(episode, task, customer)
        return WrappedEpisode(episode, reset=dialogue.reset, step=dialogue.step)

    return Wrapped(environment, start)


class _Dialogue:
    """What was said in one episode, and who answers."""

    def __init__(self, episode: Episode, task: Task, customer: Answer) -> None:
        self._episode, self._task, self._customer = episode, task, customer
        self._told = ""
        self._said: list[tuple[str, str]] = []
        self._left = _IN_ALL

    def reset(self) -> tuple[Message, ...]:
        """The official system message, the official first message of the agent, and the customer's answer to it."""
        *opening, told = self._episode.reset()
        self._told = told.content
        self._said.append(("agent", opening[-1].content))
        try:
            return (*opening, *self._answered().messages)
        except LimitExceeded as loss:  # nothing of it is the agent's doing
            raise EnvironmentFailure(str(loss)) from loss

    def step(self, action: Action) -> Observation:
        """Carries out the calls; without one, says the text to the customer, whose answer is the observation."""
        if action.calls:
            return self._episode.step(dataclasses.replace(action, text="", error=""))
        text = spoken(action.text.encode("utf-8", "replace").decode())
        if reason := self._unsayable(action, text):
            return Observation((Message("tool", f"error: {reason}"),), ok=False)
        self._left -= len(text)
        self._said.append(("agent", text))
        return self._answered(text)

    def _unsayable(self, action: Action, text: str) -> str:
        """Why the text is not said to the customer; empty where it is."""
        if "<tool_call>" in text or not text:
            return (action.error or "the message is empty")[:200]
        if len(text) > _LONGEST:
            return f"the message has {len(text):,} characters; the customer reads at most {_LONGEST:,} at once"
        if len(text) > self._left:
            return f"the customer has read too much; {self._left:,} characters are left of {_IN_ALL:,}"
        return ""

    def _answered(self, *agent: str) -> Observation:
        """The customer's answer, after both messages were recorded in the episode."""
        # The same conversation gets the same seed, whoever plays it.
        seed = int(content_hash([self._task.id, len(self._said)])[:8], 16) >> 1
        words = self._customer(self._told, tuple(self._said), seed)
        self._said.append(("customer", words))
        heard = [*(("agent", text) for text in agent), ("customer", words)]
        shown = self._episode.step(Action(json.dumps(heard)))
        if not shown.ok and not shown.done:
            raise EnvironmentFailure(f"the conversation was not recorded: {shown.text}"[:500])
        return Observation((Message("user", words),), done=shown.done)
