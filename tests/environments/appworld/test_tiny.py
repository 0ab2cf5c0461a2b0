"""The tiny data: its scenarios as they are written, without the package."""

import ast
import builtins
import re
from pathlib import Path

import pytest

from environments.appworld.data import SPLITS
from environments.appworld.tiny.rows import PEOPLE, SUPERVISORS, contacts
from environments.appworld.tiny.scenarios import SCENARIOS, Scenario

each = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)


def test_enough_of_everything() -> None:
    by_split = {split: sum(scenario.split == split for scenario in SCENARIOS) for split in SPLITS}
    assert by_split == {"train": 7, "dev": 2, "test_normal": 2, "test_challenge": 3}
    assert len({scenario.id for scenario in SCENARIOS}) == 14
    assert all(re.fullmatch(r"[0-9a-f]{7}", scenario.id) for scenario in SCENARIOS)
    assert {app for scenario in SCENARIOS for app in scenario.apps} == {
        "phone",
        "simple_note",
        "spotify",
        "todoist",
        "venmo",
    }
    assert sum(len(scenario.apps) > 1 for scenario in SCENARIOS) == 7
    assert len(SUPERVISORS) == 5


def test_everybody_knows_everybody() -> None:
    for person in PEOPLE:
        assert {other for other, _ in contacts(person)} == set(PEOPLE) - {person}
    assert [(other.first_name, kind) for other, kind in contacts(PEOPLE[6])[:3]] == [
        ("Jonas", "roommate"),
        ("Nora", "roommate"),
        ("Tomas", "coworker"),
    ]


@each
def test_a_solution_knows_of_its_task_what_the_instruction_says(scenario: Scenario) -> None:
    said = set(re.findall(r"{(\w+)}", scenario.instruction))
    used = {name for block in scenario.solution for name in re.findall(r"<(\w+)>", block)}
    assert used <= said
    # Values that a template language might trip over.
    blocks = scenario.blocks({name: 'it\'s \\1 <b> {x} "y"' for name in said})
    for block in blocks:
        compile(block, scenario.name, "exec")
    assert "complete_task" in blocks[-1]
    assert "login(" in blocks[0]


@each
def test_an_evaluation_stands_alone(scenario: Scenario) -> None:
    """It is a file of its own, which defines one function and imports nothing."""
    (function,) = ast.parse(scenario.evaluation).body
    assert isinstance(function, ast.FunctionDef)
    assert function.name == "evaluate"
    names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
    own = {argument.arg for argument in function.args.args}
    own |= {name.id for name in names if isinstance(name.ctx, ast.Store)}
    assert {name.id for name in names} - own <= set(dir(builtins))
    assert not any(isinstance(node, (ast.Import, ast.ImportFrom)) for node in ast.walk(function))


def test_nothing_that_the_package_keeps_encrypted_is_here() -> None:
    """Its apps, documentation and data carry this mark, wherever they are unpacked."""
    mark, here = "appworld:" + "d17ac3f", Path(__file__).parents[3]
    ours = [
        path for room in ("environments", "tests", "docs", "experiments", "cojax") for path in (here / room).rglob("*")
    ]
    texts = [path for path in ours if path.suffix in (".py", ".json", ".jsonl", ".md", ".txt", ".html")]
    assert len(texts) > 100
    assert [path for path in texts if mark in path.read_text(errors="replace")] == []
    assert [path for path in ours if path.suffix == ".db"] == []
