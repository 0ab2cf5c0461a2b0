"""The to-do list of docs/tools.md, by the commands that stand there, in a folder outside of the checkout."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import Commands

from cojax.command import COMMANDS

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "todo"


def documented() -> list[list[str]]:
    """The commands of the first block of the page, as arguments of `python`."""
    block = re.findall(r"```\n(.*?)```", (ROOT / "docs" / "tools.md").read_text(), re.DOTALL)[0]
    lines = [shlex.split(line)[1:] for line in block.splitlines() if line.startswith("cojax ")]
    return [["-m", COMMANDS[name][0], *arguments] for name, *arguments in lines]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLE, tmp_path / "todo", ignore=shutil.ignore_patterns("__pycache__")))


@pytest.fixture
def run(folder: Path, commands: Commands) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a command in the folder: the arguments after `python`."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COJAX_CACHE": str(folder.parent / "cache")}

    def started(*arguments: str, folder: Path = folder) -> subprocess.CompletedProcess[str]:
        assert arguments[0] == "-m"
        return commands.start(*arguments[1:], environment=environment, folder=folder).wait(timeout=900)

    return started


def test_the_example_and_the_page_are_short() -> None:
    assert len((EXAMPLE / "todo.py").read_text().splitlines()) <= 40
    assert len((ROOT / "docs" / "tools.md").read_text().splitlines()) <= 120


def test_the_check_says_that_it_is_sound_and_which_calls_go_unnoticed(run, folder: Path) -> None:
    checked = run(*documented()[0], "--count=10")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    line = json.loads(checked.stdout)
    assert (line["environment"], line["setups"], line["replayed"], line["faults"]) == ("todo", 10, 10, [])
    assert line["unnoticed"] == ["show: dropping this call goes unnoticed"]
    assert "untried" not in line


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("environment.lits=3", "environment 'todo' has no setting environment.lits; did you mean environment.lists?"),
        ("environment.lists=many", "environment.lists is 'many'; expected a whole number"),
        (
            "environment.name=",
            "environment.name is empty; name one of alfworld, appworld, bfcl, desk, mcp, openenv, "
            "scienceworld, tau2, verifiers, or a",
        ),
        (
            "environment.name=todoo",
            "environment 'todoo' not found; available: alfworld, appworld, bfcl, desk, mcp, openenv, "
            "scienceworld, tau2, verifiers",
        ),
    ],
)
def test_a_wrong_setting_is_refused_before_anything_is_built(run, folder: Path, setting: str, why: str) -> None:
    refused = run(*documented()[1], f"--config.{setting}")
    assert refused.returncode == 1
    assert why in refused.stdout
    assert not (folder / "runs").exists()


@pytest.mark.nightly
def test_it_trains_evolves_resumes_and_stands_in_the_report(run, folder: Path) -> None:
    train = documented()[1]
    done = run(*train)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "evaluation: none" in done.stdout
    workdir = folder / "runs" / "tools"
    summary = json.loads((workdir / "summary.json").read_text())
    assert (summary["zero_shot"], summary["final"], summary["steps"]) == (None, None, 2)
    assert json.loads((workdir / "final.json").read_text())["success"] is None
    assert summary["tasks_final"] > summary["tasks_initial"] == 16
    assert sum(summary["added"].values()) == summary["tasks_final"] - 16
    code = json.loads((workdir / "config.json").read_text())["code"]["environment.name"]
    assert (code["name"], code["folder"], code["settings"]) == ("todo:make", str(folder), {"lists": 40, "seed": 0})

    reported = run(*documented()[2])
    assert reported.returncode == 0, reported.stdout + reported.stderr
    page = (workdir / "report.html").read_text()
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])
    assert (data["headline"]["zero_shot"], data["headline"]["final"]) == (None, None)
    assert data["headline"]["tasks_final"] == summary["tasks_final"]

    resume = ("-m", "experiments.run", f"--workdir={workdir}", "--config.steps=3")
    elsewhere = folder.parent / "elsewhere"  # in folder.parent, the folder todo would count as a package of that name
    elsewhere.mkdir()
    assert f"add --trust-code={folder}" in run(*resume, folder=elsewhere).stdout
    resumed = run(*resume, f"--trust-code={folder}", folder=elsewhere)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert "resumed at step 2" in resumed.stdout
    assert json.loads((workdir / "summary.json").read_text())["steps"] == 3


@pytest.mark.nightly
def test_with_enough_initial_tasks_a_fifth_is_held_out_and_evaluated(run, folder: Path) -> None:
    train = [*documented()[1], "--config.initial_tasks=100", "--config.warm_start.steps=2", "--config.steps=1"]
    done = run(*train, "--config.environment.lists=60")
    assert done.returncode == 0, done.stdout + done.stderr
    workdir = folder / "runs" / "tools"
    held = json.loads((workdir / "held_out.json").read_text())["tasks"]
    pool = [json.loads(line) for line in (workdir / "tasks.jsonl").read_text().splitlines()]
    summary = json.loads((workdir / "summary.json").read_text())
    assert 20 <= len(held) <= 22
    assert 0.0 <= summary["final"] <= 1.0
    assert set(json.loads((workdir / "final.json").read_text())["tasks"]) == {task["id"] for task in held}
    assert not {str(task["setup"]) for task in held} & {str(task["setup"]) for task in pool}
    assert not {task["query"] for task in held} & {task["query"] for task in pool}
    assert 0.0 < summary["evaluation_similarity_measured"] < 1.0
    assert summary["evaluation_similarity"] >= 0.7 or summary["evaluation_similarity_measured"] > 0.95

    evaluate = ["-m", "experiments.evaluate", *train[2:], f"--checkpoint={workdir}"]
    again = run(*(one for one in evaluate if "--config.steps" not in one), "--config.environment.lists=60")
    assert again.returncode == 0, again.stdout + again.stderr
    (result,) = (workdir / "evaluations").glob("*/result.json")
    assert json.loads(result.read_text())["splits"]["eval"]["success"] == pytest.approx(summary["final"])
