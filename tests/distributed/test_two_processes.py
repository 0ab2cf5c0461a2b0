"""Two real processes of two devices each: commands, arrays, checkpoints, and what the other does when one is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from patience import patience
from several_processes import ROOT, free_port
from small_runs import tree

from cojax.rollout.export import restore_item

PROGRAM = Path(__file__).parent / "two_program.py"


def run(folder: Path, mode: str) -> list[tuple[int, str, str]]:
    """Exit status, output and errors of both processes."""
    environment = {
        **os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    port = str(free_port())
    started = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(number), port, str(folder), mode],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number in range(2)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=patience(240)) for process in started]
    finally:
        for process in started:
            process.kill()
    return [(process.returncode, *both) for process, both in zip(started, said, strict=True)]


def test_both_compute_save_restore_and_end_together(tmp_path):
    first, second = run(tmp_path / "run", "work")
    assert (first[0], second[0]) == (0, 0), first[2] + second[2]
    found = json.loads(first[1].splitlines()[-1])
    assert json.loads(second[1].splitlines()[-1]) == {"status": 0}
    # The sum of 0 … 11 is 66.
    assert found["once"] == [[66.0, 68.0, 70.0], [72.0, 74.0, 76.0], [78.0, 80.0, 82.0], [84.0, 86.0, 88.0]]
    assert found["twice"][0] == [2 * 66.0 + 924.0, 2 * 68.0 + 924.0, 2 * 70.0 + 924.0]
    assert found["step"] == 2


def test_what_both_save_for_servers_is_restored_to_the_bits_that_process_0_would_gather(tmp_path):
    first, second = run(tmp_path / "run", "weights")
    assert (first[0], second[0]) == (0, 0), first[2] + second[2]
    for dtype in ("float32", "bfloat16", "float16"):
        written = {path.name for path in (tmp_path / "run/saved" / dtype / "params").glob("ocdbt.process_*")}
        assert written == {"ocdbt.process_0", "ocdbt.process_1"}
        restore_item(tmp_path / "run/saved" / dtype, tmp_path / "run/restored" / dtype, "x")
        one, other = (tree(tmp_path / "run" / name / dtype) for name in ("gathered", "restored"))
        assert one == other
        assert set(one) == {"config.json", "model.safetensors", "served.json"}
    refused = json.loads(first[1].splitlines()[-1])["refused"]
    assert refused == "final_norm/scale is not finite in float16; training has diverged, nothing was written"
    assert not (tmp_path / "run/saved/large").exists()


def test_a_killed_follower_is_named_by_process_0(tmp_path):
    first, second = run(tmp_path / "run", "follower dies")
    assert second[0] == -signal.SIGKILL
    assert first[0] == 7, first[2]
    assert "process 1 is gone: its connection ended" in first[2]


@pytest.mark.real  # JAX may be first to end the process
def test_the_follower_of_a_killed_process_0_ends(tmp_path):
    first, second = run(tmp_path / "run", "leader dies")
    assert first[0] == -signal.SIGKILL
    assert second[0] in (7, -signal.SIGABRT), second[2]
    assert "process 0 is gone" in second[2] or "JAX distributed service detected fatal errors" in second[2]
