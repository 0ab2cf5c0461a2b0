"""The examples of docs/extending.md, by the command that stands there, in a folder outside of the checkout."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from patience import patience

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples" / "extend"


def documented() -> list[str]:
    """The arguments of the command in the docs."""
    text = (ROOT / "docs" / "extending.md").read_text()
    (command,) = re.findall(r"^cojax run (.*?[^\\])\n", text, re.DOTALL | re.MULTILINE)
    return shlex.split(command.replace("\\\n", " "))


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("mine/*.py")), ids=lambda path: path.stem)
def test_an_example_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 30


@pytest.mark.real
def test_the_examples_run_evolve_resume_and_stand_in_the_report(tmp_path: Path) -> None:
    folder = tmp_path / "extend"
    shutil.copytree(EXAMPLES, folder, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COJAX_CACHE": str(tmp_path / "cache")}

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "experiments.run", *documented(), *more],
            cwd=folder, env=environment, capture_output=True, text=True, timeout=patience(900), check=False,
        )  # fmt: skip

    for steps in (6, 12):
        done = run(f"--config.steps={steps}")
        assert done.returncode == 0, done.stdout + done.stderr
    assert "resumed at step 6" in done.stdout
    workdir = folder / "runs" / "small"

    code = json.loads((workdir / "config.json").read_text())["code"]
    assert code["learner.loss"]["path"] == "mine.loss:careful"
    assert code["learner.loss"]["settings"] == {"clip": 0.2, "caution": 0.25}
    assert code["signals.Fumble"]["settings"] == {"least": 2}
    names = ("learner.loss", "learner.advantage", "learner.weighting", "curriculum", "signals.Fumble")
    assert all(code[name]["path"].startswith("mine.") and len(code[name]["hash"]) == 64 for name in names)

    metrics = lines(workdir / "metrics.jsonl")
    assert len(metrics) == 12
    assert 0.2 <= sum(row["success"] for row in metrics) / 12 <= 0.8
    assert sum(row["live_groups"] > 0 for row in metrics) >= 10
    assert sum(row["signals"]["fumble"] for row in metrics) > 0
    assert [row["evolution"]["step"] for row in metrics if "evolution" in row] == [6, 12]
    assert sum(row["updates"] for row in metrics) > 0
    assert "fumble" in {line["origin"] for line in lines(workdir / "expeditions.jsonl") if line["step"]}
    assert json.loads((workdir / "summary.json").read_text())["signals"]["fumble"] > 0
    page = (workdir / "report.html").read_text()
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])
    assert data["kinds"]["fumble"] == "#228833"
    assert any(row["origin"] == "fumble" and row["signals"] > 0 for row in data["conversion"]["funnel"])

    with (folder / "mine" / "loss.py").open("a") as file:
        file.write("# another file\n")
    refused = run()
    assert refused.returncode == 1
    assert "holds a run with other code: learner.loss (mine.loss:careful) has changed since" in refused.stdout
    accepted = run("--config.accept_changed_code=True")
    assert accepted.returncode == 0, accepted.stdout + accepted.stderr
