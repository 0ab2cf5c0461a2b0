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
_TEXTS = ("", "nan", "inf", "1e999", "\x00", "\ud800", "a'b\"c; --", "../../..", "x" * 100_000)
# Sums, differences and products of the largest floats are infinite, or no numbers.
_NUMBERS = (0, -1, 1e308, 1e308, 1e308, -1e308, float("nan"), float("inf"), 10**400, 2**63)
_OTHERS: tuple[Any, ...] = (None, [], {}, [[]], True, json.loads("[" * 200 + "]" * 200))


def send_odd_values(scene: Scene) -> Iterator[Attempt]:
    """Garbage in place of an action, odd values for each argument in turn, and odd answers."""
    for name, action in GARBAGE.items():
        yield Attempt(name, (action, scene.ending.bare()))
    calls = {(tried.call.name, *tried.call.arguments): tried.call for tried in reversed(scene.tried)}
    for call in list(calls.values())[:_MAX_CALLS]:
        yield Attempt(f"{call.name} without arguments", (Action(calls=(Call(call.name),)), scene.ending.bare()))
        for parameter, value in call.arguments.items():
            values = (*(_NUMBERS if _is_number(value) else _TEXTS), *_OTHERS)
            odd_calls = [Call(call.name, {**call.arguments, parameter: odd}) for odd in values]
            actions = tuple(Action(calls=(odd_call,)) for odd_call in odd_calls)
            yield Attempt(f"odd values of {parameter} in {call.name}", (*actions, scene.ending.bare()))
    if scene.ending.parameter is not None or not scene.ending.tool:
        for number, odd in enumerate((*_TEXTS, *_NUMBERS[-4:], *_OTHERS), 1):
            if scene.ending.tool or isinstance(odd, str):
                yield Attempt(f"odd answer {number}", (*scene.body, scene.ending.answer(odd)))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
