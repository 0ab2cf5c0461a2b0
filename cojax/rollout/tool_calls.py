"""Reads tool calls from the text of an action; thoughts are no calls."""

import re
from typing import Any

from cojax.storage.files import NestedTooDeeply, parse_json
from cojax.types import NO_CALL, Action, Call

# What decides where a call begins and ends, and whether it is only thought of.
_BOUNDARY = re.compile(r'\\["\\]|"|</?think>|</?tool_call>')
_TEXT_CHARACTERS = 100_000
_DEPTH = 32


def parse(text: str, thinks: bool = False) -> Action:
    """The action in a text. Every `<tool_call>` must hold {"name": str, "arguments": object}, or no call counts.

    Calls within a thought are left out: between `<think>` and `</think>`, in a thought that is not ended, and before a
    `</think>` whose thought began in the prompt. `thinks` says that the text begins within a thought. Neither mark
    counts within a string of a call's JSON.
    """
    found = _bodies(text[:_TEXT_CHARACTERS], thinks)
    if not found:
        return Action(text, (), NO_CALL)
    calls = []
    for body in found:
        try:
            value = read_json(body)
        except ValueError as error:
            # The string of a call that was only begun, in a thought, does not end before the thought does.
            after = parse(text[:_TEXT_CHARACTERS].rpartition("</think>")[2]) if "</think>" in body else Action()
            return Action(text, after.calls, "" if after.calls else f"tool call is {error}")
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            return Action(text, (), "tool call needs a name")
        arguments = value.get("arguments", {})
        if not isinstance(arguments, dict):
            return Action(text, (), "arguments must be an object")
        calls.append(Call(value["name"], arguments))
    return Action(text, tuple(calls))


def _bodies(text: str, thinks: bool = False) -> list[str]:
    """The text between each `<tool_call>` and the next `</tool_call>`, without thoughts, in linear time."""
    bodies: list[str] = []
    start, quoted = -1, False  # where the call began, -1 outside of one; whether a string in it is open
    for found in _BOUNDARY.finditer(text):
        match found[0]:
            case '"':
                quoted = start >= 0 and not quoted
            case "<think>" if start < 0:
                thinks = True
            case "</think>" if not quoted:
                if not thinks:
                    bodies.clear()
                start, thinks = -1, False
            case "<tool_call>" if start < 0 and not thinks:
                start, quoted = found.end(), False
            case "</tool_call>" if start >= 0:
                bodies.append(text[start : found.start()])
                start, quoted = -1, False
    return bodies


def read_json(body: str) -> Any:
    """A value that a model wrote, by the letter of JSON. Raises ValueError that completes "it is …"."""
    try:
        return parse_json(body, depth=_DEPTH)
    except NestedTooDeeply:
        raise ValueError("nested too deeply") from None
    except ValueError:
        raise ValueError("not valid JSON") from None
