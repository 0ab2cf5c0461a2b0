"""What a chat template does with tools and without a system message, found by rendering it; a tools section of ours."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import jinja2
from transformers import PreTrainedTokenizerBase

from cojax.rollout.tool_calls import parse

# A character that templates neither trim, turn into another one, nor hold themselves.
MARK = "\ue000"
# Stands before a template. It writes the tools into the system message, where it makes one if need be, and hides them.
TOOLS_SECTION = """
{%- if tools %}{%- set ours = namespace(text='# Tools\\n\\nThese tools can be called:\\n') %}
{%- for tool in tools %}{%- set ours.text = ours.text ~ (tool | tojson) ~ '\\n' %}{%- endfor %}
{%- set ours.text = ours.text ~ '\\nTo call a tool, write its name and arguments as JSON:\\n<tool_call>\\n' %}
{%- set ours.text = ours.text ~ '{"name": "the name", "arguments": {"an argument": "its value"}}\\n</tool_call>' %}
{%- set own = messages[0].role == 'system' %}{%- set tools = none %}
{%- set ours.text = (messages[0].content ~ '\\n\\n' if own else '') ~ ours.text %}
{%- set messages = [{'role': 'system', 'content': ours.text}] + (messages[1:] if own else messages) %}{%- endif %}
""".strip().replace("\n", "")
# The documentation of a tool that stands for any, and a call of it.
_WORD = {"word": {"type": "string", "description": "the word"}}
_LOOKUP = {"name": "lookup", "description": "looks it up", "parameters": {"type": "object", "properties": _WORD}}
PROBE: Mapping[str, Any] = {"type": "function", "function": _LOOKUP}
_CALL = {"type": "function", "id": "000000000", "function": {"name": "lookup", "arguments": {"word": MARK}}}
_USER = {"role": "user", "content": MARK}
_SYSTEM = {"role": "system", "content": MARK}
# What a template, which is code of others, may raise.
_FAILURES = (
    jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError,
)  # fmt: skip


def shows_tools(tokenizer: PreTrainedTokenizerBase, tool: Mapping[str, Any]) -> bool:
    """Whether the template documents this tool, and writes a call, if it writes any, in a form that `parse` reads."""
    try:
        shown = _documents(tokenizer, tool, [_USER])
        call = rendered(tokenizer, [_USER, {"role": "assistant", "content": "", "tool_calls": [_CALL]}])
    except ValueError:
        return False
    return shown and ("lookup" not in call or bool(parse(call).calls))


def require_tools(tokenizer: PreTrainedTokenizerBase, tool: Mapping[str, Any]) -> None:
    """Raises ValueError unless this tool is documented with and without a system message before the user's.

    A template that takes no system message at all need not show tools beside one.
    """
    openings = [[_USER]]
    try:
        rendered(tokenizer, [_SYSTEM, _USER])
        openings.append([_SYSTEM, _USER])
    except ValueError:
        pass
    for messages in openings:
        try:
            shown, why = _documents(tokenizer, tool, messages), ""
        except ValueError as error:
            shown, why = False, f" ({error})"
        if not shown:
            beside = " beside a system message" if len(messages) > 1 else ""
            raise ValueError(
                f"the chat template shows no tools{beside}, nor the system message that cojax would show them in{why}; "
                "choose --config.model.tools=none, or save a template that shows either"
            )


def _documents(tokenizer: PreTrainedTokenizerBase, tool: Mapping[str, Any], messages: list[dict[str, Any]]) -> bool:
    """Whether these messages are rendered otherwise where the tool is on offer."""
    return rendered(tokenizer, messages, tools=[dict(tool)]) != rendered(tokenizer, messages)


def injected_system_message(tokenizer: PreTrainedTokenizerBase, literals: Iterable[str]) -> str:
    """What the template says before a first message from the user, without control literals; "" if nothing.

    Only what ends as a turn does, in the tokenizer's eos_token, is a message.
    """
    before = rendered(tokenizer, [_USER]).partition(MARK)[0].rpartition(tokenizer.eos_token)[0]
    words = re.sub("|".join(map(re.escape, literals)), " ", before).split()
    return " ".join(words[1:] if words[:1] == ["system"] else words)


def rendered(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, Any]], **given: Any) -> str:
    """The text of the messages, by the template. Raises ValueError, with their roles, where it refuses them."""
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, **given))
    except _FAILURES as error:
        roles = ", ".join(message["role"] for message in messages)
        raise ValueError(
            f"the chat template refuses messages of the roles {roles}: {type(error).__name__}: {error!s:.200}; "
            "save one that takes them as chat_template of the model's tokenizer"
        ) from error
