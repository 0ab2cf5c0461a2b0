"""examples/compose.py: the loop from its parts, as a user copies it."""

from __future__ import annotations

import ast
import runpy
from pathlib import Path

import cojax

EXAMPLE = Path(__file__).parents[1] / "examples" / "compose.py"


def test_it_has_thirty_lines() -> None:
    (main,) = [node for node in ast.parse(EXAMPLE.read_text()).body if isinstance(node, ast.FunctionDef)]
    assert main.end_lineno is not None
    assert main.end_lineno - main.lineno < 30


def test_it_trains_evolves_and_leaves_a_run(tmp_path: Path) -> None:
    state = runpy.run_path(str(EXAMPLE))["main"](tmp_path / "run", steps=2)
    run = cojax.open_run(tmp_path / "run")
    assert state.step == 2
    assert [record["step"] for record in run.metrics()] == [1, 2]
    assert run.metrics()[1]["evolution"]["step"] == 2
    assert len(run.tasks()) >= 8
    assert run.episode_steps() == [1, 2]
    assert len(run.episodes(1)) == 16
