"""How a process finds the others: what launchers set only in part, others that do not come, a signal meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from patience import patience
from several_processes import ROOT, free_port

SLURM = {
    "SLURM_JOB_ID": "5",
    "SLURM_STEP_NODELIST": "here",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "7",
    "SLURM_LOCALID": "0",
}
OPEN_MPI = {"OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://127.0.0.1:34911"}
# What is set, the coordinator that is given, and what the error says.
HALF_SET = (
    ({}, "", "none was found"),
    ({"SLURM_JOB_ID": "5", "SLURM_PROCID": "0"}, "",
     "SLURM_JOB_ID is set, but SLURM_STEP_NODELIST, SLURM_NTASKS, SLURM_LOCALID not: start the command by srun"),
    (SLURM, "", "Got process_id=7, num_processes=2"),
    ({**SLURM, "SLURM_NTASKS": "two"}, "", "'two'"),
    (OPEN_MPI, "", "OMPI_COMM_WORLD_SIZE is not set"),
    (OPEN_MPI, "127.0.0.1:1", "OMPI_COMM_WORLD_SIZE is not set"),
    ({**SLURM, "SLURM_PROCID": "0", "JAX_COORDINATOR_ADDRESS": "here"}, "",
     "JAX_COORDINATOR_ADDRESS is 'here', expected HOST:PORT"),
)  # fmt: skip
EACH = """
import json, os, sys
from cojax.distributed.start import DistributedError, start
from cojax.settings.tree import DistributedSettings
for names, coordinator in json.loads(sys.argv[1]):
    os.environ.update(names)
    try:
        start(DistributedSettings(coordinator=coordinator))
    except DistributedError as error:
        print(json.dumps(str(error)))
    for name in names:
        del os.environ[name]
"""
ALONE = """
import signal, sys
from cojax.distributed.start import start
from cojax.settings.tree import DistributedSettings
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(5))
print("begins", flush=True)
start(DistributedSettings(True, f"127.0.0.1:{sys.argv[2]}", 2, int(sys.argv[1]), float(sys.argv[3])))
"""


def environment() -> dict[str, str]:
    known = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "OMPI_", "JAX_"))}
    return {**known, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}


def begun(process: int, startup: float) -> subprocess.Popen[str]:
    """One process of two, whose other never starts."""
    command = [sys.executable, "-c", ALONE, str(process), str(free_port()), str(startup)]
    return subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )  # fmt: skip


def test_what_a_launcher_set_in_part_is_named_and_all_places_are_listed():
    given = json.dumps([[names, coordinator] for names, coordinator, _ in HALF_SET])
    done = subprocess.run(
        [sys.executable, "-c", EACH, given],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=patience(200),
        check=True,
    )
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(said) == len(HALF_SET)
    for (_, coordinator, expected), line in zip(HALF_SET, said, strict=True):
        assert expected in line
        assert ("Slurm (SLURM_JOB_ID" in line) == (not coordinator)
        assert "--config.distributed.process" in line or not coordinator


@pytest.mark.parametrize("process", [0, 1])
def test_where_the_others_do_not_come_one_line_says_it(process):
    waits = begun(process, 1.0)
    _, said = waits.communicate(timeout=patience(200))
    assert waits.returncode == 1
    waiting, error = said.splitlines()
    assert waiting.endswith("for distributed.startup=1 s at most")
    assert error.startswith("error: the processes do not find each other at 127.0.0.1:")


def test_a_signal_ends_the_wait():
    waits = begun(1, 200.0)
    assert waits.stdout is not None
    assert waits.stderr is not None
    assert waits.stdout.readline() == "begins\n"
    assert waits.stderr.readline().startswith("waiting for the other processes at")
    began = time.monotonic()
    waits.send_signal(signal.SIGTERM)
    assert waits.wait(patience(30)) == -signal.SIGTERM
    assert time.monotonic() - began < patience(10)
    waits.communicate()
