"""The to-do list of examples/todo as an MCP server: the same tasks, the same verdicts."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from cojax.environment import play
from cojax.environment.replay import follow
from cojax.types import Action, Call, Task
from environments.mcp import RECIPE, make
from environments.mcp.world import NAME
from environments.worker.venv import interpreter

pytestmark = pytest.mark.real
EXAMPLE = Path(__file__).parents[3] / "examples" / "todo"


def functions():
    spec = importlib.util.spec_from_file_location("todo", EXAMPLE / "todo.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.make(lists=2)


def call(tool: str, **arguments: str) -> Action:
    return Action(calls=(Call(tool, arguments),))


def plays(items: dict[str, dict[str, str]]) -> dict[str, tuple[Action, ...]]:
    """Ways to do a task, by their names; the first is its solution, which moves an item to a day that it is not on."""
    title, other = list(items)[:2]
    day, another = [day for day in ("friday", "monday", "tuesday") if day != items[title]["day"]][:2]
    move, tick, finish = call("move", title=title, day=day), call("tick", title=other), call("finish")
    return {
        "solution": (move, tick, finish),
        "another order": (tick, move, finish),
        "no move": (tick, finish),
        "another day": (call("move", title=title, day=another), tick, finish),
        "by a refused call": (move, call("move", title="nothing", day="friday"), tick, finish),
        "one too many": (move, tick, call("add", title="x", day="friday"), finish),
        "not ended": (move, tick),
    }


def test_the_same_tasks_have_the_same_verdicts() -> None:
    todo = functions()
    lists = todo.tasks("seed", 2)
    setups = [
        {"calls": [{"name": "add", "arguments": {"title": title, "day": one["day"]}} for title, one in items.items()]}
        for items in (task.setup["items"] for task in lists)
    ]
    server = make(command=f"{interpreter(NAME, RECIPE)} {EXAMPLE / 'server.py'}", setups=json.dumps(setups))
    assert [tool["function"]["name"] for tool in server.tools()] == ["add", "move", "tick", "show", "finish"]
    rewards = []
    for plain, setup in zip(lists, setups, strict=True):
        ways = plays(plain.setup["items"])
        for environment, begun in ((todo, plain.setup), (server, setup)):
            task = Task(environment.name, "Do it.", begun, ways["solution"])
            found = {
                name: play(environment, task, follow(way), max_turns=len(way)).reward for name, way in ways.items()
            }
            rewards.append(found)
    right = {"solution", "another order", "by a refused call"}
    assert rewards == [{name: float(name in right) for name in ways}] * 4
