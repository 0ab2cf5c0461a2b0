"""The actors of an endpoint: what an episode says becomes the messages of a chat, and the model's reply an action."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from cojax.environment import Actor, Episode, ask
from cojax.rollout.chat import parse, read_json
from cojax.rollout.endpoint import MOST_TEXT, ChatReply, Complete, JsonObject
from cojax.types import Action, Call, Message, Turn


@dataclasses.dataclass(frozen=True)
class EndpointActors:
    """Has one endpoint play every episode; an entry of `Actors`. The server's randomness is not ours to seed."""

    complete: Complete
    _ended: dict[str, threading.Event] = dataclasses.field(default_factory=dict)

    def __call__(self, session: str, seed: tuple[int, ...]) -> Actor:
        return EndpointActor(self.complete, self._ended.setdefault(session, threading.Event()))

    def release(self, session: str) -> None:
        if (ended := self._ended.pop(session, None)) is not None:
            ended.set()


class EndpointActor:
    """The actor of one episode: it remembers the messages, and which calls wait for their results."""

    def __init__(self, complete: Complete, ended: threading.Event):
        self.complete, self.ended = complete, ended
        self.said: list[JsonObject] = []
        self.tools: tuple[Mapping[str, Any], ...] = ()
        self.waiting: tuple[str, ...] = ()

    def __call__(self, episode: Episode, messages: tuple[Message, ...]) -> Turn:
        if not self.said:
            self.tools = tuple(ask(episode.tools))
        self.said += heard(messages, self.waiting)
        began = time.perf_counter()
        reply = self.complete(self.said, self.tools, self.ended)
        seconds = time.perf_counter() - began
        action = action_of(reply)
        entry, self.waiting = spoken(reply, action, turn=len(self.said))
        self.said.append(entry)
        return Turn(action, engine_seconds=seconds)


def action_of(reply: ChatReply) -> Action:
    """The action that a reply stands for: the calls it asks for, else those written in its text, as a policy's would
    be. Never raises; where one call cannot be read none counts."""
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


def spoken(reply: ChatReply, action: Action, turn: int) -> tuple[JsonObject, tuple[str, ...]]:
    """The reply as a message of the history, and the ids of the calls that wait for a result.

    Calls that could not be read go back as text: many servers refuse a history whose arguments are no JSON.
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


def heard(messages: Sequence[Message], waiting: Sequence[str]) -> list[JsonObject]:
    """New messages of the environment as those of the history: results one by one to the calls that wait for them, the
    last takes what is left over. Where no call waits, a result is said by the user."""
    results = [message.content for message in messages if message.role == "tool"] if waiting else []
    kept = len(waiting) - 1
    texts = [*results[:kept], "\n".join(results[kept:])]
    texts += [""] * (len(waiting) - len(texts))
    told: list[JsonObject] = [
        {"role": "tool", "tool_call_id": own, "content": text} for own, text in zip(waiting, texts, strict=False)
    ]
    others = [message for message in messages if message.role != "tool" or not waiting]
    roles = {"system", "user", "assistant"}
    return told + [{"role": m.role if m.role in roles else "user", "content": m.content} for m in others]


def _as_text(reply: ChatReply) -> str:
    """The calls as a policy would have written them, whatever they hold."""
    return "\n".join(
        f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {written}}}\n</tool_call>'
        for _, name, written in reply.calls
    )[:MOST_TEXT]
