"""The to-do list of examples/todo as an MCP server: the same tasks, the same verdicts."""

from __future__ import annotations

import importlib.util
import json

import pytest
from mcp_plays import FINISH, FOLDER, call, command, over_http

from cojax.environment import play
from cojax.environment.replay import follow
from cojax.types import Action, Task
from environments.mcp import make
from environments.tools import ToolEnvironment

pytestmark = pytest.mark.real
EXAMPLE = FOLDER.parents[2] / "examples" / "todo"
RIGHT = {"solution", "another order", "by a refused call"}


def functions():
    spec = importlib.util.spec_from_file_location("todo", EXAMPLE / "todo.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.make(lists=2)


def plays(items: dict[str, dict[str, str]]) -> dict[str, tuple[Action, ...]]:
    """Ways to do a task, by their names; the first is its solution, which moves an item to a day that it is not on."""
    title, other = list(items)[:2]
    day, another = [day for day in ("friday", "monday", "tuesday") if day != items[title]["day"]][:2]
    move, tick, finish = call("move", title=title, day=day), call("tick", title=other), FINISH
    return {
        "solution": (move, tick, finish),
        "another order": (tick, move, finish),
        "no move": (tick, finish),
        "another day": (call("move", title=title, day=another), tick, finish),
        "by a refused call": (move, call("move", title="nothing", day="friday"), tick, finish),
        "one too many": (move, tick, call("add", title="x", day="friday"), finish),
        "not ended": (move, tick),
    }


def setups() -> list[dict]:
    """The lists of two tasks, each made by the calls that add its items."""
    return [
        {"calls": [{"name": "add", "arguments": {"title": title, "day": one["day"]}} for title, one in items.items()]}
        for items in (task.setup["items"] for task in functions().tasks("seed", 2))
    ]


def verdicts(environment: ToolEnvironment, begun: list[dict]) -> list[dict[str, float]]:
    """For each task, the reward of each way to do it."""
    found = []
    for plain, setup in zip(functions().tasks("seed", 2), begun, strict=True):
        ways = plays(plain.setup["items"])
        task = Task(environment.name, "Do it.", setup, ways["solution"])
        found.append(
            {name: play(environment, task, follow(way), max_turns=len(way)).reward for name, way in ways.items()}
        )
    return found


def test_the_same_tasks_have_the_same_verdicts_by_functions_over_stdio_and_over_http(monkeypatch) -> None:
    todo = functions()
    plain = verdicts(todo, [task.setup for task in todo.tasks("seed", 2)])
    assert plain == [{name: float(name in RIGHT) for name in one} for one in plain]
    assert len(plain[0]) == 7

    stdio = make(command=command(str(EXAMPLE / "server.py")), setups=json.dumps(setups()))
    assert [tool["function"]["name"] for tool in stdio.tools()] == ["add", "move", "tick", "show", "finish"]
    assert verdicts(stdio, setups()) == plain

    monkeypatch.setenv("LISTS_TOKEN", "Bearer of lists")
    with over_http("lists_server.py", TEST_TOKEN="Bearer of lists") as url:
        settings = {"headers": "Authorization=LISTS_TOKEN", "reset": "clear", "state": "everything"}
        http = make(url=url, unconfined=True, setups=json.dumps(setups()), **settings)
        assert verdicts(http, setups()) == plain
