"""What a chat template does with tools and without a system message, found by rendering it; a tools section of ours."""

from __future__ import annotations

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


def shows_tools(tokenizer: PreTrainedTokenizerBase, tool: Mapping[str, Any]) -> bool:
    """Whether the template documents this tool, and writes a call, if it writes any, in a form that `parse` reads."""
    try:
        shown = rendered(tokenizer, [_USER], tools=[dict(tool)]) != rendered(tokenizer, [_USER])
        call = rendered(tokenizer, [_USER, {"role": "assistant", "content": "", "tool_calls": [_CALL]}])
    except (jinja2.TemplateError, TypeError):
        return False
    return shown and ("lookup" not in call or bool(parse(call).calls))


def injected_system_message(tokenizer: PreTrainedTokenizerBase, literals: Iterable[str]) -> str:
    """What the template says before a first message from the user, without control literals; "" if nothing.

    Only what ends as a turn does, in the tokenizer's eos_token, is a message.
    """
    before = rendered(tokenizer, [_USER]).partition(MARK)[0].rpartition(tokenizer.eos_token)[0]
    words = re.sub("|".join(map(re.escape, literals)), " ", before).split()
    return " ".join(words[1:] if words[:1] == ["system"] else words)


def rendered(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, Any]], **given: Any) -> str:
    """The text of the messages, by the template."""
    return str(tokenizer.apply_chat_template(messages, tokenize=False, **given))
