"""Runs of the desk that take seconds, by the command itself in processes of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from commands import Command, Commands
from patience import patience

SMALL = (
    "steps=6", "evolve_every=2", "checkpoint_every=2", "batch_size=4", "group_size=4", "initial_tasks=12",
    "model.shape.hidden_size=64", "model.shape.intermediate_size=128", "model.shape.num_hidden_layers=2",
    "warm_start.steps=200", "warm_start.check_every=100", "warm_start.demonstrations=2000",
    "warm_start.lengthen=1000", "warm_start.noise_low=0.1", "warm_start.noise_high=0.3",
    "warm_start.check_tasks=40", "warm_start.learning_rate=0.005",
    "evaluation.tasks=24", "evaluation.dev_tasks=40", "evaluation.every=3", "engine.slots=16", "limits.concurrency=16",
    "learner.updates_per_batch=1", "synthesis.contexts=6", "synthesis.budget=6", "same_bits=True",
    "signal_settings.rare.minimum=16", "signal_settings.rare.percent=20.0",
)  # fmt: skip


class Runs:
    """Desks at SMALL with one cache, so that they warm-start and compile once."""

    def __init__(self, commands: Commands, cache: Path):
        self.commands = commands
        self.environment = {**os.environ, "COJAX_CACHE": str(cache), "PYTHONUNBUFFERED": "1"}

    def __call__(self, workdir: Path, *settings: str) -> subprocess.CompletedProcess[str]:
        return self.start(workdir, *settings).wait(timeout=300)

    def command(self, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.commands.run(module, *arguments, environment=self.environment)

    def start(self, workdir: Path, *settings: str) -> Command:
        return self.commands.start("experiments.run", *flags(workdir, *settings), environment=self.environment)

    def continued(self, workdir: Path, *settings: str) -> subprocess.CompletedProcess[str]:
        """The command that needs no experiment: the folder holds the configuration."""
        return self.command("experiments.run", f"--workdir={workdir}", *(f"--config.{setting}" for setting in settings))

    def signalled(
        self, workdir: Path, moment: Callable[[], bool], signal_number: int, *settings: str
    ) -> tuple[int, str]:
        """Starts a run and sends the signal at the moment; exit status and what was printed."""
        command = self.start(workdir, *settings)
        deadline = time.monotonic() + patience(200)
        while not moment():
            assert command.poll() is None, command.printed()
            assert time.monotonic() < deadline, "the moment never came"
            time.sleep(0.0005)
        command.send_signal(signal_number)
        result = command.wait(timeout=120)
        return result.returncode, result.stdout


def flags(workdir: Path, *settings: str) -> list[str]:
    options = (f"--config.{setting}" for setting in (*SMALL, f"workdir={workdir}", *settings))
    return ["--config=experiments/desk.py", *options]


def before_its_last_checkpoint(run: Path, workdir: Path) -> Path:
    """A copy of a finished run, as one is that was killed while it saved its last checkpoint; returns `workdir`."""
    shutil.copytree(run, workdir)
    (workdir / "summary.json").unlink()
    shutil.rmtree(max((workdir / "checkpoints").iterdir(), key=lambda path: int(path.name)))
    return workdir
