"""Settings by which a policy is made to fit, through the command itself: dtypes, adapters, a mesh, the rehearsal."""

import json
import math
import os
import subprocess
from pathlib import Path

import compiling
import jax
import orbax.checkpoint as ocp
import pytest
from commands import Commands

SMALL = (
    "steps=2", "evolve=none", "checkpoint_every=1", "batch_size=4", "group_size=4", "initial_tasks=8",
    "model.shape.hidden_size=64", "model.shape.intermediate_size=128", "model.shape.num_hidden_layers=2",
    "warm_start.steps=0", "evaluation.tasks=4", "evaluation.dev_tasks=4", "evaluation.every=0", "engine.slots=16",
    "limits.concurrency=16", "limits.max_turns=2",
)  # fmt: skip


def run(
    commands: Commands, folder: Path, *settings: str, devices: int = 1, flags: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COJAX_CACHE": str(folder / "cache"), "XLA_FLAGS": compiling.flags(devices)}
    own = (f"--config.{setting}" for setting in (*SMALL, f"workdir={folder / 'run'}", *settings))
    return commands.run("experiments.run", "--config=experiments/desk.py", *own, *flags, environment=environment)


def test_a_run_that_cannot_fit_stops_before_its_first_step(commands, tmp_path):
    done = run(commands, tmp_path, "learner.micro_rows=8192", "learner.row_length=65536")
    assert done.returncode == 1
    assert "error: the update needs " in done.stdout
    assert "lower learner.micro_rows (8192) or learner.row_length (65536), set model.dtype=bfloat16" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert "zero-shot" not in done.stdout
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.nightly
def test_the_preflight_rehearses_too(commands, tmp_path):
    done = run(commands, tmp_path, "learner.micro_rows=8192", "learner.row_length=65536", flags=("--check",))
    assert done.returncode == 1
    assert "failed  memory: the update needs " in done.stdout
    done = run(commands, tmp_path, "learner.remat=auto", flags=("--check",))
    assert done.returncode == 0, done.stdout
    assert "ok      memory: an update of 4 × 256 tokens at a time fits, remat none" in done.stdout


@pytest.mark.nightly
@pytest.mark.parametrize("rank", [0, 4])
def test_bfloat16_on_eight_devices_goes_on_after_a_stop(commands, tmp_path, rank):
    """With and without adapters, which are all that a checkpoint then holds."""
    settings = (
        "model.dtype=bfloat16", "mesh.fsdp=4", "mesh.data=-1", "learner.micro_rows=8", f"learner.lora.rank={rank}",
        "learner.loss_settings.kl_coefficient=0.01", "optimizer.moments_dtype=bfloat16", "learner.remat=dots",
    )  # fmt: skip
    for steps in (1, 2):
        done = run(commands, tmp_path, *settings, f"steps={steps}", devices=8)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "resumed at step 1" in done.stdout
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [1, 2]
    # A reference is there, so that groups without variance are trained on as well.
    assert [record["updates"] for record in records] == [1.0, 1.0]
    assert records[0]["kl"] == 0.0
    assert all(record["logprob_mismatch"] < 0.05 for record in records)
    # Counted in numbers: what Orbax keeps on disk of the same arrays differs from run to run.
    arrays = ocp.PyTreeCheckpointer().metadata(tmp_path / "run/checkpoints/2/arrays").item_metadata.tree
    saved = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(arrays))
    assert saved < 30_000 if rank else saved > 300_000


@pytest.mark.real
@pytest.mark.parametrize(
    "settings", [("mesh.tensor=2", "engine.lanes=1"), ("mesh.data=2", "staleness=1")], ids=["tensor", "data"]
)
def test_the_learners_mesh_samples_too(commands, tmp_path, settings):
    """With staleness 1 sampling and update run at once, where every replica is one device."""
    done = run(commands, tmp_path, *settings, "learner.loss_settings.kl_coefficient=0.01", devices=2)
    assert done.returncode == 0, done.stdout + done.stderr
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    # A reference is there, so that groups without variance are trained on as well.
    assert [(record["step"], record["updates"]) for record in records] == [(1, 1.0), (2, 1.0)]
    assert records[0]["logprob_mismatch"] < 1e-5


def test_what_could_hang_is_refused_before_anything_is_built(commands, tmp_path):
    done = run(commands, tmp_path, "mesh.tensor=2", "engine.lanes=1", "staleness=1", devices=2)
    assert done.returncode == 1
    assert "error: staleness is 1, but engine.name=local samples on 2 devices together" in done.stdout
    assert not (tmp_path / "run").exists()
