"""How servers are launched, and that nothing of them outlives whoever launched them."""

import contextlib
import dataclasses
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from patience import patience

from cojax.rollout.sglang.server import LaunchSettings, find_free_port

# A guard that gives the command less time than usual to end.
GUARD = """
import sys
from cojax.host import processes
processes._GUARD_GRACE_S = 1.0
processes.run_guarded(sys.argv[1:])
"""
# A command with a child of its own, neither of which SIGTERM ends; prints both process ids, and what it was told.
FAMILY = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, lambda *_: print("told to end", flush=True))
deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(300)"
child = subprocess.Popen([sys.executable, "-c", deaf])
print(os.getpid(), child.pid, flush=True)
time.sleep({seconds})
"""
# Starts a guard as a trainer does, says its process id, and waits to be killed.
PARENT = """
import os, signal, subprocess, sys, time
# Whoever starts the tests in the background may have them ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
guard = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid()), *sys.argv[2:]], start_new_session=True)
print(guard.pid, flush=True)
time.sleep(300)
"""


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + patience(20)
    while not condition():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.02)


def guarded(seconds: float) -> tuple[subprocess.Popen[str], int, int, int]:
    """Parent, guard, command and the command's child, all running."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, GUARD, sys.executable, "-c", FAMILY.format(seconds=seconds)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    lines = sorted((parent.stdout.readline().split() for _ in range(2)), key=len)
    guard, (command, child) = int(lines[0][0]), map(int, lines[1])
    return parent, guard, command, child


def test_the_group_ends_when_the_guard_is_told_to() -> None:
    parent, guard, command, child = guarded(300)
    os.kill(guard, signal.SIGTERM)
    until(lambda: not any(map(alive, (guard, command, child))))
    parent.kill()
    printed, _ = parent.communicate()
    assert printed == "told to end\n"


def test_what_a_command_leaves_behind_ends_with_it() -> None:
    parent, guard, _, child = guarded(0.2)
    until(lambda: not any(map(alive, (guard, child))))
    parent.kill()
    parent.wait()


def test_a_killed_guard_takes_the_command_along() -> None:
    parent, guard, command, child = guarded(300)
    os.kill(guard, signal.SIGKILL)
    until(lambda: not alive(command))
    for pid in (child, parent.pid):
        os.kill(pid, signal.SIGKILL)
    parent.wait()


def test_the_terminals_interrupt_does_not_reach_the_server_which_ends_with_its_parent() -> None:
    parent, guard, command, child = guarded(300)
    assert os.getpgid(command) == os.getpgid(child) == guard != os.getpgid(parent.pid)
    [ignored] = re.findall(r"SigIgn:\s*(\w+)", Path(f"/proc/{guard}/status").read_text())
    assert int(ignored, 16) >> (signal.SIGINT - 1) & 1
    os.kill(guard, signal.SIGINT)
    assert all(map(alive, (guard, command, child)))
    parent.kill()
    parent.wait()
    until(lambda: not any(map(alive, (guard, command, child))))


def test_the_command_line(tmp_path: Path) -> None:
    launch = LaunchSettings(
        sys.executable, tmp_path, 160, "bfloat16", flags="--tp 4 --base-gpu-id={index}", max_requests=64, port=30000
    )
    command = launch.make_command(2, 30002, Path("/weights/7"), "x-7")
    pairs = dict(itertools.pairwise(command))
    assert command[:3] == [sys.executable, "-m", "sglang.launch_server"]
    assert (pairs["--model-path"], pairs["--weight-version"], pairs["--port"]) == ("/weights/7", "x-7", "30002")
    assert (pairs["--dtype"], pairs["--max-running-requests"]) == ("bfloat16", "64")
    assert int(pairs["--context-length"]) > 160, "the server keeps some positions for itself"
    assert command[-3:] == ["--tp", "4", "--base-gpu-id=2"]
    assert "cpu" not in command
    assert "PYTHONPATH" not in launch.environment(), "stand-ins are for the CPU alone"
    assert "--enable-memory-saver" not in command
    assert "--enable-memory-saver" in dataclasses.replace(launch, release_memory=True).make_command(
        0, 1, Path("/w"), "x"
    )


def test_a_module_of_the_current_folder_stands_in_for_none_of_the_servers(tmp_path: Path) -> None:
    launch = LaunchSettings(sys.executable, tmp_path, 160)
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "launch_server.py").write_text("print('imported')")
    start = [*launch.make_command(0, 1, Path("/w"), "x")[:3], "--help"]
    done = subprocess.run(start, cwd=tmp_path, env=launch.environment(), capture_output=True, timeout=patience(60))
    assert b"imported" not in done.stdout


def test_on_the_cpu_it_has_its_stand_ins_and_full_precision_is_asked_for(tmp_path: Path) -> None:
    launch = LaunchSettings(sys.executable, tmp_path, 160, "float32", "cpu")
    command = launch.make_command(0, 30000, Path("/weights/7"), "x-7")
    pairs = dict(itertools.pairwise(command))
    assert (pairs["--device"], pairs["--attention-backend"]) == ("cpu", "torch_native")
    assert (Path(launch.environment()["PYTHONPATH"]) / "sgl_kernel" / "__init__.py").exists()


def test_servers_on_the_cpu_share_its_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("cojax.rollout.sglang.server.usable_cores", lambda: 8)

    def threads(servers: int, device: str = "cpu") -> str | None:
        launch = LaunchSettings(sys.executable, tmp_path, 160, "float32", device, servers=servers)
        return launch.environment().get("OMP_NUM_THREADS")

    assert [threads(servers) for servers in (1, 2, 3, 20)] == ["8", "4", "2", "1"]
    assert threads(2, "") is None
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert threads(2) == "5"


def test_wrong_settings_name_the_fix(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Run `make sglang`"):
        LaunchSettings("/nowhere/python", tmp_path, 160)
    with pytest.raises(ValueError, match=r"sglang\.device is 'tpu'"):
        LaunchSettings(sys.executable, tmp_path, 160, device="tpu")


def test_a_taken_port_names_the_fix() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(OSError, match=rf"port {port} of 127\.0\.0\.1 cannot be used .*--config\.sglang\.port"):
            find_free_port("127.0.0.1", port)
    assert find_free_port("127.0.0.1", port) == port
    assert find_free_port("127.0.0.1") > 0
