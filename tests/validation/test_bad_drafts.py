"""Bad drafts by kind, at the desk and in a to-do list without prefixes: the structural ones are refused, the others
counted; and good drafts of the same shapes, which pass."""

from __future__ import annotations

import functools
from collections import Counter

import pytest
from bad_drafts import ACCEPTED, ACCEPTED_HELD_OUT, BY_DESIGN, GOOD, HELD_OUT, ROWS
from records import DESK

import environments
from cojax.environment import Environment
from cojax.explorer.scripted.explorer import ScriptedExplorer
from cojax.types import Action, Call, TaskDraft, Verdict
from cojax.validation import Validation
from environments.tools import ToolEnvironment

ITEMS = {
    "bread": {"day": "monday", "done": False},
    "milk": {"day": "friday", "done": True},
    "tea": {"day": "sunday", "done": False},
}


def todo() -> Environment:
    def add(world: dict, title: str, day: str) -> None:
        """Add an item to the list."""
        world["items"][title] = {"day": day, "done": False}

    def move(world: dict, title: str, day: str) -> None:
        """Move an item to another day."""
        world["items"][title]["day"] = day

    def tick(world: dict, title: str) -> None:
        """Mark an item as done."""
        world["items"][title]["done"] = True

    def drop(world: dict, title: str) -> None:
        """Take an item off the list."""
        del world["items"][title]

    def show(world: dict, title: str) -> str:
        """Show the day of an item."""
        return world["items"][title]["day"]

    return ToolEnvironment("todo", [add, move, tick, drop, show], open=dict, setups=[{"items": ITEMS}])


@functools.cache
def world(name: str) -> tuple[Environment, dict, dict[str, list[str]]]:
    """The environment, a setup, and the parameters of each tool."""
    environment = environments.load("desk") if name == "desk" else todo()
    documents = [one["function"] for one in environment.tools()]
    return (
        environment,
        DESK if name == "desk" else {"items": ITEMS},
        {one["name"]: list(one["parameters"]["properties"]) for one in documents},
    )


def examined(name: str, query: str, solution: str) -> Verdict:
    """The verdict on a draft whose solution is written as calls with their values, apart by semicolons."""
    environment, setup, parameters = world(name)
    actions = []
    for said in solution.split(";"):
        tool, *values = said.split()
        actions.append(Action(calls=(Call(tool, dict(zip(parameters[tool], values, strict=False))),)))
    draft = TaskDraft(environment.name, setup, "by hand", query, tuple(actions), "")
    return Validation(environment)(draft, lambda id: False, ScriptedExplorer())[0]


@pytest.mark.parametrize(("kind", "name", "solution", "query"), ROWS)
def test_a_structural_fault_is_refused(kind: str, name: str, solution: str, query: str) -> None:
    verdict = examined(name, query, solution)
    assert verdict.status == "discarded", verdict
    assert not any(line.startswith("run fails") for line in verdict.evidence), verdict


@pytest.mark.parametrize(("name", "solution", "query"), GOOD)
def test_good_drafts_of_the_same_shapes_pass(name: str, solution: str, query: str) -> None:
    verdict = examined(name, query, solution)
    assert verdict.status == "accepted", verdict


def test_what_stays_is_counted() -> None:
    found = {
        kind: sum(examined(name, query, solution).status == "accepted" for name, solution, query in rows)
        for kind, rows in BY_DESIGN.items()
    }
    assert found == ACCEPTED


def test_of_those_held_out_no_more_are_accepted() -> None:
    found = Counter(
        (kind, name)
        for kind, name, solution, queries in HELD_OUT
        for query in queries
        if examined(name, query, solution).status == "accepted"
    )
    assert found == ACCEPTED_HELD_OUT


def test_there_are_enough_of_each() -> None:
    counts = Counter(name for _, name, _, _ in ROWS)
    assert counts["desk"] >= 42
    assert counts["todo"] >= 14
