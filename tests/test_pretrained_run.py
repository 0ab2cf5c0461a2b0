"""The preset of `make demo-lm`, made small, and imitation from its start: a task set that grows; both resume."""

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
    "evolve=trajectory", "batch_size=4", "group_size=2", "initial_tasks=6", "checkpoint_every=1", "warm_start.steps=2",
    "warm_start.batch_size=4", "warm_start.demonstrations=8", "warm_start.check_every=2", "warm_start.check_tasks=1",
    "engine.slots=8", "engine.max_length=256", "learner.row_length=256", "limits.concurrency=8", "limits.max_turns=3",
    "sampling.max_tokens=32", "preference.batch_size=4", "evaluation.tasks=4", "evaluation.dev_tasks=1",
    "synthesis.contexts=4", "synthesis.budget=4",
)  # fmt: skip
IMITATION = ("method=rft", "preference.tasks=growing", "episodes=0", "dynamic_sampling=0", "learner.lora.rank=0")


def run(folder: Path, workdir: Path, steps: int, *settings: str) -> dict:
    given = (*SMALL, *settings, f"model.path={folder}", f"steps={steps}", f"workdir={workdir}")
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model_folder = tmp_path_factory.mktemp("smollm2") / "model"
    assert main(["smollm2", str(model_folder)]) == 0
    return model_folder


def test_rounds_imitate_solutions_of_a_set_that_grows(folder: Path, tmp_path: Path) -> None:
    run(folder, tmp_path / "run", 1, *IMITATION)
    summary = run(folder, tmp_path / "run", 2, *IMITATION)
    steps = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == [1, 2]
    assert all(step["tokens_trained"] > 0 for step in steps)
    assert steps[1]["loss"] != steps[0]["loss"]
    assert summary["tasks_final"] > summary["tasks_initial"] == 6
    assert summary["origin"]["shown"] == 7  # the eighth is longer than a row
    assert {"zero_shot", "final", "hard_negatives"} <= set(summary)
    assert (tmp_path / "run/report.html").exists()


def test_steps_of_the_preset_look_for_live_groups_in_a_set_that_grows(folder: Path, tmp_path: Path) -> None:
    """No group is live, because so few demonstrations teach no success: each step plays six groups of two."""
    run(folder, tmp_path / "run", 1, "dynamic_sampling=6")
    summary = run(folder, tmp_path / "run", 2, "dynamic_sampling=6")
    steps = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [sum(step["outcomes"].values()) for step in steps] == [12, 12]
    assert summary["tasks_final"] > summary["tasks_initial"] == 6
    assert summary["origin"]["shown"] == 7
    assert (tmp_path / "run/report.html").exists()
