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
from cojax.openai_api import ApiClient, CallFailed, with_retries
from cojax.rollout.chat import parse, read_json
from cojax.types import Action, Call, Message, Turn

MAX_TEXT = 200_000  # characters of a reply that are kept
_MAX_CALLS = 256
JsonObject = dict[str, Any]


# The model's text, and the calls that it asks for: (id, name, arguments as the JSON text that it wrote).
ChatReply = tuple[str, tuple[tuple[str, str, str], ...]]
# Messages, tools in OpenAI function format, an event that is set once the reply is no longer wanted → the reply.
Complete = Callable[[Sequence[JsonObject], Sequence[Mapping[str, Any]], threading.Event], ChatReply]


def make_chat_endpoint(
    url: str,
    model: str,
    *,
    temperature: float = 0.0,
    max_tokens: int = 4096,
    timeout_s: float = 300.0,
    max_attempts: int = 6,
) -> Complete:
    """Chat completions of `model` at `url`, with the key in OPENAI_API_KEY. Any number of threads may ask for them.

    One reply takes at most `timeout_s` seconds and `max_attempts` requests. Raises ValueError for an invalid address.
    Asking raises OutOfContext if the server says that the messages are too long for the model, EngineError if no reply
    can be obtained or it is no longer wanted.
    """
    url, outage = url.rstrip("/"), ""  # why no further request can succeed
    api = ApiClient(url, model, "--endpoint", "--endpoint_model")

    def complete(
        messages: Sequence[JsonObject], tools: Sequence[Mapping[str, Any]], cancel_event: threading.Event
    ) -> ChatReply:
        nonlocal outage
        until = time.monotonic() + timeout_s
        request: JsonObject = {"model": model, "messages": list(messages)} | ({"tools": list(tools)} if tools else {})
        request |= {"temperature": temperature, "max_tokens": max_tokens}

        def request_reply() -> ChatReply:
            if cancel_event.is_set():
                raise EngineError(f"{url}: nobody waits for the reply any more")
            if outage:
                raise EngineError(outage)
            return api.chat(request, max(0.1, until - time.monotonic()), lambda reply: _read_choice(reply, api.redact))

        try:
            return with_retries(request_reply, max_attempts, lambda: until - time.monotonic(), cancel_event.wait)
        except CallFailed as failure:
            if failure.kind == "too_long":
                raise OutOfContext(failure.reason) from None
            reason = f"{url}: {failure.reason}"
            if failure.kind == "unauthorised":
                outage = reason
            suffix = f"; given up after {failure.attempts} attempts" if failure.may_pass else ""
            raise EngineError(reason + suffix) from None

    return complete


def _read_choice(reply: Any, redact: Callable[[str], str]) -> ChatReply:
    """A completion's first choice, redacted. Raises KeyError, IndexError, TypeError or AttributeError if it has none.

    A lone surrogate, which UTF-8 cannot encode, becomes a question mark.
    """
    message = reply["choices"][0]["message"]
    reply_text = message.get("content") or ""
    calls = [
        (str(call.get("id") or ""), call["function"]["name"], call["function"].get("arguments") or "{}")
        for call in (message.get("tool_calls") or ())[:_MAX_CALLS]
    ]
    if not all(isinstance(field, str) for field in (reply_text, *(field for call in calls for field in call))):
        raise TypeError("content, names and arguments must be text")

    def mask(text: str) -> str:
        return redact(text.encode("utf-8", "replace").decode())

    return mask(reply_text[:MAX_TEXT]), tuple((mask(call_id), mask(tool), mask(args)) for call_id, tool, args in calls)


@dataclasses.dataclass(frozen=True)
class EndpointActors:
    """`Actors` that all ask one endpoint. Seeds are ignored: they are not sent."""

    complete: Complete
    _cancel_events: dict[str, threading.Event] = dataclasses.field(default_factory=dict)

    def __call__(self, session: str, seed: tuple[int, ...]) -> Actor:
        """The actor of one episode. It keeps the messages so far, and the ids of the calls that wait for results."""
        cancel_event = self._cancel_events.setdefault(session, threading.Event())
        history, tools, waiting_ids = list[JsonObject](), tuple[Mapping[str, Any], ...](), tuple[str, ...]()

        def act(episode: Episode, messages: tuple[Message, ...]) -> Turn:
            nonlocal tools, waiting_ids
            if not history:
                tools = tuple(ask(episode.tools))
            history.extend(make_environment_messages(messages, waiting_ids))
            start_time = time.perf_counter()
            reply = self.complete(history, tools, cancel_event)
            engine_seconds = time.perf_counter() - start_time
            action = parse_reply(reply)
            message, waiting_ids = make_assistant_message(reply, action, turn_index=len(history))
            history.append(message)
            return Turn(action, engine_seconds=engine_seconds)

        return act

    def release(self, session: str) -> None:
        if (cancel_event := self._cancel_events.pop(session, None)) is not None:
            cancel_event.set()


def parse_reply(reply: ChatReply) -> Action:
    """The action of a reply: the calls it asks for, or else those written in its text, as in a policy's reply.

    Never raises. If one call cannot be parsed, the action has no calls.
    """
    text, reply_calls = reply
    if not reply_calls:
        return parse(text)
    calls = []
    for _, tool_name, arguments_json in reply_calls:
        try:
            arguments = read_json(arguments_json)
            if not isinstance(arguments, dict):
                raise ValueError("without an object of arguments")
        except ValueError as error:
            return Action("\n".join(filter(None, (text, _write_calls(reply_calls)))), (), f"tool call is {error}")
        calls.append(Call(tool_name, arguments))
    return Action(text, tuple(calls))


def make_assistant_message(reply: ChatReply, action: Action, turn_index: int) -> tuple[JsonObject, tuple[str, ...]]:
    """The reply as a message of the history, and the ids of its calls, which wait for results.

    Calls that cannot be parsed are written as text: many servers refuse a history with invalid JSON arguments.
    """
    text, reply_calls = reply
    if not reply_calls or action.error:
        return {"role": "assistant", "content": action.text}, ()
    call_ids = [call_id for call_id, _, _ in reply_calls]
    if len(set(call_ids)) < len(call_ids) or not all(call_ids):
        call_ids = [f"call_{turn_index}_{index}" for index in range(len(call_ids))]
    calls = [
        {"id": call_id, "type": "function", "function": {"name": tool_name, "arguments": arguments_json}}
        for call_id, (_, tool_name, arguments_json) in zip(call_ids, reply_calls, strict=True)
    ]
    return {"role": "assistant", "content": text, "tool_calls": calls}, tuple(call_ids)


def make_environment_messages(messages: Sequence[Message], waiting_ids: Sequence[str]) -> list[JsonObject]:
    """New messages of the environment as messages of the history.

    Each waiting call gets one result, and the last one also gets any extra results. If no call waits, results become
    user messages.
    """
    tool_results = [message.content for message in messages if message.role == "tool"] if waiting_ids else []
    last_index = len(waiting_ids) - 1
    results = [*tool_results[:last_index], "\n".join(tool_results[last_index:])]
    results += [""] * (len(waiting_ids) - len(results))
    tool_messages: list[JsonObject] = [
        {"role": "tool", "tool_call_id": id, "content": text} for id, text in zip(waiting_ids, results, strict=False)
    ]
    others = [message for message in messages if message.role != "tool" or not waiting_ids]
    roles = {"system", "user", "assistant"}
    return tool_messages + [{"role": m.role if m.role in roles else "user", "content": m.content} for m in others]


def _write_calls(calls: Sequence[tuple[str, str, str]]) -> str:
    """The calls as a policy would have written them, whether they can be parsed or not."""
    return "\n".join(
        f'<tool_call>\n{{"name": {json.dumps(tool)}, "arguments": {args}}}\n</tool_call>' for _, tool, args in calls
    )[:MAX_TEXT]
