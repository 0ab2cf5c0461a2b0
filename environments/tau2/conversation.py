"""An official task as a conversation with a customer, in the worker: calls, messages, and the official verdict.

What the customer says is asked for in the trainer's process (dialogue.py), as a worker has no network.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from cojax.types import Action, Evaluation, Message, Observation
from ..tools.toolset import Refused, Tool, perform
from .official import Texts
from .world import World

# The most calls of an action that are carried out.
_CALLS = 64


class Conversation:
    """The episode of one task in this world. `judge` is told whether the customer has ended the conversation.

    An action with calls is the agent's. One without calls is the trainer's, never a policy's: its text is JSON, a list
    of messages that were said, each as [who says it, text], where who is "agent" or "customer".
    """

    def __init__(
        self,
        world: World,
        tools: Mapping[str, Tool],
        system: str,
        told: str,
        texts: Texts,
        judge: Callable[[bool], Evaluation],
    ):
        self._world, self._tools, self._system, self._told = world, tools, system, told
        self._texts, self._judge = texts, judge
        self._said: list[tuple[str, str]] = []
        self._over = False

    def reset(self) -> tuple[Message, ...]:
        """The agent's system message, its first message, and last what the customer is told, which is not for it."""
        self._hear("agent", self._texts.greeting)
        return (
            Message("system", self._system),
            Message("assistant", self._texts.greeting),
            Message("user", self._told),
        )

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(tool.document() for tool in self._tools.values())

    def step(self, action: Action) -> Observation:
        """Carries out the calls in order, also after a refused one; one message for each call."""
        if self._over:
            return Observation((Message("tool", "error: the customer has ended the conversation"),), False, True)
        if not action.calls:
            for who, text in json.loads(action.text):
                self._hear(who, text)
            return Observation(done=self._over)
        messages, ok = [], len(action.calls) <= _CALLS
        for call in action.calls[:_CALLS]:
            try:
                text = perform(self._tools, self._world, call)
            except Refused as refusal:
                ok, text = False, f"error: {refusal}"
            messages.append(Message("tool", text))
        if len(action.calls) > _CALLS:
            messages.append(Message("tool", f"error: only {_CALLS} calls at once; the rest were not carried out"))
        return Observation(tuple(messages), ok)

    def state(self) -> Mapping[str, Any]:
        return {"world": self._world.state(), "said": [list(one) for one in self._said], "finished": self._over}

    def affordances(self) -> tuple[Action, ...]:
        """None: what an agent may say is not listed, and no explorer starts from an official task."""
        return ()

    def evaluate(self) -> Evaluation:
        return self._judge(self._over)

    def close(self) -> None:
        """It holds nothing."""

    def _hear(self, who: str, text: str) -> None:
        self._said.append((who, text))
        self._world.hear(who, text)
        self._over |= who == "customer" and any(stop in text for stop in self._texts.stops)
