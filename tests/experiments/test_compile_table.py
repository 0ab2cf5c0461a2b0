"""The table of compiled cells: what is listed, what is compiled again and what is not, and the page made from it."""

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks import compile_table as table
from benchmarks.compile_table import Cell

FITTING = {
    "fits": True, "bytes_argument": 2**30, "bytes_temporary": 2**31, "bytes_peak": 3 * 2**30, "bytes_limit": 2**34,
    "collectives": {"all-gather": {"count": 4, "bytes": 5 * 2**30}, "all-reduce": {"count": 1, "bytes": 2**30}},
    "flops": 7 * 10**15, "bounds": {"compute": 27.3, "interconnect": 2.0}, "bound_seconds": 27.3,
    "kernels": ["splash attention"], "cpu_seconds": 166.4,
}  # fmt: skip
SUGGESTED = {"settings": {"optimizer.moments_dtype": "bfloat16"}, "bytes_peak_estimated": 15 * 2**30}
TOO_LARGE = {**FITTING, "fits": False, "bytes_peak": 20 * 2**30, "suggestion": SUGGESTED}
CELL = Cell("v5e-16", "Qwen3-4B", "full", 16_384)


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "ROOT", tmp_path)
    monkeypatch.setattr(table, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(table, "PAGE", tmp_path / "pods.md")
    (tmp_path / "pods.md").write_text(f"before\n{table.TABLE_MARKS[0]}\nold\n{table.TABLE_MARKS[1]}\nafter\n")


@pytest.fixture
def compiler(monkeypatch):
    """Commands that were run, and what the next ones answer: the status and the report."""
    commands: list[list[str]] = []
    answers: list[tuple[int, dict]] = []

    def run(command, **settings):
        commands.append(command)
        status, found = answers.pop(0)
        return subprocess.CompletedProcess(command, status, json.dumps(found), "why")

    monkeypatch.setattr(table.subprocess, "run", run)
    return commands, answers


def test_every_target_has_each_model_whole_and_with_adapters_in_rows_of_two_lengths():
    cells = table.list_cells()
    assert len(cells) == len({cell.path for cell in cells}) == 4 * 3 * 2 * 2 + 2
    assert {cell.row_length for cell in cells} == {16_384, 32_768}


def test_a_cell_is_a_command_with_one_row_on_each_device():
    assert Cell("v5e-64", "Qwen3-30B-A3B", "lora", 32_768).flags("models/M") == [
        "--target=v5e-64", "--config=experiments/bfcl.py", "--config.model.path=models/M", "--config.mesh.fsdp=16",
        "--config.mesh.expert=4", "--config.learner.micro_rows=16", "--config.learner.row_length=32768",
        "--config.learner.remat=inputs", "--config.learner.lora.rank=16",
    ]  # fmt: skip


def test_a_stored_cell_is_not_compiled_again_and_one_that_does_not_fit_is_followed_by_the_suggestion(compiler):
    commands, answers = compiler
    answers += [(3, TOO_LARGE), (0, FITTING), *[(0, FITTING)] * 12]
    assert table.main(["--minutes=1", "--only=v5e-16"]) == 0
    assert len(commands) == 14
    assert "--config.optimizer.moments_dtype=bfloat16" in commands[1]
    assert table.read_result(CELL)["command"][:4] == ["python", "-m", "experiments.compile", "--target=v5e-16"]
    assert table.main(["--minutes=1", "--only=v5e-16"]) == 0
    assert len(commands) == 14


def test_an_error_is_told_and_the_other_cells_are_compiled(compiler, capsys):
    commands, answers = compiler
    answers += [(1, {}), *[(0, FITTING)] * 12]
    assert table.main(["--minutes=1", "--only=v5e-16"]) == 1
    assert len(commands) == 13
    assert table.read_result(CELL) is None
    assert "error: Qwen3-4B-full-16384 on v5e-16: {}why" in capsys.readouterr().err


def test_no_cell_begins_when_the_time_is_over(compiler):
    assert table.main(["--minutes=0"]) == 0
    assert compiler[0] == []


def test_the_page_shows_stored_cells_and_those_that_were_not_compiled(compiler):
    compiler[1].append((0, FITTING))
    table.compile_cell(CELL, 1.0)
    table.write_page()
    page = (table.PAGE).read_text()
    assert page.startswith(f"before\n{table.TABLE_MARKS[0]}\n| target |")
    assert page.endswith(f"|\n{table.TABLE_MARKS[1]}\nafter\n")
    assert (
        "| v5e-16 | Qwen3-4B | full | 16,384 | fsdp 8 × tensor 2 | yes | 1.0 + 2.0 → 3.0 of 16.0 | 6 | 7 | 27 s "
        "(compute) | splash attention | 166 s |\n"
    ) in page
    assert page.count("not compiled") == 49


def test_the_page_says_whether_a_suggestion_was_compiled(compiler):
    compiler[1].append((3, TOO_LARGE))
    table.compile_cell(CELL, 1.0)
    said = "| no; with `optimizer.moments_dtype=bfloat16` it is estimated to take 15.0 |"
    assert said in table.make_table()
    compiler[1].append((0, FITTING))
    table.compile_cell(table.follow_suggestion(CELL), 1.0)
    assert "| no; with `optimizer.moments_dtype=bfloat16` it fits, compiled: 3.0 |" in table.make_table()


def test_a_suggestion_that_does_not_fit_is_followed_by_the_next(compiler):
    commands, answers = compiler
    further = {**TOO_LARGE, "suggestion": {**TOO_LARGE["suggestion"], "settings": {"learner.row_length": 8192}}}
    answers += [(3, TOO_LARGE), (3, further), *[(0, FITTING)] * 13]
    assert table.main(["--minutes=1", "--only=v5e-16"]) == 0
    assert {"--config.optimizer.moments_dtype=bfloat16", "--config.learner.row_length=8192"} <= set(commands[2])
    said = "with `optimizer.moments_dtype=bfloat16`, `learner.row_length=8192` it fits, compiled: 3.0"
    assert said in table.make_table()


def test_suggestions_come_to_an_end(compiler):
    commands, answers = compiler
    answers += [*[(3, TOO_LARGE)] * (1 + table.MAX_SUGGESTIONS), *[(0, FITTING)] * 12]
    assert table.main(["--minutes=1", "--only=v5e-16"]) == 0
    assert len(commands) == 13 + table.MAX_SUGGESTIONS
    assert "`optimizer.moments_dtype=bfloat16` it does not fit either" in table.make_table()


def test_the_committed_page_is_made_from_the_committed_cells(monkeypatch):
    root = Path(__file__).parents[2]
    monkeypatch.setattr(table, "RESULTS", root / "benchmarks/compiled")
    assert (
        f"{table.TABLE_MARKS[0]}\n{table.make_table()}\n{table.TABLE_MARKS[1]}" in (root / "docs/pods.md").read_text()
    )
