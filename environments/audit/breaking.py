"""The attacker that sends what a world may choke on: garbage, and odd values in the arguments of calls that work."""

import json
from collections.abc import Iterator
from typing import Any

from cojax.types import Action, Call
from ..soundness import GARBAGE
from .player import Attempt
from .scene import Scene, read_properties

# The most calls whose arguments are replaced.
_MAX_CALLS = 40
_TEXTS = (
    *("", "nan", "NaN", "Infinity", "1e308", "1e308", "-1e308", "1e999", '{"a": NaN}'),
    *("\x00", "\ud800", "a'b\"c; --", "../../..", "x" * 100_000),
)
# Sums, differences and products of the largest floats are infinite, or no numbers.
_NUMBERS = (1e308, 1e308, 1e308, -1e308, float("nan"), float("inf"), 10**400, 2**63, -1, 0)
_OTHERS: tuple[Any, ...] = (None, [], {}, [[]], True, json.loads("[" * 200 + "]" * 200))


def send_odd_values(scene: Scene) -> Iterator[Attempt]:
    """Calls that broke the survey, garbage in place of an action, odd values for each argument in turn, odd answers."""
    end = scene.ending.bare()
    for actions in scene.breaking:
        yield Attempt(f"{actions[-1].calls[0].name} as its schema allows", actions)
    for name, action in GARBAGE.items():
        yield Attempt(name, (action, end))
    for before, call in _list_calls(scene):
        yield Attempt(f"{call.name} without arguments", (*before, Action(calls=(Call(call.name),)), end))
        for parameter, values in _list_parameters(scene, call):
            actions = tuple(Action(calls=(Call(call.name, {**call.arguments, parameter: odd}),)) for odd in values)
            yield Attempt(f"odd values of {parameter} in {call.name}", (*before, *actions, end))
    if scene.ending.parameter is not None or not scene.ending.tool:
        for number, odd in enumerate((*_TEXTS, *_NUMBERS[4:8], *_OTHERS), 1):
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
    properties = read_properties(scene.tools, call.name)
    for parameter in dict.fromkeys((*call.arguments, *properties)):
        value, schema = call.arguments.get(parameter), properties.get(parameter)
        is_number = isinstance(schema, dict) and schema.get("type") in ("number", "integer")
        odds: tuple[Any, ...] = _NUMBERS if is_number or type(value) in (int, float) else _TEXTS
        odds = (*_NUMBERS, *_TEXTS) if isinstance(value, (list, dict)) else odds
        yield parameter, (*(_fill(value, odd) for odd in odds), *_OTHERS)


def _fill(value: Any, odd: Any) -> Any:
    """The odd value or, for a list or an object, the same with the odd value in place of each single value in it."""
    if isinstance(value, dict):
        return {key: _fill(member, odd) for key, member in value.items()}
    return [_fill(member, odd) for member in value] if isinstance(value, list) else odd
