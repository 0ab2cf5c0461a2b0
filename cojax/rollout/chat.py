"""Renders conversations to tokens, and reads actions from them; a trajectory's tokens are only ever appended to.

Token in, token out. What was sampled is kept as ids and never rendered again; new messages are rendered as what
template(stub + new) says after the stub, which ends in an action. Control tokens come only from the template
(control_tokens.py): there is a fixed set of roles, and a literal `<|im_end|>` in a query, an observation or a tool's
documentation stays text.
"""

import copy
import dataclasses
import functools
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from transformers import PreTrainedTokenizerBase

from cojax.environment import Actor, Episode, ask
from cojax.rollout.control_tokens import ControlTokens, Mask
from cojax.rollout.engine import Engine, Sampling
from cojax.rollout.templates import (
    MARK,
    PROBE,
    TOOLS_SECTION,
    injected_system_message,
    rendered,
    require_tools,
    shows_tools,
)
from cojax.rollout.tool_calls import parse
from cojax.rollout.vocabulary import CHATML
from cojax.types import ROLES, Action, Call, Message, Turn

# The "<" of a literal that begins or ends a tool call or a thought.
_ANGLE = re.compile(r"<(?=/?(?:tool_call|think)>)")
# Control tokens that end a text or a turn, in the families of models that have them.
_ENDS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "<eos>", "</s>")
_STUB = (Message("user", "x"), Message("assistant", MARK))
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

    `shown`, one of `TOOL_DOCUMENTS`, says what the policy is shown of each tool. Where the template would not show it,
    or asks for calls in a form that `parse` does not read, `tokenizer` is a copy of the caller's, whose template begins
    with our TOOLS_SECTION: a folder that is saved with the copy renders the same tokens. `notes` says so of the
    template, and which system message it adds by itself. `stops` are the tokens that end an action: `end`, and every
    other end of a text or turn.

    Raises ValueError at construction, with the tokenizer's folder and the fix, where the tokenizer has no template or
    no token that ends an action, and where the template refuses a user's or a tool's message, shows no tools, cannot be
    extended turn by turn or disagrees with the tokenizer's own rendering.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, shown: Callable[[Tool], Tool | None] = whole_document):
        for name in ("chat_template", "eos_token"):
            if not getattr(tokenizer, name):
                raise ValueError(
                    f"the tokenizer{_folder(tokenizer)} has no {name}; save that of the model's family in its "
                    "tokenizer_config.json"
                )
        self.tokenizer = tokenizer
        self.shown = shown
        self.end: int = tokenizer.eos_token_id
        self._end_text: str = tokenizer.eos_token
        self._controls = ControlTokens(tokenizer)
        # Padding of a policy from scratch is no end of a text: it never learned one.
        ends = () if tokenizer.chat_template == CHATML else _ENDS
        self.stops = (self.end, *(i for text, i in self._controls.ids.items() if text in ends and i != self.end))
        self.extend = functools.lru_cache(maxsize=8_192)(self._extend)
        self._open_cached = functools.lru_cache(maxsize=1_024)(self._open)
        try:
            self.notes = tuple(self._adapt())
            # Whether an action begins within a thought, as where the generation prompt ends in <think>.
            self._thinks = "<think>" in self._template(_STUB[:1], generate=True).rpartition("</think>")[2]
            self._check()
        except ValueError as error:
            raise ValueError(f"the tokenizer{_folder(tokenizer)}: {error}") from error

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
        added = self._controls.render(lambda mask: self._cut(_masked(messages, mask))[1], _contents(messages))
        return (() if ended else (self.end,)) + added

    @staticmethod
    def write(calls: Iterable[Call]) -> str:
        """The text by which the policy makes these calls; within a call "<" of a literal is written as \\u003c."""
        bodies = ({"name": call.name, "arguments": dict(call.arguments)} for call in calls)
        written = (_ANGLE.sub(r"\\u003c", json.dumps(body, ensure_ascii=False)) for body in bodies)
        return "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in written)

    def encode_action(self, action: Action) -> tuple[int, ...]:
        """Tokens of an action as the policy would have sampled it, stop token included."""
        text = action.text or self.write(action.calls)
        thought = "</think>\n\n" if self._thinks and "</think>" not in text else ""
        return (*self._controls.encode_action(thought + text), self.end)

    def read(self, tokens: Sequence[int]) -> Action:
        """The action in sampled tokens, with its calls parsed; never raises."""
        body = tokens[:-1] if tokens and tokens[-1] in self.stops else tokens
        text = self.tokenizer.decode(list(body), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return parse(str(text), self._thinks)

    def _template(self, messages: Sequence[Message], *, generate: bool, tools: Sequence[Tool] = ()) -> str:
        return rendered(
            self.tokenizer,
            [{"role": message.role, "content": message.content} for message in messages],
            tools=[dict(tool) for tool in tools] or None,
            add_generation_prompt=generate,
        )

    def _cut(self, messages: Iterable[Message]) -> tuple[str, str]:
        """The rendering up to the end of the stub's action, "" if that is not found, and what follows its end token.

        Both come from one rendering: a template may write the last action in another way than the same action later.
        """
        before, _, after = self._template((*_STUB, *messages), generate=True).partition(MARK)
        rest, end, added = after.partition(self._end_text)
        return end and before + rest, added

    def _adapt(self) -> Iterator[str]:
        """Gives the template a tools section where it needs one; yields what a user should know of the template."""
        tool, template = self.shown(PROBE), self.tokenizer.get_chat_template()
        if tool and not template.startswith(TOOLS_SECTION) and not shows_tools(self.tokenizer, tool):
            self.tokenizer = copy.copy(self.tokenizer)
            self.tokenizer.chat_template = template = TOOLS_SECTION + template
        if tool:
            require_tools(self.tokenizer, tool)
        if tool and template.startswith(TOOLS_SECTION):
            yield "it shows no tools in the form in which calls are read; a section of cojax's own shows them"
        if injected := injected_system_message(self.tokenizer, self._controls.ids):
            yield f"where a conversation begins without a system message, it adds {injected!r}"

    def _check(self) -> None:
        """Raises ValueError unless turns can be appended and harmless text is rendered as by the tokenizer itself."""
        opening, reply = (Message("user", "a b"),), (Message("tool", "c"),)
        heads = {self._cut(messages)[0] for messages in (reply, reply + opening)}
        if "" in heads:
            raise ValueError(
                f"the chat template does not show an action that ends in eos_token, {self._end_text!r}; set eos_token "
                "in tokenizer_config.json to the token by which the template ends a turn"
            )
        if len(heads) > 1:
            raise ValueError(
                "the chat template rewrites earlier turns when messages are added, so a conversation cannot only grow; "
                "save a template that leaves them as they are"
            )
        ours = self.open(opening)
        theirs = self.tokenizer(self._template(opening, generate=True), add_special_tokens=False).input_ids
        if list(ours) != list(theirs):
            raise ValueError(
                f"the chat template renders to the tokens {list(ours)} here but to {list(theirs)} by the tokenizer "
                "itself; a likely cause is its normalizer, or an added token that takes in the spaces around it: "
                "change it in tokenizer.json"
            )


def _folder(tokenizer: PreTrainedTokenizerBase) -> str:
    """Where the tokenizer was loaded from, for a message."""
    return f" of {tokenizer.name_or_path}" if tokenizer.name_or_path else ""


def _contents(messages: Iterable[Message]) -> str:
    return "".join(message.content for message in messages)


def _masked(messages: Iterable[Message], mask: Mask) -> list[Message]:
    """The messages with their text masked. Raises ValueError for an unknown role."""
    messages = list(messages)
    if unknown := [message.role for message in messages if message.role not in ROLES]:
        raise ValueError(f"a message has the role {unknown[0]!r:.100}; expected one of {', '.join(sorted(ROLES))}")
    return [Message(message.role, mask(message.content)) for message in messages]


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
    prefix: Callable[[str], Sequence[Action]] = lambda session: ()  # session → actions that its episode begins with

    def __call__(self, session: str, seed: tuple[int, ...]) -> Actor:
        return PolicyActor(
            self.engine, self.chat, self.sampling, session=session, seed=seed, prefix=self.prefix(session)
        )

    def release(self, session: str) -> None:
        self.engine.release(session)


class PolicyActor:
    """The actor of one episode: renders the new messages, samples an action, and keeps every token.

    The actions of `prefix` come first. Their tokens count as prompt: they were not sampled, so nothing is learned from
    them.
    """

    def __init__(
        self,
        engine: Engine,
        chat: Chat,
        sampling: Sampling,
        *,
        session: str,
        seed: tuple[int, ...],
        prefix: Sequence[Action] = (),
    ):
        self.engine, self.chat, self.sampling, self.prefix = engine, chat, sampling, prefix
        self.session, self.seed = session, seed
        self.tokens: tuple[int, ...] = ()
        self.turns = 0

    def __call__(self, episode: Episode, messages: tuple[Message, ...]) -> Turn:
        if self.tokens:
            new = self.chat.extend(messages, self.tokens[-1] == self.chat.end)
        else:
            new = self.chat.open(messages, ask(episode.tools))
        prompt = self.tokens + new
        if self.turns < len(self.prefix):
            replayed = self.chat.encode_action(self.prefix[self.turns])
            self.tokens = prompt + replayed
            self.turns += 1
            return Turn(self.chat.read(replayed), prompt_tokens=new + replayed)
        began = time.perf_counter()
        done = self.engine.generate(prompt, self.sampling, session=self.session, seed=(*self.seed, self.turns))
        seconds = time.perf_counter() - began
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
            engine_seconds=seconds,
        )
