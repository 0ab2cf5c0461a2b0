"""Renders conversations to tokens and parses tool calls from them; a trajectory's tokens are only ever appended to.

Token in, token out. What was sampled is kept as ids and never rendered again; new messages are rendered as the
difference template(stub + new) − template(stub). Control tokens come only from the template (control_tokens.py): there
is a fixed set of roles, and a literal `<|im_end|>` in a query, an observation or a tool's documentation stays text.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from transformers import PreTrainedTokenizerBase

from cojax.environment import Actor, Episode, ask
from cojax.rollout.control_tokens import ControlTokens, Mask
from cojax.rollout.engine import Engine, Sampling
from cojax.storage.strict_json import NestedTooDeeply, parse_json
from cojax.types import ROLES, Action, Call, Message, Turn

_OPENS, _CLOSES = "<tool_call>", "</tool_call>"
# The "<" of a literal that begins or ends a tool call or a thought.
_ANGLE = re.compile(r"<(?=/?(?:tool_call|think)>)")
_STUB = (Message("user", "x"), Message("assistant", "y"))
_TEXT_CHARACTERS = 100_000
_DEPTH = 32
Tool = Mapping[str, Any]  # a tool's documentation in OpenAI function format


def whole_document(tool: Tool) -> Tool | None:
    """The documentation as the environment gives it."""
    return tool


def names_only(tool: Tool) -> Tool | None:
    """The tool's name and the names of its arguments, for a policy with a short context."""
    function = tool["function"]
    return {"name": function["name"], "arguments": list(function.get("parameters", {}).get("properties", {}))}


def no_document(tool: Tool) -> Tool | None:
    """Nothing: the policy knows its tools by training."""
    return None


# How much of a tool's documentation the policy is shown: tool → document, None for no document.
TOOL_DOCUMENTS: dict[str, Callable[[Tool], Tool | None]] = {
    "full": whole_document,
    "brief": names_only,
    "none": no_document,
}


class Chat:
    """Renders messages with one tokenizer and its template.

    `shown`, one of `TOOL_DOCUMENTS`, says what the policy is shown of each tool.

    Raises ValueError at construction when the template cannot be extended turn by turn or disagrees with the
    tokenizer's own rendering.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, shown: Callable[[Tool], Tool | None] = whole_document):
        if not tokenizer.chat_template:
            raise ValueError("the tokenizer has no chat_template; save one in its tokenizer_config.json")
        self.tokenizer = tokenizer
        self.shown = shown
        self.end: int = tokenizer.eos_token_id
        self._end_text: str = tokenizer.eos_token
        self._controls = ControlTokens(tokenizer)
        self.extend = functools.lru_cache(maxsize=8_192)(self._extend)
        self._open_cached = functools.lru_cache(maxsize=1_024)(self._open)
        self._check()

    def open(self, messages: tuple[Message, ...], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        """Tokens of the opening messages, with the tools on offer documented, and of the generation prompt."""
        # Keys keep the environment's order: models were trained to read them in that order.
        documents = [shown for tool in tools if (shown := self.shown(tool)) is not None]
        return self._open_cached(messages, json.dumps(documents, ensure_ascii=False))

    def _open(self, messages: tuple[Message, ...], tools: str) -> tuple[int, ...]:
        documents = json.loads(tools)

        def rendered(mask: Mask) -> str:
            shown = self._controls.mask_json(documents, mask)
            return self._template(_masked(messages, mask), generate=True, tools=shown)

        return self._controls.render(rendered, tools + _contents(messages))

    def _extend(self, messages: tuple[Message, ...], ended: bool) -> tuple[int, ...]:
        """Tokens that follow a sampled action: the new messages and the generation prompt.

        `ended` says whether the action ended in the stop token. If not, the stop token comes first.
        """
        added = self._controls.render(lambda mask: self._difference(_masked(messages, mask)), _contents(messages))
        return (() if ended else (self.end,)) + added

    @staticmethod
    def write(calls: Iterable[Call]) -> str:
        """The text by which the policy makes these calls; within a call "<" of a literal is written as \\u003c."""
        bodies = ({"name": call.name, "arguments": dict(call.arguments)} for call in calls)
        written = (_ANGLE.sub(r"\\u003c", json.dumps(body, ensure_ascii=False)) for body in bodies)
        return "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in written)

    def encode_action(self, action: Action) -> tuple[int, ...]:
        """Tokens of an action as the policy would have sampled it, stop token included."""
        return (*self._controls.encode_action(action.text or self.write(action.calls)), self.end)

    def read(self, tokens: Sequence[int]) -> Action:
        """The action in sampled tokens, with its calls parsed; never raises."""
        body = tokens[:-1] if tokens and tokens[-1] == self.end else tokens
        text = self.tokenizer.decode(list(body), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return parse(str(text))

    def _template(self, messages: Sequence[Message], *, generate: bool, tools: Sequence[Tool] = ()) -> str:
        rendered = self.tokenizer.apply_chat_template(
            [{"role": message.role, "content": message.content} for message in messages],
            tools=[dict(tool) for tool in tools] or None,
            tokenize=False,
            add_generation_prompt=generate,
        )
        assert isinstance(rendered, str)
        return rendered

    def _difference(self, messages: Sequence[Message]) -> str:
        head = self._template(_STUB, generate=False)
        whole = self._template((*_STUB, *messages), generate=True)
        if not whole.startswith(head):
            raise ValueError("the chat template rewrites earlier turns when a message is added; cannot extend it")
        return whole[head.rindex(self._end_text) + len(self._end_text) :]

    def _check(self) -> None:
        """Raises ValueError unless turns can be appended and harmless text is rendered as by the tokenizer itself."""
        opening, reply = (Message("user", "a b"),), (Message("tool", "c"),)
        self._difference(reply)
        ours = self.open(opening)
        theirs = self.tokenizer(self._template(opening, generate=True), add_special_tokens=False).input_ids
        if list(ours) != list(theirs):
            raise ValueError(f"the template renders to {list(ours)} here but to {list(theirs)} by the tokenizer itself")
        if self.extend(reply, False)[0] != self.end:
            raise ValueError(f"a turn must end in {self._end_text!r}, the tokenizer's eos_token")


def _contents(messages: Iterable[Message]) -> str:
    return "".join(message.content for message in messages)


def _masked(messages: Iterable[Message], mask: Mask) -> list[Message]:
    """The messages with their text masked. Raises ValueError for an unknown role."""
    messages = list(messages)
    if unknown := [message.role for message in messages if message.role not in ROLES]:
        raise ValueError(f"a message has the role {unknown[0]!r:.100}; expected one of {', '.join(sorted(ROLES))}")
    return [Message(message.role, mask(message.content)) for message in messages]


def parse(text: str) -> Action:
    """The action in a text. Every `<tool_call>` must hold {"name": str, "arguments": object}, or no call counts.

    Calls before `</think>` were only thoughts and are left out.
    """
    found = list(_bodies(text[:_TEXT_CHARACTERS].rpartition("</think>")[2]))
    if not found:
        return Action(text, (), "no tool call found")
    calls = []
    for body in found:
        try:
            value = read_json(body)
        except ValueError as error:
            return Action(text, (), f"tool call is {error}")
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            return Action(text, (), "tool call needs a name")
        arguments = value.get("arguments", {})
        if not isinstance(arguments, dict):
            return Action(text, (), "arguments must be an object")
        calls.append(Call(value["name"], arguments))
    return Action(text, tuple(calls))


def _bodies(text: str) -> Iterator[str]:
    """The text between each `<tool_call>` and the next `</tool_call>`; takes time linear in the text."""
    end = 0
    while (start := text.find(_OPENS, end)) >= 0 and (end := text.find(_CLOSES, start)) >= 0:
        yield text[start + len(_OPENS) : end]
        end += len(_CLOSES)


def read_json(body: str) -> Any:
    """A value that a model wrote, by the letter of JSON. Raises ValueError that completes "it is …"."""
    try:
        return parse_json(body, depth=_DEPTH)
    except NestedTooDeeply:
        raise ValueError("nested too deeply") from None
    except ValueError:
        raise ValueError("not valid JSON") from None


class Actors(Protocol):
    """Gives every episode an actor, until its session is released. Called from many threads at once."""

    def __call__(self, session: str, seed: tuple[int, ...]) -> Actor:
        """The actor of one episode. `seed` decides its random numbers, unless a server draws them."""

    def release(self, session: str) -> None:
        """Ends the session; an actor that is still at work in it ends soon. Unknown is fine."""


@dataclasses.dataclass(frozen=True)
class PolicyActors:
    """Actors that sample from the policy of an engine."""

    engine: Engine
    chat: Chat
    sampling: Sampling

    def __call__(self, session: str, seed: tuple[int, ...]) -> Actor:
        return PolicyActor(self.engine, self.chat, self.sampling, session=session, seed=seed)

    def release(self, session: str) -> None:
        self.engine.release(session)


class PolicyActor:
    """The actor of one episode: renders the new messages, samples an action, and keeps every token."""

    def __init__(self, engine: Engine, chat: Chat, sampling: Sampling, *, session: str, seed: tuple[int, ...]):
        self.engine, self.chat, self.sampling = engine, chat, sampling
        self.session, self.seed = session, seed
        self.tokens: tuple[int, ...] = ()
        self.turns = 0

    def __call__(self, episode: Episode, messages: tuple[Message, ...]) -> Turn:
        if self.tokens:
            new = self.chat.extend(messages, self.tokens[-1] == self.chat.end)
        else:
            new = self.chat.open(messages, ask(episode.tools))
        prompt = self.tokens + new
        done = self.engine.generate(prompt, self.sampling, session=self.session, seed=(*self.seed, self.turns))
        self.tokens = prompt + done.tokens
        self.turns += 1
        return Turn(
            action=self.chat.read(done.tokens),
            prompt_tokens=new,
            action_tokens=done.tokens,
            action_logprobs=done.logprobs,
            weights_version=done.weights_version,
            spans=done.spans,
            routes=done.routes,
        )
