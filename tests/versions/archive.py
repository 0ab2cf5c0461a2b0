"""Makes the run directory of this version that test_versions.py goes on with: python tests/versions/archive.py."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import cojax

FOLDER = Path(__file__).parent
_SETTINGS = (
    "steps=2", "evolve_every=2", "checkpoint_every=2", "batch_size=2", "group_size=2", "initial_tasks=8",
    "model.shape.hidden_size=16", "model.shape.intermediate_size=16", "model.shape.num_hidden_layers=1",
    "warm_start.steps=20", "warm_start.check_every=20", "warm_start.demonstrations=100", "warm_start.check_tasks=4",
    "evaluation.tasks=8", "evaluation.dev_tasks=8", "evaluation.every=2", "engine.slots=4", "limits.concurrency=4",
    "learner.updates_per_batch=1", "synthesis.contexts=2", "synthesis.budget=2",
)  # fmt: skip
_LEFT_OUT = ("report.html", "tensorboard")  # made anew from the rest


def archive() -> Path:
    """Two steps of a small desk, packed."""
    target = FOLDER / f"{cojax.__version__}.tar.xz"
    with tempfile.TemporaryDirectory(prefix="cojax-") as folder:
        run = Path(folder) / cojax.__version__
        flags = [f"--config.{setting}" for setting in (*_SETTINGS, f"workdir={run}")]
        subprocess.run([sys.executable, "-m", "experiments.run", "--config=experiments/desk.py", *flags], check=True)
        with tarfile.open(target, "w:xz") as packed:
            packed.add(run, run.name, filter=lambda file: None if Path(file.name).name in _LEFT_OUT else file)
    return target


if __name__ == "__main__":
    print(archive())
