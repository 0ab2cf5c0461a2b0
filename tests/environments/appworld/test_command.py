"""The main command on the tiny data: it trains, evolves, is killed, and goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from patience import patience

from environments.appworld import data

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[3]
SMALL = (
    "policy=tiny", "data=tiny", "steps=2", "initial_tasks=4", "batch_size=2", "group_size=2", "explorer.runs=2",
    "explorer.steps=4", "synthesis.contexts=2", "synthesis.budget=1", "evolve=trajectory", "warm_start.steps=20",
    "warm_start.check_every=20", "warm_start.batch_size=2", "warm_start.check_tasks=2", "evaluation.tasks=2",
    "evaluation.dev_tasks=2", "evaluation.every=0", "evaluation.challenge_tasks=3", "limits.max_turns=3",
    "limits.concurrency=4", "engine.slots=4", "engine.lanes=1",
)  # fmt: skip


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_the_main_command_runs_and_goes_on_after_a_kill(tmp_path: Path, killed: bool) -> None:
    workdir = tmp_path / "run"
    flags = [f"--config.{setting}" for setting in (*SMALL, f"workdir={workdir}")]
    command = [sys.executable, "-m", "experiments.run", "--config=experiments/appworld.py", *flags]
    if killed:
        _kill_after_a_step(command, workdir)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=patience(600), check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("resumed at step 1" in done.stdout) == killed
    records, tasks = lines(workdir / "metrics.jsonl"), lines(workdir / "tasks.jsonl")
    assert [record["step"] for record in records] == [1, 2]
    assert all(set(record["outcomes"]) <= {"finished", "truncated"} for record in records)
    assert all(record["evolution"]["expeditions"] >= 1 for record in records)
    assert len({task["id"] for task in tasks}) == len(tasks) >= 4
    # New tasks start from scenarios of the training split alone, and each was proved by its own execution.
    assert {task["setup"]["scenario"] for task in tasks} <= set(data.read_task_ids("tiny", "train"))
    assert all(task["solution"] and task["lineage"]["verdict"] == "accepted" for task in tasks)
    summary = json.loads((workdir / "summary.json").read_text())
    assert (summary["steps"], summary["tasks_initial"]) == (2, 4)
    assert summary["tasks_final"] == len(tasks)


def _kill_after_a_step(command: list[str], workdir: Path) -> None:
    first = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    deadline = time.monotonic() + patience(600)
    while not (workdir / "checkpoints/1/host.json").exists():
        assert first.poll() is None, first.communicate()[0]
        assert time.monotonic() < deadline, "no step was finished"
        time.sleep(0.05)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate(timeout=patience(30))
