"""Actors that ask a chat endpoint: observations become chat messages, and the model's replies become actions."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from cojax.environment import Actor, Episode, ask
from cojax.rollout.endpoint import MOST_TEXT, ChatReply, Complete, JsonObject
from cojax.rollout.tool_calls import parse, read_json
from cojax.types import Action, Call, Message, Turn


@dataclasses.dataclass(frozen=True)
class EndpointActors:
    """`Actors` that all ask one endpoint. Seeds are ignored: they are not sent."""

    complete: Complete
    _ended: dict[str, threading.Event] = dataclasses.field(default_factory=dict)

    def __call__(self, session: str, seed: tuple[int, ...]) -> Actor:
        return EndpointActor(self.complete, self._ended.setdefault(session, threading.Event()))

    def release(self, session: str) -> None:
        if (ended := self._ended.pop(session, None)) is not None:
            ended.set()


class EndpointActor:
    """The actor of one episode. It keeps the message history, and the ids of the calls that wait for results."""

    def __init__(self, complete: Complete, ended: threading.Event):
        self.complete, self.ended = complete, ended
        self.history: list[JsonObject] = []
        self.tools: tuple[Mapping[str, Any], ...] = ()
        self.waiting: tuple[str, ...] = ()

    def __call__(self, episode: Episode, messages: tuple[Message, ...]) -> Turn:
        if not self.history:
            self.tools = tuple(ask(episode.tools))
        self.history += environment_messages(messages, self.waiting)
        began = time.perf_counter()
        reply = self.complete(self.history, self.tools, self.ended)
        seconds = time.perf_counter() - began
        action = action_of(reply)
        message, self.waiting = assistant_message(reply, action, turn=len(self.history))
        self.history.append(message)
        return Turn(action, engine_seconds=seconds)


def action_of(reply: ChatReply) -> Action:
    """The action of a reply: the calls it asks for, or else those written in its text, as in a policy's reply.

    Never raises. If one call cannot be parsed, the action has no calls.
    """
    if not reply.calls:
        return parse(reply.text)
    calls = []
    for _, name, written in reply.calls:
        try:
            arguments = read_json(written)
            if not isinstance(arguments, dict):
                raise ValueError("without an object of arguments")
        except ValueError as error:
            return Action("\n".join(filter(None, (reply.text, _as_text(reply)))), (), f"tool call is {error}")
        calls.append(Call(name, arguments))
    return Action(reply.text, tuple(calls))


def assistant_message(reply: ChatReply, action: Action, turn: int) -> tuple[JsonObject, tuple[str, ...]]:
    """The reply as a message of the history, and the ids of its calls, which wait for results.

    Calls that cannot be parsed are written as text: many servers refuse a history with invalid JSON arguments.
    """
    if not reply.calls or action.error:
        return {"role": "assistant", "content": action.text}, ()
    ids = [given for given, _, _ in reply.calls]
    if len(set(ids)) < len(ids) or not all(ids):
        ids = [f"call_{turn}_{place}" for place in range(len(ids))]
    calls = [
        {"id": own, "type": "function", "function": {"name": name, "arguments": written}}
        for own, (_, name, written) in zip(ids, reply.calls, strict=True)
    ]
    return {"role": "assistant", "content": reply.text, "tool_calls": calls}, tuple(ids)


def environment_messages(messages: Sequence[Message], waiting: Sequence[str]) -> list[JsonObject]:
    """New messages of the environment as messages of the history.

    Each waiting call gets one result, and the last call also any extra results. If no call waits, results become user
    messages.
    """
    results = [message.content for message in messages if message.role == "tool"] if waiting else []
    kept = len(waiting) - 1
    texts = [*results[:kept], "\n".join(results[kept:])]
    texts += [""] * (len(waiting) - len(texts))
    answers: list[JsonObject] = [
        {"role": "tool", "tool_call_id": own, "content": text} for own, text in zip(waiting, texts, strict=False)
    ]
    others = [message for message in messages if message.role != "tool" or not waiting]
    roles = {"system", "user", "assistant"}
    return answers + [{"role": m.role if m.role in roles else "user", "content": m.content} for m in others]


def _as_text(reply: ChatReply) -> str:
    """The calls as a policy would have written them, whether they can be parsed or not."""
    return "\n".join(
        f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {written}}}\n</tool_call>'
        for _, name, written in reply.calls
    )[:MOST_TEXT]
