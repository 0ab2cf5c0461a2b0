"""Finds calls in a query, which is to ask for something in words and leave the calls to whoever acts."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from cojax.types import Action
from cojax.unicode_forms import normal_form
from cojax.validation.code import syntax_tree

# Fewest characters of a value within which nothing counts as a call: a query may ask to write some code to a file.
_LONG = 12
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_JOINTS = re.compile(r"[\W_]+")
_NAME = re.compile(r"(?<!\w)\w++(?:(?:[.:-]|::|->)\w++)*+")
_OPENED = re.compile(r"(?<![\w.])((?:[^\W\d]\w*+\.)*+[^\W\d]\w*+)(?:(\s?)\(|\[)([^()\[\]]{0,200})")
_SET = re.compile(
    r"(?:[\"']|\{\s?)(\w{1,80})[\"']?\s?:|\b(\w{1,80}):(?=[\w\"'])|\b(\w{1,80})\s?=(?!=)|(?<!\S)--(\w{1,80})\b"
)
_KEYS = frozenset(("arguments", "parameters", "tool", "function", "tool_call", "tool_name", "function_call"))
# What may stand in brackets after a word as its ending.
_SUFFIXES = ({"s"}, {"es"}, {"d"}, {"ed"}, {"ing"})


def raw_call(query: str, actions: Sequence[Action], tools: Collection[str]) -> str:
    """What in the query is a call and no words: a fence, a tool's name as code has it, a call, or an argument set.

    "" if nothing is. What stands in a long argument of the solution does not count.
    """
    text, values = normal_form("NFKC", query), {*_values(actions)}
    for value in sorted((value for value in values if len(value) >= _LONG), key=len, reverse=True):
        text = text.replace(normal_form("NFKC", value), " ")
    if fenced := next((part for part in text.split("```")[1::2] if _JOINTS.sub("", part)), ""):
        return fenced
    calls = [call for action in actions for call in action.calls]
    parameters = {name for call in calls for name in call.arguments}
    names = {*tools, *(call.name for call in calls)}
    names |= {name.rpartition(".")[2] for name in names}
    joined = {_JOINTS.sub("", name).casefold() for name in names if len(_split(name)) > 1}
    for found in _NAME.finditer(text):
        # "Check-in" is a word, also where there is a tool check_in.
        coded = len(_split(found[0])) > 1 and ("-" not in found[0].replace("->", "") or found[0] in names)
        if coded and _JOINTS.sub("", found[0]).casefold() in joined:
            return found[0]
    single = {name.casefold() for name in names}
    parts = single | {name.partition("_")[2] for name in single}  # without their application
    known = {value.casefold() for value in values | parameters}
    for found in _OPENED.finditer(text):
        given = {word for word in _JOINTS.split(found[3].casefold()) if word}
        # "Move (bread, friday)" is a call, and "move (at last)" is not.
        called = given and given <= known if found[2] else given not in _SUFFIXES
        name = found[1].casefold()
        if called and (name if found[2] else name.rpartition(".")[2]) in (single if found[2] else parts):
            return found[0]
    for part in text.casefold().split("`")[1::2]:
        first, *others = _JOINTS.sub(" ", part).split() or [""]
        if first in parts and others and known.issuperset(others):
            return part
    return next((found[0] for found in _SET.finditer(text) if {*found.groups()} & (_KEYS | parameters)), "")


def _split(name: str) -> list[str]:
    return [word for word in _JOINTS.split(_CAMEL.sub(" ", name)) if word]


def _values(actions: Sequence[Action]) -> Iterator[str]:
    """The texts and numbers within the arguments of calls, and the literals of code."""
    waiting: list[Any] = [call.arguments for action in actions for call in action.calls]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping | list | tuple):
            waiting += value.values() if isinstance(value, Mapping) else value
        else:
            yield str(value)
    for action in actions:
        for node in () if action.calls else ast.walk(syntax_tree(action)):
            if isinstance(node, ast.Constant):
                yield str(node.value)
