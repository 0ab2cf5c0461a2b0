"""Text ⇄ tokens: chat rendering in which a trajectory's tokens only ever grow, and the parsing of tool calls.

Token in, token out. What was sampled is kept as ids and never rendered again; new messages are rendered as the
difference template(stub + new) − template(stub). Control tokens come only from the template: message text is encoded
by a copy of the tokenizer that has none, so a literal `<|im_end|>` in an observation stays text.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from cojax.environment import Actor, Episode, ask
from cojax.rollout.engine import Engine, Sampling
from cojax.types import Action, Call, Message, Turn

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_STUB = (Message("user", "x"), Message("assistant", "y"))
# Private-use characters that stand for control literals while the template runs.
_PRIVATE = 0xF0000
_TEXT_CHARACTERS = 100_000
_DEPTH = 32
Tool = Mapping[str, Any]  # a tool's documentation in OpenAI function format


def full(tool: Tool) -> Tool | None:
    """The documentation as the environment gives it."""
    return tool


def brief(tool: Tool) -> Tool | None:
    """The tool's name and the names of its arguments, for a policy with little room."""
    function = tool["function"]
    return {"name": function["name"], "arguments": list(function.get("parameters", {}).get("properties", {}))}


def none(tool: Tool) -> Tool | None:
    """Nothing: the policy knows its tools by training."""
    return None


# How much of a tool's documentation the policy is shown.
SHOWN: dict[str, Callable[[Tool], Tool | None]] = {"full": full, "brief": brief, "none": none}


class Chat:
    """Renders messages with one tokenizer and its template; `shown` is the entry of `SHOWN` for an episode's tools.

    Raises ValueError at construction when the template cannot be extended turn by turn or disagrees with the
    tokenizer's own rendering.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, shown: Callable[[Tool], Tool | None] = full):
        if not tokenizer.chat_template:
            raise ValueError("the tokenizer has no chat_template; save one in its tokenizer_config.json")
        self.tokenizer = tokenizer
        self.shown = shown
        self.end: int = tokenizer.eos_token_id
        self._end_text: str = tokenizer.eos_token
        controls = {token.content: index for index, token in tokenizer.added_tokens_decoder.items()}
        self._controls = dict(sorted(controls.items(), key=lambda item: -len(item[0])))
        self._split = re.compile("(" + "|".join(map(re.escape, self._controls)) + ")")
        specification = json.loads(tokenizer.backend_tokenizer.to_str())
        self._plain = Tokenizer.from_str(json.dumps({**specification, "added_tokens": [], "post_processor": None}))
        self.extend = functools.lru_cache(maxsize=8_192)(self._extend)
        self._opened = functools.lru_cache(maxsize=1_024)(self._open)
        self._check()

    def open(self, messages: tuple[Message, ...], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        """Tokens of the opening messages, with the tools on offer documented, and of the generation prompt."""
        # The order of keys is the environment's: a model was trained to read them in that order.
        documents = [shown for tool in tools if (shown := self.shown(tool)) is not None]
        return self._opened(messages, json.dumps(documents, ensure_ascii=False))

    def _open(self, messages: tuple[Message, ...], tools: str) -> tuple[int, ...]:
        (*safe, documents), restore = self._protect((*messages, Message("tools", tools)))
        return self._encode(self._template(safe, generate=True, tools=json.loads(documents.content)), restore)

    def _extend(self, messages: tuple[Message, ...], ended: bool) -> tuple[int, ...]:
        """Tokens that follow a sampled action: new messages and the generation prompt.

        `ended` says whether the action ended in the stop token; if not, it is part of what is added.
        """
        safe, restore = self._protect(messages)
        text = self._difference(safe)
        return (() if ended else (self.end,)) + self._encode(text, restore)

    @staticmethod
    def write(calls: Iterable[Call]) -> str:
        """The text by which the policy makes these calls."""
        bodies = ({"name": call.name, "arguments": dict(call.arguments)} for call in calls)
        return "\n".join(f"<tool_call>\n{json.dumps(body, ensure_ascii=False)}\n</tool_call>" for body in bodies)

    def encode_action(self, action: Action) -> tuple[int, ...]:
        """Tokens of an action as the policy would have sampled it, stop token included."""
        return (*self._encode(action.text or self.write(action.calls), {}), self.end)

    def read(self, tokens: Sequence[int]) -> Action:
        """The action that sampled tokens spell, its calls parsed; never raises."""
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

    def _protect(self, messages: tuple[Message, ...]) -> tuple[tuple[Message, ...], dict[int, str]]:
        """Messages with control literals replaced by private-use characters, and the table to restore them."""
        used = {ord(character) for message in messages for character in message.content if ord(character) >= _PRIVATE}
        free = (code for code in range(_PRIVATE, 0x10FFFE) if code not in used)
        stand_in = {literal: chr(next(free)) for literal in self._controls}
        safe = tuple(
            Message(m.role, self._split.sub(lambda found: stand_in[found.group()], m.content)) for m in messages
        )
        return safe, {ord(character): literal for literal, character in stand_in.items()}

    def _encode(self, text: str, restore: Mapping[int, str]) -> tuple[int, ...]:
        tokens: list[int] = []
        for piece in self._split.split(text):
            if piece in self._controls:
                tokens.append(self._controls[piece])
            elif piece:
                tokens.extend(self._plain.encode(piece.translate(restore), add_special_tokens=False).ids)
        return tuple(tokens)

    def _check(self) -> None:
        """The template extends turn by turn, and our rendering of harmless text is the tokenizer's own."""
        opening, reply = (Message("user", "a b"),), (Message("tool", "c"),)
        self._difference(reply)
        ours = self.open(opening)
        theirs = self.tokenizer(self._template(opening, generate=True), add_special_tokens=False).input_ids
        if list(ours) != list(theirs):
            raise ValueError(f"the template renders to {list(ours)} here but to {list(theirs)} by the tokenizer itself")
        if self.extend(reply, False)[0] != self.end:
            raise ValueError(f"a turn must end in {self._end_text!r}, the tokenizer's eos_token")


def parse(text: str) -> Action:
    """The action a text spells: every `<tool_call>` must hold {"name": str, "arguments": object}, or none counts.

    What stands before `</think>` was thought, not done.
    """
    found = _CALL.findall(text[:_TEXT_CHARACTERS].rpartition("</think>")[2])
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


def read_json(body: str) -> Any:
    """A value that a model wrote, by the letter of JSON. Raises ValueError that completes "it is …"."""
    try:
        value = json.loads(body, parse_constant=_reject, parse_float=_finite)
    except (ValueError, RecursionError):
        raise ValueError("not valid JSON") from None
    if _depth(body) > _DEPTH:
        raise ValueError("nested too deeply")
    return value


def _reject(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _finite(number: str) -> float:
    """JSON has no infinity, though 1e999 reads as one."""
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number} is too large")
    return value


def _depth(body: str) -> int:
    """How deep brackets nest; those inside strings count too, so it is never too small."""
    return max(itertools.accumulate(1 if c in "[{" else -1 if c in "]}" else 0 for c in body), default=0)


class Actors(Protocol):
    """Who plays: an actor for every episode, until its session is released. Called from many threads at once."""

    def __call__(self, session: str, seed: tuple[int, ...]) -> Actor:
        """The actor of one episode; `seed` decides its random numbers, where it can."""

    def release(self, session: str) -> None:
        """The session is over; an actor still at work in it ends soon. Unknown is fine."""


@dataclasses.dataclass(frozen=True)
class PolicyActors:
    """The policy that an engine holds."""

    engine: Engine
    chat: Chat
    sampling: Sampling

    def __call__(self, session: str, seed: tuple[int, ...]) -> Actor:
        return PolicyActor(self.engine, self.chat, self.sampling, session=session, seed=seed)

    def release(self, session: str) -> None:
        self.engine.release(session)


class PolicyActor:
    """The actor of one episode: renders what is new, samples an action, remembers every token."""

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
        )
