"""Reads calls written as literal-only Python, limits their arguments, renders results. Evaluates nothing."""

import ast
import json
import math
from collections.abc import Mapping
from typing import Any

from cojax.types import canonical, content_hash

# Limits of arguments; a call beyond them is answered with an error.
_DEPTH = 16
_VALUES = 5_000
_CHARACTERS = 100_000
_LARGEST = 10**300
# A longer result is cut here.
_RESULT = 200_000

ERROR = "Error during execution: "


def read(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """The name, positional and keyword arguments of one call written in Python.

    Raises ValueError for anything but a bare name called with literals: no attribute, nested call, star or operator.
    """
    try:
        call = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ValueError(f"{text[:100]!r} is no Python expression; expected one call") from error
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError(f"{text[:100]!r} is no call of a bare name; expected name(argument=literal, ...)")
    named: dict[str, Any] = {}
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg in named:
            raise ValueError(f"{text[:100]!r} has a starred or repeated argument; expected each name once")
        named[keyword.arg] = _literal(keyword.value)
    return call.func.id, [_literal(argument) for argument in call.args], named


def _literal(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.List() | ast.Tuple():
            return [_literal(element) for element in node.elts]
        case ast.Dict():
            if None in node.keys:
                raise ValueError("a dictionary is unpacked in an argument; expected literals only")
            return {
                _key(key): _literal(value) for key, value in zip(node.keys, node.values, strict=True) if key is not None
            }
    raise ValueError(f"{type(node).__name__} in an argument; expected literals only")


def _key(node: ast.expr) -> Any:
    key = _literal(node)
    if not isinstance(key, str):
        raise ValueError(f"dictionary key {key!r}; expected text, as JSON knows no other")
    return key


def examine(arguments: Mapping[str, Any]) -> str:
    """Why these arguments are refused; "" where they are accepted."""
    values, characters, open_ = 0, 0, [(1, item) for pair in arguments.items() for item in pair]
    while open_:
        depth, value = open_.pop()
        values += 1
        if values > _VALUES:
            return f"more than {_VALUES} values in the arguments"
        if depth > _DEPTH:
            return f"arguments nested deeper than {_DEPTH}"
        if isinstance(value, str):
            characters += len(value)
        elif isinstance(value, Mapping):
            open_ += [(depth + 1, item) for pair in value.items() for item in pair]
        elif isinstance(value, (list, tuple)):
            open_ += [(depth + 1, item) for item in value]
        elif isinstance(value, float) and not math.isfinite(value):
            return "an argument is no finite number"
        elif isinstance(value, int) and abs(value) > _LARGEST:
            return "a number is too large"
        elif value is not None and not isinstance(value, (bool, int, float)):
            return f"an argument is of type {type(value).__name__}; JSON has none"
        if characters > _CHARACTERS:
            return f"more than {_CHARACTERS} characters in the arguments"
    return ""


def render(result: Any) -> str:
    """The result as the benchmark shows it: text unchanged, a dict as JSON if possible, all else by `str`."""
    if isinstance(result, str):
        text = result
    elif isinstance(result, dict):
        try:
            text = json.dumps(result)
        except (TypeError, ValueError, RecursionError):
            text = str(result)
    else:
        text = str(result)
    return text if len(text) <= _RESULT else f"{text[:_RESULT]} [{len(text) - _RESULT} characters cut]"


def is_failure(result: Any) -> bool:
    """Whether an API reports a failure: an `error` entry, also of a list's only element, or text that begins so."""
    if isinstance(result, list) and len(result) == 1:
        result = result[0]
    return (isinstance(result, dict) and "error" in result) or (
        isinstance(result, str) and result.startswith(("Error:", ERROR))
    )


def brief(value: Any, limit: int = 500) -> Any:
    """The value, or its hash where its JSON is longer than `limit`: equal values stay equal."""
    return value if len(canonical(value)) <= limit else f"hash:{content_hash(value)}"
