"""Two real processes of two devices each: commands, arrays, checkpoints, and what the other does when one is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import compiling
import pytest
from commands import Commands
from several_processes import free_port
from small_runs import tree

from cojax.rollout.export import restore_item


def run(commands: Commands, folder: Path, mode: str) -> list[subprocess.CompletedProcess[str]]:
    """What both processes said and returned."""
    environment = {**os.environ, "XLA_FLAGS": compiling.flags(2)}
    port = str(free_port())
    started = [
        commands.start(
            "two_program", str(number), port, str(folder), mode, environment=environment, folder=Path(__file__).parent
        )
        for number in range(2)
    ]
    return [command.wait(240) for command in started]


@pytest.fixture(scope="module")
def worked(commands, tmp_path_factory) -> tuple[Path, list[str], list[str]]:
    """The folder of both, and the lines that each of them printed."""
    folder = tmp_path_factory.mktemp("two") / "run"
    first, second = run(commands, folder, "work")
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    return folder, first.stdout.splitlines(), second.stdout.splitlines()


def test_both_compute_save_restore_and_end_together(worked):
    _, first, second = worked
    found = json.loads(first[-1])
    assert json.loads(second[-1]) == {"status": 0}
    # The sum of 0 … 11 is 66.
    assert found["once"] == [[66.0, 68.0, 70.0], [72.0, 74.0, 76.0], [78.0, 80.0, 82.0], [84.0, 86.0, 88.0]]
    assert found["twice"][0] == [2 * 66.0 + 924.0, 2 * 68.0 + 924.0, 2 * 70.0 + 924.0]
    assert found["step"] == 2


def test_what_both_save_for_servers_is_restored_to_the_bits_that_process_0_would_gather(worked, tmp_path):
    folder, first, _ = worked
    for dtype in ("float32", "bfloat16", "float16"):
        written = {path.name for path in (folder / "saved" / dtype / "params").glob("ocdbt.process_*")}
        assert written == {"ocdbt.process_0", "ocdbt.process_1"}
        restore_item(folder / "saved" / dtype, tmp_path / dtype, "x")
        one, other = tree(folder / "gathered" / dtype), tree(tmp_path / dtype)
        assert one == other
        assert set(one) == {"config.json", "model.safetensors", "served.json"}
    refused = json.loads(first[-1])["refused"]
    assert refused == "final_norm/scale is not finite in float16; training has diverged, nothing was written"
    assert not (folder / "saved/large").exists()


def test_a_killed_follower_is_named_by_process_0(commands, tmp_path):
    first, second = run(commands, tmp_path / "run", "follower dies")
    assert second.returncode == -signal.SIGKILL
    assert first.returncode == 7, first.stderr
    assert "process 1 is gone: its connection ended" in first.stderr


@pytest.mark.real  # JAX may be first to end the process
def test_the_follower_of_a_killed_process_0_ends(commands, tmp_path):
    first, second = run(commands, tmp_path / "run", "leader dies")
    assert first.returncode == -signal.SIGKILL
    assert second.returncode in (7, -signal.SIGABRT), second.stderr
    assert "process 0 is gone" in second.stderr or "JAX distributed service detected fatal errors" in second.stderr
