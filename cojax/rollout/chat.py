"""Renders conversations to tokens, and reads actions from them; a trajectory's tokens are only ever appended to.

Token in, token out: sampled tokens are kept as ids and never rendered again. New messages are rendered as the text that
template(stub + new) puts after the stub, which ends in an action. Control tokens come only from the template
(control_tokens.py): there is a fixed set of roles, and a literal `<|im_end|>` in a query, an observation or a tool's
documentation stays text. Rendering a template shows what it does with tools, and what it adds if there is no system
message.
"""

import copy
import dataclasses
import functools
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import jinja2
from transformers import PreTrainedTokenizerBase

from cojax.environment import Actor, Episode, ask
from cojax.rollout.control_tokens import ControlTokens, Mask
from cojax.rollout.engine import Engine, Sampling
from cojax.types import NO_CALL, ROLES, Action, Call, Message, Turn, nesting, parse_json

# The marks that decide where a call begins and ends, and whether it lies within a thought.
_BOUNDARY_PATTERN = re.compile(r'\\["\\]|"|</?think>|</?tool_call>')
_MAX_CALL_LENGTH = 100_000
_MAX_CALL_NESTING = 32


def parse(text: str, starts_thinking: bool = False) -> Action:
    """The action in a text. Every `<tool_call>` must hold {"name": str, "arguments": object}, or no call counts.

    Calls within a thought do not count: between `<think>` and `</think>`, after a `<think>` that is never closed, and
    before a `</think>` whose thought began in the prompt. `starts_thinking` says that the text begins within a thought.
    Neither mark counts within a string of a call's JSON.
    """
    call_bodies = _find_call_bodies(text[:_MAX_CALL_LENGTH], starts_thinking)
    if not call_bodies:
        return Action(text, (), NO_CALL)
    calls = []
    for call_body in call_bodies:
        try:
            call_json = read_json(call_body)
        except ValueError as error:
            # An unfinished call in a thought may leave a string open, which hides the end of the thought.
            action = parse(text[:_MAX_CALL_LENGTH].rpartition("</think>")[2]) if "</think>" in call_body else Action()
            return Action(text, action.calls, "" if action.calls else f"tool call is {error}")
        if not isinstance(call_json, dict) or not isinstance(call_json.get("name"), str):
            return Action(text, (), "tool call needs a name")
        arguments = call_json.get("arguments", {})
        if not isinstance(arguments, dict):
            return Action(text, (), "arguments must be an object")
        calls.append(Call(call_json["name"], arguments))
    return Action(text, tuple(calls))


def _find_call_bodies(text: str, is_thinking: bool = False) -> list[str]:
    """The text between each `<tool_call>` and the next `</tool_call>`, without thoughts, in linear time."""
    call_bodies: list[str] = []
    call_start, in_string = -1, False  # where the call began, -1 outside of one; whether a string in it is open
    for boundary in _BOUNDARY_PATTERN.finditer(text):
        match boundary[0]:
            case '"':
                in_string = call_start >= 0 and not in_string
            case "<think>" if call_start < 0:
                is_thinking = True
            case "</think>" if not in_string:
                if not is_thinking:
                    call_bodies.clear()
                call_start, is_thinking = -1, False
            case "<tool_call>" if call_start < 0 and not is_thinking:
                call_start, in_string = boundary.end(), False
            case "</tool_call>" if call_start >= 0:
                call_bodies.append(text[call_start : boundary.start()])
                call_start, in_string = -1, False
    return call_bodies


def read_json(call_body: str) -> Any:
    """A value that a model wrote, by the letter of JSON. Raises ValueError that completes "it is …"."""
    try:
        value = parse_json(call_body)
    except ValueError:
        raise ValueError("not valid JSON") from None
    if nesting(call_body) > _MAX_CALL_NESTING:
        raise ValueError("nested too deeply")
    return value


def _read_template(file_name: str) -> str:
    """A template beside this file, on one line."""
    return Path(__file__).with_name(file_name).read_text().strip().replace("\n", "")


# The ChatML template that Qwen uses, of tokenizers that are made here (vocabulary.py).
CHATML = _read_template("chatml.jinja")
# A character that templates neither trim, replace nor contain.
TEXT_MARK = "\ue000"
# A prefix for a template. It writes the tools into the system message, adds one if need be, and hides the tools from
# the template.
TOOLS_SECTION = _read_template("tools_section.jinja")
# The documentation of an example tool, and a call of it.
_WORD_SCHEMA = {"word": {"type": "string", "description": "the word"}}
_LOOKUP = {"name": "lookup", "description": "looks it up", "parameters": {"type": "object", "properties": _WORD_SCHEMA}}
PROBE_TOOL: Mapping[str, Any] = {"type": "function", "function": _LOOKUP}
_PROBE_CALL = {"type": "function", "id": "000000000", "function": {"name": "lookup", "arguments": {"word": TEXT_MARK}}}
_QUERY = {"role": "user", "content": TEXT_MARK}
_SYSTEM_MESSAGE = {"role": "system", "content": TEXT_MARK}
# What a template, which is third-party code, may raise.
_TEMPLATE_ERRORS = (
    jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError,
)  # fmt: skip


def shows_tools(tokenizer: PreTrainedTokenizerBase, tool: Mapping[str, Any]) -> bool:
    """Whether the template documents this tool, and writes a call, if it writes any, in a form that `parse` reads."""
    try:
        is_documented = _is_documented(tokenizer, tool, [_QUERY])
        text = render_messages(tokenizer, [_QUERY, {"role": "assistant", "content": "", "tool_calls": [_PROBE_CALL]}])
    except ValueError:
        return False
    return is_documented and ("lookup" not in text or bool(parse(text).calls))


def require_tools(tokenizer: PreTrainedTokenizerBase, tool: Mapping[str, Any]) -> None:
    """Raises ValueError unless this tool is documented with and without a system message before the user's.

    A template that takes no system message at all need not show tools beside one.
    """
    openings = [[_QUERY]]
    try:
        render_messages(tokenizer, [_SYSTEM_MESSAGE, _QUERY])
        openings.append([_SYSTEM_MESSAGE, _QUERY])
    except ValueError:
        pass
    for messages in openings:
        try:
            is_documented, why = _is_documented(tokenizer, tool, messages), ""
        except ValueError as error:
            is_documented, why = False, f" ({error})"
        if not is_documented:
            scope = " beside a system message" if len(messages) > 1 else ""
            raise ValueError(
                f"the chat template shows no tools{scope}, nor the system message that cojax would show them in{why}; "
                "choose --config.model.tools=none, or save a template that shows either"
            )


def _is_documented(tokenizer: PreTrainedTokenizerBase, tool: Mapping[str, Any], messages: list[dict[str, Any]]) -> bool:
    """Whether offering the tool changes how these messages are rendered."""
    return render_messages(tokenizer, messages, tools=[dict(tool)]) != render_messages(tokenizer, messages)


def find_system_message(tokenizer: PreTrainedTokenizerBase, literals: Iterable[str]) -> str:
    """The text that the template puts before a user's first message, without control literals; "" if none.

    Only text that ends like a turn, with the tokenizer's eos_token, is a message.
    """
    preamble = render_messages(tokenizer, [_QUERY]).partition(TEXT_MARK)[0].rpartition(tokenizer.eos_token)[0]
    words = re.sub("|".join(map(re.escape, literals)), " ", preamble).split()
    return " ".join(words[1:] if words[:1] == ["system"] else words)


def render_messages(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, Any]], **template_options: Any) -> str:
    """The text of the messages, by the template. Raises ValueError, which names their roles, if it refuses them."""
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, **template_options))
    except _TEMPLATE_ERRORS as error:
        roles = ", ".join(message["role"] for message in messages)
        raise ValueError(
            f"the chat template refuses messages of the roles {roles}: {type(error).__name__}: {error!s:.200}; "
            "save one that takes them as chat_template of the model's tokenizer"
        ) from error


# The "<" of a literal that begins or ends a tool call or a thought.
_ANGLE_PATTERN = re.compile(r"<(?=/?(?:tool_call|think)>)")
# Control tokens that end a text or a turn, in the families of models that have them.
_END_TEXTS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "<eos>", "</s>")
_STUB_MESSAGES = (Message("user", "x"), Message("assistant", TEXT_MARK))
Tool = Mapping[str, Any]  # a tool's documentation in OpenAI function format


def whole_document(tool: Tool) -> Tool | None:
    """The documentation as the environment gives it."""
    return tool


def names_only(tool: Tool) -> Tool | None:
    """The tool's name and the names of its arguments, for a policy with a short context."""
    document = tool["function"]
    return {"name": document["name"], "arguments": list(document.get("parameters", {}).get("properties", {}))}


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

    `document`, one of `TOOL_DOCUMENTS`, decides how much of each tool's documentation the policy sees. If the template
    would not show it, or asks for calls in a form that `parse` does not read, `tokenizer` is a copy of the caller's
    whose template begins with our TOOLS_SECTION; a folder saved with the copy renders the same tokens. `notes` tells
    the user of this, and of a system message that the template adds by itself. `stops` are the tokens that end an
    action: `end`, and every other end of a text or turn.

    Raises ValueError at construction, with the tokenizer's folder and the fix, if the tokenizer has no template or no
    token that ends an action, or if the template refuses a user's or a tool's message, shows no tools, cannot be
    extended turn by turn or disagrees with the tokenizer's own rendering.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, document: Callable[[Tool], Tool | None] = whole_document):
        for name in ("chat_template", "eos_token"):
            if not getattr(tokenizer, name):
                raise ValueError(
                    f"the tokenizer{_describe_folder(tokenizer)} has no {name}; save that of the model's family in its "
                    "tokenizer_config.json"
                )
        self.tokenizer = tokenizer
        self.document = document
        self.end: int = tokenizer.eos_token_id
        self._eos_text: str = tokenizer.eos_token
        self._control_tokens = ControlTokens(tokenizer)
        # Padding does not end a text for a policy from scratch, which never learned that.
        texts = () if tokenizer.chat_template == CHATML else _END_TEXTS
        self.stops = (self.end, *(i for text, i in self._control_tokens.ids.items() if text in texts and i != self.end))
        self.extend = functools.lru_cache(maxsize=8_192)(self._encode_turn)
        self._cached_opening = functools.lru_cache(maxsize=1_024)(self._encode_opening)
        try:
            self.notes = tuple(self._adapt_template())
            # Whether an action begins within a thought, because the generation prompt ends in <think>.
            self._in_thought = "<think>" in self._render(_STUB_MESSAGES[:1], with_prompt=True).rpartition("</think>")[2]
            self._check_template()
        except ValueError as error:
            raise ValueError(f"the tokenizer{_describe_folder(tokenizer)}: {error}") from error

    def open(self, messages: tuple[Message, ...], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        """Tokens of the opening messages, with the tools on offer documented, and of the generation prompt."""
        # Keys keep the environment's order: models were trained to read them in that order.
        documents = [tool_document for tool in tools if (tool_document := self.document(tool)) is not None]
        return self._cached_opening(messages, json.dumps(documents, ensure_ascii=False))

    def _encode_opening(self, messages: tuple[Message, ...], tools_json: str) -> tuple[int, ...]:
        documents = json.loads(tools_json)

        def render_template(mask: Mask) -> str:
            masked_documents = self._control_tokens.mask_json(documents, mask)
            return self._render(_mask(messages, mask), with_prompt=True, tools=masked_documents)

        return self._control_tokens.render(render_template, tools_json + _join_contents(messages))

    def _encode_turn(self, messages: tuple[Message, ...], at_stop: bool) -> tuple[int, ...]:
        """Tokens that follow a sampled action: the new messages and the generation prompt.

        `at_stop` says whether the action ended in the stop token. If not, the stop token comes first.
        """
        contents = _join_contents(messages)
        ids = self._control_tokens.render(lambda mask: self._render_split(_mask(messages, mask))[1], contents)
        return (() if at_stop else (self.end,)) + ids

    @staticmethod
    def write(calls: Iterable[Call]) -> str:
        """The text by which the policy makes these calls; within a call "<" of a literal is written as \\u003c."""
        call_objects = ({"name": call.name, "arguments": dict(call.arguments)} for call in calls)
        call_texts = (_ANGLE_PATTERN.sub(r"\\u003c", json.dumps(body, ensure_ascii=False)) for body in call_objects)
        return "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in call_texts)

    def encode_action(self, action: Action) -> tuple[int, ...]:
        """Tokens of an action as the policy would have sampled it, stop token included."""
        text = action.text or self.write(action.calls)
        thought_end = "</think>\n\n" if self._in_thought and "</think>" not in text else ""
        return (*self._control_tokens.encode_action(thought_end + text), self.end)

    def read(self, tokens: Sequence[int]) -> Action:
        """The action in sampled tokens, with its calls parsed; never raises."""
        action_tokens = tokens[:-1] if tokens and tokens[-1] in self.stops else tokens
        text = self.tokenizer.decode(list(action_tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return parse(str(text), self._in_thought)

    def _render(self, messages: Sequence[Message], *, with_prompt: bool, tools: Sequence[Tool] = ()) -> str:
        return render_messages(
            self.tokenizer,
            [{"role": message.role, "content": message.content} for message in messages],
            tools=[dict(tool) for tool in tools] or None,
            add_generation_prompt=with_prompt,
        )

    def _render_split(self, messages: Iterable[Message]) -> tuple[str, str]:
        """The rendering up to the end of the stub's action, "" if that is not found, and the text after its end token.

        Both come from one rendering: a template may write an action differently while it is the last one.
        """
        before_mark, _, after_mark = self._render((*_STUB_MESSAGES, *messages), with_prompt=True).partition(TEXT_MARK)
        stub_end, end_literal, rest_text = after_mark.partition(self._eos_text)
        return end_literal and before_mark + stub_end, rest_text

    def _adapt_template(self) -> Iterator[str]:
        """Adds a tools section to a template that needs one; yields what a user should know about the template."""
        tool, template = self.document(PROBE_TOOL), self.tokenizer.get_chat_template()
        if tool and not template.startswith(TOOLS_SECTION) and not shows_tools(self.tokenizer, tool):
            self.tokenizer = copy.copy(self.tokenizer)
            self.tokenizer.chat_template = template = TOOLS_SECTION + template
        if tool:
            require_tools(self.tokenizer, tool)
        if tool and template.startswith(TOOLS_SECTION):
            yield "it does not show tools in the form that cojax parses; cojax adds a section that does"
        if system_message := find_system_message(self.tokenizer, self._control_tokens.ids):
            yield f"if a conversation begins without a system message, it adds {system_message!r}"

    def _check_template(self) -> None:
        """Raises ValueError unless turns can be appended and harmless text is rendered as by the tokenizer itself."""
        opening, tool_reply = (Message("user", "a b"),), (Message("tool", "c"),)
        stub_renderings = {self._render_split(messages)[0] for messages in (tool_reply, tool_reply + opening)}
        if "" in stub_renderings:
            raise ValueError(
                f"the chat template does not show an action that ends in eos_token, {self._eos_text!r}; set eos_token "
                "in tokenizer_config.json to the token by which the template ends a turn"
            )
        if len(stub_renderings) > 1:
            raise ValueError(
                "the chat template rewrites earlier turns when messages are added, so a conversation cannot only grow; "
                "save a template that leaves them as they are"
            )
        ids = self.open(opening)
        raw_ids = self.tokenizer(self._render(opening, with_prompt=True), add_special_tokens=False).input_ids
        if list(ids) != list(raw_ids):
            raise ValueError(
                f"the chat template renders to the tokens {list(ids)} here but to {list(raw_ids)} by the tokenizer "
                "itself; a likely cause is its normalizer, or an added token that takes in the spaces around it: "
                "change it in tokenizer.json"
            )


def _describe_folder(tokenizer: PreTrainedTokenizerBase) -> str:
    """Where the tokenizer was loaded from, for a message."""
    return f" of {tokenizer.name_or_path}" if tokenizer.name_or_path else ""


def _join_contents(messages: Iterable[Message]) -> str:
    return "".join(message.content for message in messages)


def _mask(messages: Iterable[Message], mask: Mask) -> list[Message]:
    """The messages with their text masked. Raises ValueError for an unknown role."""
    messages = list(messages)
    if bad_roles := [message.role for message in messages if message.role not in ROLES]:
        raise ValueError(f"a message has the role {bad_roles[0]!r:.100}; expected one of {', '.join(sorted(ROLES))}")
    return [Message(message.role, mask(message.content)) for message in messages]


class Actors(Protocol):
    """Gives every episode an actor, until its session is released. Called from many threads at once."""

    def __call__(self, session: str, seed: tuple[int, ...]) -> Actor:
        """The actor of one episode. `seed` decides its random numbers, unless a server draws them."""

    def release(self, session: str) -> None:
        """Ends the session; an actor that is still at work in it ends soon. An unknown session is ignored."""


@dataclasses.dataclass(frozen=True)
class PolicyActors:
    """Actors that sample from the policy of an engine.

    An episode begins with the actions that `prefix` names for its session. Their tokens count as prompt: they were not
    sampled, so nothing is learned from them.
    """

    engine: Engine
    chat: Chat
    sampling: Sampling
    prefix: Callable[[str], Sequence[Action]] = lambda session: ()

    def __call__(self, session: str, seed: tuple[int, ...]) -> Actor:
        """The actor of one episode: renders the new messages, samples an action, and keeps every token."""
        prefix_actions, tokens, turn_count = self.prefix(session), tuple[int, ...](), 0

        def act(episode: Episode, messages: tuple[Message, ...]) -> Turn:
            nonlocal tokens, turn_count
            if tokens:
                new_tokens = self.chat.extend(messages, tokens[-1] == self.chat.end)
            else:
                new_tokens = self.chat.open(messages, ask(episode.tools))
            prompt, turn_index, turn_count = tokens + new_tokens, turn_count, turn_count + 1
            if turn_index < len(prefix_actions):
                prefix_tokens = self.chat.encode_action(prefix_actions[turn_index])
                tokens = prompt + prefix_tokens
                return Turn(self.chat.read(prefix_tokens), prompt_tokens=new_tokens + prefix_tokens)
            start_time = time.perf_counter()
            completion = self.engine.generate(prompt, self.sampling, session=session, seed=(*seed, turn_index))
            engine_seconds = time.perf_counter() - start_time
            tokens = prompt + completion.tokens
            return Turn(
                action=self.chat.read(completion.tokens),
                prompt_tokens=new_tokens,
                action_tokens=completion.tokens,
                action_logprobs=completion.logprobs,
                weights_version=completion.weights_version,
                spans=completion.spans,
                routes=completion.routes,
                engine_seconds=engine_seconds,
            )

        return act

    def release(self, session: str) -> None:
        self.engine.release(session)
