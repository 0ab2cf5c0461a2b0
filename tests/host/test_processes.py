"""What a command started is gone when it is: at its end, by an exception, by signals, whatever its children do."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from patience import patience

from cojax.host import processes
from cojax.host.processes import end_pids, list_descendants, list_session
from cojax.rollout.sglang.server import LaunchSettings, ServerProcess

# Prints the ids of itself, a child, and a grandchild in a session of its own whose parent is gone; all deaf to SIGTERM.
FAMILY = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
deaf = "import os, time; os.write(1, f'{os.getpid()}{chr(10)}'.encode()); time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", deaf])
away = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {deaf!r}], start_new_session=True)"
subprocess.run([sys.executable, "-c", away])
os.write(1, f"{os.getpid()}{chr(10)}".encode())
time.sleep(60)
"""
COMMAND = """
import signal, subprocess, sys, time
from cojax.host import processes
from cojax.host.processes import end_all, end_descendants_at_exit
processes.GRACE_S = 0.1
signal.signal(signal.SIGINT, signal.default_int_handler)
end_descendants_at_exit()
family = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE, start_new_session=True)
for _ in range(3):
    print(family.stdout.readline().decode(), end="", flush=True)
{ending}
"""
ENDINGS = {
    "returns": ("", 0, 0),
    "raises": ("raise ValueError('broken')", 0, 1),
    "exits at once": ("import os; end_all(0.1); os._exit(5)", 0, 5),
    "SIGTERM": ("time.sleep(60)", signal.SIGTERM, 143),
    "SIGINT": ("time.sleep(60)", signal.SIGINT, -signal.SIGINT),
}


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_command_leaves_no_process(ending):
    code, number, status = ENDINGS[ending]
    program = COMMAND.format(ending=code)
    command = subprocess.Popen([sys.executable, "-c", program, FAMILY], stdout=subprocess.PIPE, text=True)
    assert command.stdout is not None
    family = [int(command.stdout.readline()) for _ in range(3)]
    if number:
        assert all(map(alive, family))
        command.send_signal(number)
    assert command.wait(patience(60)) == status
    assert not any(map(alive, family))
    command.stdout.close()


def server(folder: Path) -> tuple[ServerProcess, list[int]]:
    """A started server, which is a stand-in for SGLang's command, and the processes of its family."""
    python = folder / "python"
    python.write_text(f"#!{sys.executable}\n{FAMILY}")
    python.chmod(0o755)
    process = ServerProcess(LaunchSettings(str(python), folder / "logs", 160))
    process.start(folder, "0")
    deadline = time.monotonic() + patience(60)
    while len(family := [int(line) for line in process.log.read_text().split("\n")[2:-1] if line.isdigit()]) < 3:
        assert time.monotonic() < deadline, process.read_log_tail()
        time.sleep(0.05)
    assert all(map(alive, family))
    return process, family


def test_a_stopped_server_has_ended_with_all_it_started(tmp_path, monkeypatch):
    hurried = tmp_path / "guard.py"
    hurried.write_text(processes._GUARD_PROGRAM.read_text().replace("_GUARD_GRACE_S = 3.0", "_GUARD_GRACE_S = 0.3"))
    monkeypatch.setattr(processes, "_GUARD_PROGRAM", hurried)
    process, family = server(tmp_path)
    process.stop()
    assert not any(map(alive, family))
    assert not process.is_running
    process.stop()


def test_a_killed_server_has_ended_at_once(tmp_path):
    process, family = server(tmp_path)
    began = time.monotonic()
    process.kill()
    assert not any(map(alive, family))
    assert time.monotonic() - began < 2.5, "the guard's grace is three seconds"


def test_a_guard_that_hangs_is_done_without(tmp_path, monkeypatch):
    hung = tmp_path / "guard.py"
    hung.write_text(
        "import os, signal, subprocess, sys, time\n"
        "for number in (signal.SIGTERM, signal.SIGUSR1): signal.signal(number, signal.SIG_IGN)\n"
        f"sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        "from cojax.host.processes import adopt_orphans; adopt_orphans()\n"
        "subprocess.Popen(sys.argv[2:]); time.sleep(60)\n"
    )
    monkeypatch.setattr(processes, "_GUARD_PROGRAM", hung)
    monkeypatch.setattr(processes, "_GUARD_STOP_TIMEOUT_S", 0.2)
    process, family = server(tmp_path)
    process.stop()
    assert not any(map(alive, family))


def test_what_a_killed_guard_left_in_its_session_ends(tmp_path):
    process, family = server(tmp_path)
    assert process._guarded_process._guard is not None
    guard = process._guarded_process._guard.pid
    os.kill(guard, signal.SIGKILL)
    process.kill()
    assert not list_session(guard)
    # In a session of its own it is nobody's any more.
    for pid in filter(alive, family):
        os.kill(pid, signal.SIGKILL)


def test_descendants_are_found_whatever_their_session():
    family = subprocess.Popen([sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, start_new_session=True)
    assert family.stdout is not None
    ids = {int(family.stdout.readline()) for _ in range(3)}
    assert family.pid in list_descendants(os.getpid()) & ids
    assert len(list_descendants(family.pid) & ids) == 1, "an orphan is adopted by another"
    assert end_pids(lambda: {pid for pid in ids if alive(pid)}) == set()
    family.wait()
    family.stdout.close()
