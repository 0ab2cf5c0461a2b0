"""docs/api.md and docs/command.md say what is there."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

import cojax
from cojax.api.training import OpenRun
from cojax.command import COMMANDS

DOCS = Path(__file__).parents[2] / "docs"
API = (DOCS / "api.md").read_text()


def calls() -> list[ast.Call]:
    """The calls of cojax's functions in the page's code."""
    blocks = re.findall(r"```python\n(.*?)```", API, re.DOTALL)
    nodes = [node for block in blocks for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Call)]
    return [node for node in nodes if ast.unparse(node.func).startswith("cojax.")]


def test_the_code_calls_what_is_there_with_arguments_that_it_takes() -> None:
    called = {ast.unparse(call.func).removeprefix("cojax.") for call in calls()}
    assert called == {"train", "steps", "evaluate", "load"}
    for call in calls():
        function = getattr(cojax, ast.unparse(call.func).removeprefix("cojax."))
        named = {keyword.arg for keyword in call.keywords}
        # Settings would be taken too, but none is named here.
        assert named <= set(inspect.signature(function).parameters)


def test_every_name_of_the_page_is_there_and_every_name_is_on_the_page() -> None:
    for name in set(re.findall(r"`(cojax(?:\.\w+)*)", API)):
        owner, _, last = name.rpartition(".")
        assert hasattr(importlib.import_module(owner or name), last or "__all__"), name
    assert set(re.findall(r"cojax\.(\w+)", API)) >= set(cojax.__all__) - {"OpenRun", "Records"}
    methods = [name for name, value in vars(OpenRun).items() if inspect.isfunction(value) and not name.startswith("_")]
    assert all(re.search(rf"`{name}\(", API) for name in methods)


def test_the_commands_stand_in_the_page_with_their_modules() -> None:
    page = (DOCS / "command.md").read_text()
    cells = [line.split(" | ")[:2] for line in page.splitlines() if line.startswith("| `")]
    rows = [re.findall(r"`([\w.]+)`", " ".join(row)) for row in cells]
    listed = {
        name: module for row in rows for name, module in zip(row[: len(row) // 2], row[len(row) // 2 :], strict=True)
    }
    assert listed == {name: module for name, (module, _) in COMMANDS.items()}
