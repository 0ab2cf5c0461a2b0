"""Rounds of co-evolving agents on the public benchmarks, by the main command with the tiny policy."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from patience import patience

pytestmark = pytest.mark.nightly
ROOT = Path(__file__).parents[2]
FEW = ("evaluation.tasks=4", "evaluation.dev_tasks=4", "evaluation.every=0", "warm_start.steps=20")
WORLDS = {
    "appworld": (
        "data=tiny",
        "warm_start.batch_size=2",
        "initial_tasks=4",
        "batch_size=2",
        "group_size=4",
        "evaluation.challenge_tasks=2",
    ),
    "bfcl": ("initial_tasks=8", "batch_size=4", "group_size=4"),
    "scienceworld": ("initial_tasks=8", "batch_size=4", "group_size=4"),
}
# A round: both agents' episodes.
EPISODES = {"appworld": 8, "bfcl": 16, "scienceworld": 16}


@pytest.mark.parametrize("world", WORLDS)
def test_two_rounds_of_both_agents_and_a_third_after_a_stop(world: str, tmp_path: Path) -> None:
    workdir = tmp_path / "run"
    run(world, workdir, steps=2)
    summary = json.loads((workdir / "summary.json").read_text())
    assert (summary["steps"], summary["tasks_final"]) == (2, summary["tasks_initial"])
    assert summary["outcomes"].get("environment_error", 0) == 0
    assert "hard_negatives" in summary
    said = run(world, workdir, steps=3)
    assert "resumed at step 2" in said
    records = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [1, 2, 3]
    for record in records:
        assert sum(record["outcomes"].values()) == EPISODES[world]
        assert {"target", "second"} <= set(record["preference"])
    assert sum(record["preference"]["examples"]["own"] for record in records) > 0
    assert sum(record["updates"] for record in records) > 0
    stored = sorted((workdir / "episodes").glob("*.jsonl.gz"))
    assert len(stored) == 3
    for path in stored:
        with gzip.open(path, "rt") as file:
            agents = [json.loads(line).get("agent") for line in file]
        assert agents.count("second") * 2 == len(agents) == EPISODES[world]
    assert (workdir / "report.html").exists()


def run(world: str, workdir: Path, steps: int) -> str:
    """What the run says on its console, once it has made so many steps."""
    settings = ("policy=tiny", f"steps={steps}", "method=coevolving", *FEW, *WORLDS[world], f"workdir={workdir}")
    command = [
        sys.executable, "-m", "experiments.run", f"--config=experiments/{world}.py",
        *(f"--config.{setting}" for setting in settings),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=patience(3_600), check=False)
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
    return done.stdout + done.stderr
