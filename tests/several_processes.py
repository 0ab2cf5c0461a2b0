"""The main command in several processes on this host, each with two virtual CPU devices."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import compiling
from patience import patience
from steady_engine import SUMS

ROOT = Path(__file__).parents[1]
SETTINGS = (
    "steps=6", "evolve_every=3", "checkpoint_every=2", "batch_size=4", "group_size=4", "initial_tasks=12",
    "model.shape.hidden_size=16", "model.shape.intermediate_size=32", "model.shape.num_hidden_layers=2",
    "warm_start.steps=0", "evaluation.tasks=4", "evaluation.every=0", "evaluation.dev_tasks=1",
    "limits.concurrency=16", "limits.max_turns=3", "synthesis.contexts=4", "synthesis.budget=4",
    "signal_settings.rare.minimum=16", "signal_settings.rare.percent=20.0", "learner.advantage=steady_engine:by_length",
    "learner.loss_settings.kl_coefficient=0.1", "mismatch_alarm=0", "engine=steady_engine:steady", "mesh.fsdp=-1",
)  # fmt: skip
_PATIENCE = 600.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Processes:
    """The processes of one start of a run; `one` is the only one where there is one."""

    def __init__(
        self,
        workdir: Path,
        cache: Path,
        count: int,
        *settings: str,
        devices: int = 2,
        own: Sequence = (),
        check: bool = False,
    ):
        """`own` are further settings of process 0, process 1, …; with `check` it is a preflight."""
        self.count = count
        environment = {
            **os.environ, "COJAX_CACHE": str(cache), "JAX_PLATFORMS": "cpu", "PYTHONUNBUFFERED": "1",
            "XLA_FLAGS": compiling.flags(devices),
            "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", SUMS: f"{workdir}.sums",
        }  # fmt: skip
        self.outputs = [Path(f"{workdir}.{number}.txt") for number in range(count)]
        port, self.processes = free_port(), []
        for process_index, output in enumerate(self.outputs):
            given = [*SETTINGS, f"workdir={workdir}", *settings]
            if count > 1:
                given += [
                    f"distributed.coordinator=127.0.0.1:{port}", f"distributed.processes={count}",
                    f"distributed.process={process_index}", *(own[process_index] if own else ()),
                ]  # fmt: skip
            with open(output, "a") as file:
                self.processes.append(
                    subprocess.Popen(
                        [
                            sys.executable, "-m", "experiments.run", "--config=experiments/desk.py",
                            *(f"--config.{setting}" for setting in given), *(("--check",) if check else ()),
                        ],
                        cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT,
                    )
                )  # fmt: skip

    def wait(self, timeout: float = _PATIENCE) -> list[int]:
        """The exit statuses, once all have ended. Kills those that have not by then, and fails."""
        deadline = time.monotonic() + patience(timeout)
        try:
            return [process.wait(max(0.1, deadline - time.monotonic())) for process in self.processes]
        finally:
            for process in self.processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()

    def until(self, moment: Callable[[], bool]) -> None:
        """Waits for the moment, which comes before the run ends."""
        deadline = time.monotonic() + patience(_PATIENCE)
        while not moment():
            assert all(process.poll() is None for process in self.processes), self.printed()
            assert time.monotonic() < deadline, "the moment never came"
            time.sleep(0.001)

    def signal(self, process: int, signal_number: int) -> None:
        self.processes[process].send_signal(signal_number)

    def kill(self, process: int) -> list[int]:
        """Kills one, and waits until the others have ended by themselves."""
        self.signal(process, signal.SIGKILL)
        return self.wait(timeout=120)

    def printed(self) -> list[str]:
        return [output.read_text() for output in self.outputs]
