"""How a process finds the others: what launchers set only in part, others that do not come, a signal meanwhile."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

from commands import Command, Commands
from patience import patience
from several_processes import free_port

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
from cojax.distributed.start import DistributedError, connect_processes
from cojax.settings.tree import DistributedSettings
for names, coordinator in json.loads(sys.argv[1]):
    os.environ.update(names)
    try:
        connect_processes(DistributedSettings(coordinator=coordinator))
    except DistributedError as error:
        print(json.dumps(str(error)))
    for name in names:
        del os.environ[name]
"""
ALONE = """
import os, signal, sys
from cojax.distributed import start as module
from cojax.settings.tree import DistributedSettings
os.dup2(1, 2)
process, port, startup, module._REPORT_DELAY_S = int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(5))
print("begins", flush=True)
module.connect_processes(DistributedSettings(True, f"127.0.0.1:{port}", 2, process, startup))
"""


def environment() -> dict[str, str]:
    known = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "OMPI_", "JAX_"))}
    return {**known, "JAX_PLATFORMS": "cpu"}


def begun(commands: Commands, folder: Path, program: str, *arguments: str) -> Command:
    (folder / "program.py").write_text(program)
    return commands.start("program", *arguments, environment=environment(), folder=folder)


def test_what_a_launcher_set_in_part_is_named_and_all_places_are_listed(commands, tmp_path):
    given = json.dumps([[names, coordinator] for names, coordinator, _ in HALF_SET])
    done = begun(commands, tmp_path, EACH, given).wait(200)
    assert done.returncode == 0, done.stderr
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(said) == len(HALF_SET)
    for (_, coordinator, expected), line in zip(HALF_SET, said, strict=True):
        assert expected in line
        assert ("Slurm (SLURM_JOB_ID" in line) == (not coordinator)
        assert "--config.distributed.process" in line or not coordinator


def test_where_the_others_do_not_come_one_line_says_it(commands, tmp_path):
    """To process 0 and to process 1, whose other never starts."""
    waiting = [begun(commands, tmp_path, ALONE, str(process), str(free_port()), "0.5", "5") for process in range(2)]
    for waits in waiting:
        done = waits.wait(200)
        assert done.returncode == 1
        _, waits_for, error = done.stdout.splitlines()
        assert waits_for.endswith("for distributed.startup=0.5 s at most")
        assert error.startswith("error: the processes do not find each other at 127.0.0.1:")


def test_a_signal_ends_the_wait(commands, tmp_path):
    waits = begun(commands, tmp_path, ALONE, "1", str(free_port()), "200", "0.1")
    until = time.monotonic() + patience(30)
    while "waiting for the other processes at" not in waits.printed():
        assert time.monotonic() < until
        time.sleep(0.01)
    waits.send_signal(signal.SIGTERM)
    assert waits.wait(10).returncode == -signal.SIGTERM
