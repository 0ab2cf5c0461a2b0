"""Cases of a world of Python functions in this process: honest solutions, and calls after which it has no state."""

import math
from collections.abc import Callable
from typing import Any

from campaign import texts
from campaign.cases import Canary, Case, draw
from cojax.types import Action, Call, Task
from environments.tools import ToolEnvironment

_SETUP = {"balance": 1.0, "notes": []}


def deposit(world: dict[str, Any], amount: float) -> None:
    world["balance"] += amount


def interest(world: dict[str, Any], rate: float) -> float:
    return world["balance"] * rate


def multiply(world: dict[str, Any], factor: int) -> None:
    world["balance"] = int(world["balance"]) * factor


def note(world: dict[str, Any], text: str) -> None:
    world["notes"].append(text)


def show(world: dict[str, Any]) -> list[str]:
    return world["notes"]


def wrap(world: dict[str, Any], times: int) -> None:
    for _ in range(times):
        world["notes"] = [world["notes"]]


def leave(world: dict[str, Any]) -> None:
    raise SystemExit


def keep(world: dict[str, Any]) -> None:
    world["notes"].append(object())


def _call(name: str, **arguments: Any) -> Action:
    return Action(calls=(Call(name, arguments),))


_FINISH = _call("finish")
_BREAKING = {
    "infinite sum": (_call("deposit", amount=1.7e308),) * 2,
    "infinite result": (_call("deposit", amount=1e308), _call("interest", rate=1e308)),
    "huge integer": (_call("multiply", factor=10**4000),) * 2,
    "deep nesting": (_call("wrap", times=100_000),),
    "exit": (_call("leave"),),
    "no JSON": (_call("keep"),),
}
_REFUSED = ("nan", "inf", "-Infinity", "1e999", math.nan, math.inf, "1" * 400)


class ToolCases:
    """Half of the cases are honest, some of them after arguments that are refused."""

    def __init__(self, canary: Canary) -> None:
        tools: list[Callable[..., Any]] = [deposit, interest, multiply, note, show, wrap, leave, keep]
        self.environment, self.canary = ToolEnvironment("bank", tools, dict, [_SETUP]), canary

    def supervisors(self) -> tuple[int, ...]:
        return ()

    def close(self) -> None:
        pass

    def case(self, id: str, seed: int) -> Case:
        rng = draw(seed, id)
        noted = _call("note", text=self.canary.word(id))
        solution = (noted, _call("deposit", amount=float(rng.randrange(1, 100))), _call("show"), _FINISH)
        task = Task("bank", "note the word and deposit", _SETUP, solution)
        if rng.random() < 0.5:
            refused = [_call("deposit", amount=rng.choice(_REFUSED)) for _ in range(rng.randrange(3))]
            return Case(id, "honest", task, (*refused, *solution), "full")
        way = rng.choice((*_BREAKING, "garbage"))
        broken = _BREAKING.get(way) or (_call("deposit", amount=texts.arguments(rng)),)
        return Case(id, way, task, (noted, *broken, _FINISH), "less")
