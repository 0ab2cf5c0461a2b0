"""Ends the processes that descend from ours: tells them to end, waits for a bounded time, then kills them. Linux only.

A process that must not outlive this one has a guard, which is this file as a program: `python processes.py PARENT
COMMAND…`. It runs isolated, and imports only the standard library.

A command that cojax/api started has an owner. It tells the owner facts, and ends with it. Without an owner `tell_owner`
does nothing.
"""

import atexit
import contextlib
import ctypes
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_POLL_S = 0.02  # seconds
# Seconds that processes have to end by themselves, and seconds that the kernel has to end killed ones.
GRACE_S, KILL_S = 5.0, 10.0
_REPORT_PIPES: list[int] = []  # the pipe to the owner
_GUARD_PROGRAM = Path(__file__)
_GUARD_POLL_S, _CLOSING_POLL_S = 0.2, 0.05  # between two checks: while its command runs, while it ends
_GUARD_GRACE_S = 3.0  # seconds that the command has after SIGTERM
# Seconds that a guard may need to end everything: its grace period, and the kernel's time for killed processes.
_GUARD_STOP_TIMEOUT_S = 15.0


def adopt_orphans(adopts: bool = True) -> None:
    """Makes descendants whose parent ends children of this process, so that they stay its descendants."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(adopts), 0, 0, 0)


def family(pid: int) -> list[int]:
    """The process, then the running processes that it started, then those that they started, and so on."""
    children_by_pid, running_pids = defaultdict(set), {pid}
    for child_pid, parent_pid, _, is_running in _list_processes():
        # A process that has ended may still have children in the list.
        children_by_pid[parent_pid].add(child_pid)
        running_pids |= {child_pid} if is_running else set()
    member_pids = [pid]
    for member_pid in member_pids:
        member_pids += sorted(children_by_pid[member_pid].difference(member_pids))
    return [member_pid for member_pid in member_pids if member_pid in running_pids]


def read_memory(pid: int, field: str) -> float:
    """Megabytes of a process: `Rss`, or `Private_Dirty`, which it shares with no other process."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 1_024


def list_descendants(pid: int) -> set[int]:
    """The running processes that a process started, and those that they started."""
    return set(family(pid)[1:])


def list_children(pid: int) -> set[int]:
    """The processes that a process started, including those that have ended but are not yet reaped."""
    return {child_pid for child_pid, parent_pid, _, _ in _list_processes() if parent_pid == pid}


def list_session(sid: int) -> set[int]:
    """The running processes of a session."""
    return {member_pid for member_pid, _, session_id, alive in _list_processes() if alive and session_id == sid}


def end_pids(list_pids: Callable[[], Iterable[int]], grace_s: float = 0.0, kill_timeout_s: float = KILL_S) -> set[int]:
    """Waits up to `grace_s` seconds until no process is left, then kills those left.

    Returns those left after another `kill_timeout_s` seconds.

    Listing all processes takes a while. A process that changes its parent meanwhile may be missed, so two empty lists
    in a row are needed.
    """

    def list_survivors() -> set[int]:
        return set(list_pids()) or set(list_pids())

    end_time = time.monotonic() + grace_s
    while (pids := list_survivors()) and time.monotonic() < end_time:
        time.sleep(_POLL_S)
    end_time = time.monotonic() + kill_timeout_s
    while pids and time.monotonic() < end_time:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)
        pids = list_survivors()
    return pids


def end_all(grace_s: float | None = None) -> None:
    """Tells the children of this process to end, and returns when no descendant is left. Descendants that still run
    after `grace_s` seconds, GRACE_S by default, are killed."""
    own_pid = os.getpid()
    for child_pid in list_children(own_pid):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(child_pid, signal.SIGTERM)
    if survivors := end_pids(lambda: list_descendants(own_pid), GRACE_S if grace_s is None else grace_s):
        print(f"processes {sorted(survivors)} could not be ended; kill them", file=sys.stderr, flush=True)
    else:
        reap_children()


def end_descendants_at_exit() -> None:
    """Makes this command end everything that it started, whether it ends normally, by an exception or by SIGTERM."""
    own_pid = os.getpid()
    adopt_orphans()
    # Handlers registered later run first: those that close workers and engines.
    atexit.register(lambda: end_all() if os.getpid() == own_pid else None)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda signal_number, frame: sys.exit(128 + signal_number))


def reap_children(timeout_s: float = KILL_S) -> None:
    """Reaps all children of this process, which were told to end. Waits at most `timeout_s` seconds for them."""
    end_time = time.monotonic() + timeout_s
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0] or time.monotonic() < end_time:
            time.sleep(_POLL_S)


def _list_processes() -> Iterator[tuple[int, int, int, bool]]:
    """Id, parent and session of every process, and whether it still runs; one that is freeing its memory does."""
    for pid_name in os.listdir("/proc"):
        if pid_name.isdigit():
            with contextlib.suppress(OSError, ValueError):
                stats = Path(f"/proc/{pid_name}/stat").read_text().rpartition(")")[2].split()
                # The first thread of a process may have ended while others still run.
                yield int(pid_name), int(stats[1]), int(stats[3]), stats[0] not in "ZX" or int(stats[17]) > 1


def end_with_owner(owner_pipe: int, report_pipe: int) -> None:
    """Sends this process SIGTERM once the other end of `owner_pipe` is closed; `tell_owner` writes to `report_pipe`."""
    for pipe in (owner_pipe, report_pipe):
        os.set_inheritable(pipe, False)
    _REPORT_PIPES[:] = [report_pipe]

    def await_owner() -> None:
        with contextlib.suppress(OSError):
            while os.read(owner_pipe, 1):
                pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=await_owner, name="owner", daemon=True).start()


def tell_owner(**facts: Any) -> None:
    """Tells the owner facts about this command, as one line of JSON. Does nothing if the owner is gone."""
    for pipe in _REPORT_PIPES:
        with contextlib.suppress(OSError):
            os.write(pipe, (json.dumps(facts) + "\n").encode())


def usable_cores() -> int:
    """The number of cores this process may use; a container or `taskset` may allow fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class GuardedProcess:
    """One process and its guard, one at a time. Not safe to call from several threads at once."""

    def __init__(self) -> None:
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self._guard is not None and self._guard.poll() is None

    def start(self, command: Sequence[str], log_path: Path, environment: Mapping[str, str]) -> None:
        """Starts the command, whose output is appended to `log_path`. None may be running. Raises OSError."""
        from cojax.durable import open_own_file  # imported here: the guard runs isolated, without our packages

        log_path.parent.mkdir(parents=True, exist_ok=True)
        with open(log_path, "ab", opener=open_own_file) as log_file:
            log_file.write(f"\n=== {shlex.join(command)}\n".encode())
            log_file.flush()
            self._guard = subprocess.Popen(
                [sys.executable, "-I", str(_GUARD_PROGRAM), str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=subprocess.STDOUT,
                env=environment,
                # Ctrl-C in the terminal must not reach the server: the trainer still needs it to end the step.
                start_new_session=True,
            )

    def end(self, signal_number: int) -> None:
        """Has the guard end everything, by sending it this signal; ends everything directly if the guard cannot."""
        guard, self._guard = self._guard, None
        if guard is None:
            return
        if guard.poll() is None:
            guard.send_signal(signal.SIGCONT)
            guard.send_signal(signal_number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                guard.wait(_GUARD_STOP_TIMEOUT_S)
        if guard.poll() is None:
            end_pids(lambda: list_descendants(guard.pid))
            guard.kill()
            guard.wait()
        # A guard that was killed has left its session running; one that ended by itself has ended everything.
        if guard.returncode < 0:
            end_pids(lambda: list_session(guard.pid))


def run_guarded(arguments: list[str]) -> None:
    """Runs the command of these arguments, PARENT COMMAND…, and ends it with all its descendants.

    PARENT is the process id of the trainer, which starts the guard. Everything is ended when PARENT is gone (also by
    SIGKILL), when the guard gets SIGTERM, or when the command ends. The command gets SIGTERM; after a few seconds all
    remaining descendants get SIGKILL, in every process group and session. SIGUSR1 skips those seconds. The guard ends
    after the last descendant. If the guard itself is killed, the kernel kills the command.
    """
    parent_pid, command = int(arguments[0]), arguments[1:]
    received_signals: list[int] = []
    for handled_signal in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(handled_signal, lambda signal_number, _: received_signals.append(signal_number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    adopt_orphans()
    libc = ctypes.CDLL(None)
    child_process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        # This process has one thread, so a fork from it is safe.
        preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
    )
    while not received_signals and os.getppid() == parent_pid and child_process.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child_process.wait(_GUARD_POLL_S)
    if child_process.returncode is not None:
        print(f"the server ended by itself with status {child_process.returncode}", file=sys.stderr, flush=True)
    # Only the command gets SIGTERM: it ends its own children in order, and would take their early end for a crash.
    child_process.terminate()

    end_time = time.monotonic() + _GUARD_GRACE_S
    while list_descendants(os.getpid()) and signal.SIGUSR1 not in received_signals and time.monotonic() < end_time:
        time.sleep(_CLOSING_POLL_S)
    if survivors := end_pids(lambda: list_descendants(os.getpid())):
        print(f"processes {sorted(survivors)} could not be ended", file=sys.stderr, flush=True)
    reap_children()


if __name__ == "__main__":
    run_guarded(sys.argv[1:])
