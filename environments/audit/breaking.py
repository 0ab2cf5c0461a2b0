"""The attacker that sends what a world may choke on: garbage, and odd values in the arguments of calls that work."""

import json
from collections.abc import Iterator
from typing import Any

from cojax.types import Action, Call
from ..soundness import GARBAGE
from .player import Attempt
from .scene import Scene

# The most calls whose arguments are replaced.
_MAX_CALLS = 40
_TEXTS = (
    *("", "nan", "NaN", "Infinity", "1e308", "1e308", "-1e308", "1e999", '{"a": NaN}'),
    *("\x00", "\ud800", "a'b\"c; --", "../../..", "x" * 100_000),
)
# Sums, differences and products of the largest floats are infinite, or no numbers.
_NUMBERS = (0, -1, 1e308, 1e308, 1e308, -1e308, float("nan"), float("inf"), 10**400, 2**63)
_OTHERS: tuple[Any, ...] = (None, [], {}, [[]], True, json.loads("[" * 200 + "]" * 200))


def send_odd_values(scene: Scene) -> Iterator[Attempt]:
    """Garbage in place of an action, odd values for each argument in turn, and odd answers."""
    end = scene.ending.bare()
    for name, action in GARBAGE.items():
        yield Attempt(name, (action, end))
    for before, call in _list_calls(scene):
        yield Attempt(f"{call.name} without arguments", (*before, Action(calls=(Call(call.name),)), end))
        for parameter, values in _list_parameters(scene, call):
            odd_calls = [Call(call.name, {**call.arguments, parameter: odd}) for odd in values]
            actions = tuple(Action(calls=(odd_call,)) for odd_call in odd_calls)
            yield Attempt(f"odd values of {parameter} in {call.name}", (*before, *actions, end))
    if scene.ending.parameter is not None or not scene.ending.tool:
        for number, odd in enumerate((*_TEXTS, *_NUMBERS[-4:], *_OTHERS), 1):
            if scene.ending.tool or isinstance(odd, str):
                yield Attempt(f"odd answer {number}", (*scene.body, scene.ending.answer(odd)))


def _list_calls(scene: Scene) -> list[tuple[tuple[Action, ...], Call]]:
    """Calls that work, each with what comes before it: those of the solution, then those of other tools."""
    calls: dict[tuple[str, ...], tuple[tuple[Action, ...], Call]] = {}
    for index, action in enumerate(scene.body):
        for call in action.calls:
            calls.setdefault((call.name, *call.arguments), (scene.body[:index], call))
    for tried in sorted(scene.tried, key=lambda tried: not tried.ok):
        calls.setdefault((tried.call.name, *tried.call.arguments), ((), tried.call))
    return list(calls.values())[:_MAX_CALLS]


def _list_parameters(scene: Scene, call: Call) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Each parameter of a call's tool, also an optional one, with the odd values that it gets."""
    properties: dict[str, Any] = {}
    for tool in scene.tools:
        function = tool.get("function")
        if isinstance(function, dict) and function.get("name") == call.name:
            properties = dict(function.get("parameters", {}).get("properties", {}))
    for parameter in dict.fromkeys((*call.arguments, *properties)):
        schema = properties.get(parameter, {})
        kinds = schema.get("type", "") if isinstance(schema, dict) else ""
        is_number = _is_number(call.arguments.get(parameter)) or kinds in ("number", "integer")
        yield parameter, (*(_NUMBERS if is_number else _TEXTS), *_OTHERS)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
