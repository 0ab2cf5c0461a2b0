"""Actors that ask a model behind an OpenAI-compatible chat endpoint, for evaluation.

The server's replies are untrusted. A failed call raises `EngineError`; it never becomes an empty action. Tokens are
unknown, so these episodes cannot be trained on.
"""

import dataclasses
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cojax.environment import Actor, EngineError, Episode, OutOfContext, ask
from cojax.openai_api import Address, ApiClient, CallFailed, with_retries
from cojax.rollout.chat import parse, read_json
from cojax.types import Action, Call, Message, Turn

MOST_TEXT = 200_000  # characters of a reply that are kept
_MOST_CALLS = 256
JsonObject = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class ChatReply:
    """The model's text, and the calls that it asks for: (id, name, arguments as the JSON text that it wrote)."""

    text: str
    calls: tuple[tuple[str, str, str], ...] = ()


# Messages, tools in OpenAI function format, an event that is set once the reply is no longer wanted → the reply.
Complete = Callable[[Sequence[JsonObject], Sequence[Mapping[str, Any]], threading.Event], ChatReply]


@dataclasses.dataclass(eq=False)
class ChatEndpoint:
    """Chat completions of `model` at `url`, with the key in OPENAI_API_KEY. Any number of threads may call it.

    One reply takes at most `deadline` seconds and `attempts` requests. Raises ValueError for an invalid address.
    """

    url: str
    model: str
    _: dataclasses.KW_ONLY
    temperature: float = 0.0
    max_tokens: int = 4096
    deadline: float = 300.0
    attempts: int = 6

    def __post_init__(self) -> None:
        self.url = self.url.rstrip("/")
        self._api = ApiClient(Address(self.url, self.model, "--endpoint", "--endpoint_model"))
        self._down = ""  # why no further request can succeed

    def __call__(
        self, messages: Sequence[JsonObject], tools: Sequence[Mapping[str, Any]], unwanted: threading.Event
    ) -> ChatReply:
        """The model's reply.

        Raises OutOfContext if the server says that the messages are too long for the model, EngineError if no reply can
        be obtained or `unwanted` is set.
        """
        until = time.monotonic() + self.deadline
        body: JsonObject = {"model": self.model, "messages": list(messages)} | ({"tools": list(tools)} if tools else {})
        body |= {"temperature": self.temperature, "max_tokens": self.max_tokens}

        def attempt() -> ChatReply:
            if unwanted.is_set():
                raise EngineError(f"{self.url}: nobody waits for the reply any more")
            if self._down:
                raise EngineError(self._down)
            return self._api.chat(body, max(0.1, until - time.monotonic()), self._reply)

        try:
            return with_retries(attempt, self.attempts, lambda: until - time.monotonic(), unwanted.wait)
        except CallFailed as failed:
            if failed.kind == "too_long":
                raise OutOfContext(failed.reason) from None
            reason = f"{self.url}: {failed.reason}"
            if failed.kind == "unauthorised":
                self._down = reason
            given_up = f"; given up after {failed.attempts} attempts" if failed.passing else ""
            raise EngineError(reason + given_up) from None

    def _reply(self, reply: Any) -> ChatReply:
        """A completion's first choice. Raises KeyError, IndexError, TypeError or AttributeError if it has none."""
        message = reply["choices"][0]["message"]
        text = message.get("content") or ""
        calls = [
            (str(call.get("id") or ""), call["function"]["name"], call["function"].get("arguments") or "{}")
            for call in (message.get("tool_calls") or ())[:_MOST_CALLS]
        ]
        if not all(isinstance(part, str) for part in (text, *(part for call in calls for part in call))):
            raise TypeError("content, names and arguments must be text")
        clean = self._clean
        return ChatReply(clean(text[:MOST_TEXT]), tuple((clean(i), clean(name), clean(raw)) for i, name, raw in calls))

    def _clean(self, text: str) -> str:
        """The text without the API key. A lone surrogate, which UTF-8 cannot encode, becomes a question mark."""
        return self._api.redact(text.encode("utf-8", "replace").decode())


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


@dataclasses.dataclass(eq=False)
class EndpointActor:
    """The actor of one episode. It keeps the message history, and the ids of the calls that wait for results."""

    complete: Complete
    ended: threading.Event
    history: list[JsonObject] = dataclasses.field(default_factory=list)
    tools: tuple[Mapping[str, Any], ...] = ()
    waiting: tuple[str, ...] = ()

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
