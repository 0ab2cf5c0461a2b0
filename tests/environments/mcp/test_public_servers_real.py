"""Public servers as pip installs them: the check, and the main command with a small policy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from patience import patience

from environments import check
from environments.mcp.data import SERVERS

ROOT = Path(__file__).parents[3]
LOOKUPS = {
    "sqlite": {"describe_table", "list_tables", "read_query"},
    # In some walks nothing is staged when `git_reset` is called.
    "git": {
        "git_branch",
        "git_diff",
        "git_diff_staged",
        "git_diff_unstaged",
        "git_log",
        "git_reset",
        "git_show",
        "git_status",
    },
    "filesystem": {"list_allowed_directories", "list_directory", "read_file"},
}


@pytest.mark.nightly
def test_of_the_database_server_every_walk_replays_and_only_lookups_go_unnoticed(capsys) -> None:
    assert check.main(["mcp", "--set", "server=sqlite", "--count=2"]) == 0
    line = json.loads(capsys.readouterr().out)
    assert (line["setups"], line["replayed"], line["thrown"], line["answered"]) == (2, 2, 13, 13)
    assert line["mutated_rejected"] >= 4
    assert {told.partition(":")[0] for told in line["unnoticed"]} <= LOOKUPS["sqlite"]


@pytest.mark.nightly
def test_each_server_has_a_line_of_the_check_without_a_fault(capsys) -> None:
    assert check.main(["mcp", "--count=6"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["server"] for line in lines] == ["sqlite", "git", "filesystem"]
    assert [(line["setups"], line["replayed"], line["answered"]) for line in lines] == [(6, 6, 13)] * 3
    for line in lines:
        assert {told.partition(":")[0] for told in line["unnoticed"]} <= LOOKUPS[line["server"]]


@pytest.mark.nightly
@pytest.mark.parametrize("server", SERVERS)
def test_the_main_command_adds_tasks_with_the_tiny_policy(server: str, tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "experiments.run", "--config=experiments/mcp.py", "--config.policy=tiny",
        "--config.steps=2", f"--config.environment.server={server}", f"--config.workdir={tmp_path / 'run'}",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=patience(3_600))
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["steps"] == 2
    assert summary["tasks_final"] > summary["tasks_initial"]
    assert summary["outcomes"].get("environment_error", 0) == 0
