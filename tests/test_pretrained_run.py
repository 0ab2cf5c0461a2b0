"""The preset of `make demo-lm`, made small: rounds of a pretrained model on a task set that grows; it also resumes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import patience

from cojax.convert.command import main

pytestmark = [pytest.mark.real, pytest.mark.nightly]
ROOT = Path(__file__).parents[1]
# So few demonstrations teach no success, hence no signal: trajectories guide the explorer.
SMALL = (
    "evolve=trajectory", "batch_size=4", "initial_tasks=6", "checkpoint_every=1", "warm_start.steps=2",
    "warm_start.batch_size=4", "warm_start.demonstrations=8", "warm_start.check_every=2", "warm_start.check_tasks=1",
    "engine.slots=8", "engine.max_length=256", "learner.row_length=256", "limits.concurrency=8", "limits.max_turns=3",
    "sampling.max_tokens=32", "preference.batch_size=4", "evaluation.tasks=4", "evaluation.dev_tasks=1",
    "synthesis.contexts=4", "synthesis.budget=4",
)  # fmt: skip


def run(folder: Path, workdir: Path, steps: int) -> dict:
    given = (*SMALL, f"model.path={folder}", f"steps={steps}", f"workdir={workdir}")
    done = subprocess.run(
        [sys.executable, "-m", "experiments.run", "--config=experiments/desk_smollm2.py",
         *(f"--config.{one}" for one in given)],
        cwd=ROOT,
        # The wheel is in the cache of all tests, the warm start in one of its own.
        env={**os.environ, "COJAX_CACHE": str(workdir.parent / "cache")},
        capture_output=True,
        text=True,
        timeout=patience(1_800),
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((workdir / "summary.json").read_text())


def test_rounds_of_the_preset_imitate_solutions_of_a_set_that_grows(tmp_path: Path) -> None:
    assert main(["smollm2", str(tmp_path / "model")]) == 0
    run(tmp_path / "model", tmp_path / "run", 1)
    summary = run(tmp_path / "model", tmp_path / "run", 2)
    steps = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == [1, 2]
    assert all(step["tokens_trained"] > 0 for step in steps)
    assert steps[1]["loss"] != steps[0]["loss"]
    assert summary["tasks_final"] > summary["tasks_initial"] == 6
    assert summary["origin"]["shown"] == 7  # the eighth is longer than a row
    assert {"zero_shot", "final", "hard_negatives"} <= set(summary)
    assert (tmp_path / "run/report.html").exists()
