"""Ends the processes that descend from ours: tells them to end, waits for a bounded time, then kills them. Linux only.

A process that must not outlive this one has a guard, which is this file as a program: `python processes.py PARENT
COMMAND…`. It runs isolated, and imports only the standard library.

A command that cojax/api started has an owner. It tells the owner facts, and ends with it. Without an owner `tell` does
nothing.
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

_PDEATHSIG, _SUBREAPER = 1, 36
_POLL = 0.02  # seconds
# Seconds that processes have to end by themselves, and seconds that the kernel has to end killed ones.
GRACE, KILL_SECONDS = 5.0, 10.0
_REPORT_PIPES: list[int] = []  # the pipe to the owner
_GUARD = Path(__file__)
_GUARD_POLL, _CLOSING_POLL = 0.2, 0.05  # seconds between two checks of a guard: while its command runs, while it ends
_GUARD_GRACE = 3.0  # seconds that the command has after SIGTERM
# Seconds that a guard may need to end everything: its grace period, and the kernel's time for killed processes.
_STOP_SECONDS = 15.0


def adopt_orphans(adopt: bool = True) -> None:
    """Makes descendants whose parent ends children of this process, so that they stay its descendants."""
    ctypes.CDLL(None).prctl(_SUBREAPER, int(adopt), 0, 0, 0)


def family(pid: int) -> list[int]:
    """The process, then the running processes that it started, then those that they started, and so on."""
    children, running = defaultdict(set), {pid}
    for entry, parent, _, runs in _processes():
        # A process that has ended may still have children in the list.
        children[parent].add(entry)
        running |= {entry} if runs else set()
    members = [pid]
    for member in members:
        members += sorted(children[member].difference(members))
    return [member for member in members if member in running]


def memory(pid: int, field: str) -> float:
    """Megabytes of a process: `Rss`, or `Private_Dirty`, which it shares with no other process."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 1_024


def descendants(pid: int) -> set[int]:
    """The running processes that a process started, and those that they started."""
    return set(family(pid)[1:])


def children(pid: int) -> set[int]:
    """The processes that a process started, including those that have ended but are not yet reaped."""
    return {entry for entry, parent, _, _ in _processes() if parent == pid}


def session(sid: int) -> set[int]:
    """The running processes of a session."""
    return {entry for entry, _, session, runs in _processes() if runs and session == sid}


def end(processes: Callable[[], Iterable[int]], grace: float = 0.0, deadline: float = KILL_SECONDS) -> set[int]:
    """Waits up to `grace` seconds until no process is left, then kills those left.

    Returns those left after another `deadline` seconds.

    Listing all processes takes a while. A process that changes its parent meanwhile may be missed, so two empty lists
    in a row are needed.
    """

    def look_twice() -> set[int]:
        return set(processes()) or set(processes())

    until = time.monotonic() + grace
    while (pids := look_twice()) and time.monotonic() < until:
        time.sleep(_POLL)
    until = time.monotonic() + deadline
    while pids and time.monotonic() < until:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL)
        pids = look_twice()
    return pids


def end_all(grace: float | None = None) -> None:
    """Tells the children of this process to end, and returns when no descendant is left. Descendants that still run
    after `grace` seconds, GRACE by default, are killed."""
    own_pid = os.getpid()
    for child in children(own_pid):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(child, signal.SIGTERM)
    if survivors := end(lambda: descendants(own_pid), GRACE if grace is None else grace):
        print(f"processes {sorted(survivors)} could not be ended; kill them", file=sys.stderr, flush=True)
    else:
        reap()


def end_descendants_at_exit() -> None:
    """Makes this command end everything that it started, whether it ends normally, by an exception or by SIGTERM."""
    owner = os.getpid()
    adopt_orphans()
    # Handlers registered later run first: those that close workers and engines.
    atexit.register(lambda: end_all() if os.getpid() == owner else None)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def reap(deadline: float = KILL_SECONDS) -> None:
    """Reaps all children of this process, which were told to end. Waits at most `deadline` seconds for them."""
    until = time.monotonic() + deadline
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0] or time.monotonic() < until:
            time.sleep(_POLL)


def _processes() -> Iterator[tuple[int, int, int, bool]]:
    """Id, parent and session of every process, and whether it still runs; one that is freeing its memory does."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError):
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                # The first thread of a process may have ended while others still run.
                yield int(entry), int(fields[1]), int(fields[3]), fields[0] not in "ZX" or int(fields[17]) > 1


def end_with_owner(owner_pipe: int, report_pipe: int) -> None:
    """Sends this process SIGTERM once the other end of the `owner_pipe` is closed; `tell` writes to `report_pipe`."""
    for pipe in (owner_pipe, report_pipe):
        os.set_inheritable(pipe, False)
    _REPORT_PIPES[:] = [report_pipe]

    def end_with() -> None:
        with contextlib.suppress(OSError):
            while os.read(owner_pipe, 1):
                pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end_with, name="owner", daemon=True).start()


def tell(**facts: Any) -> None:
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
    def running(self) -> bool:
        return self._guard is not None and self._guard.poll() is None

    def start(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        """Starts the command, whose output is appended to `log`. None may be running. Raises OSError."""
        from cojax.durable import own_file  # imported here: the guard runs isolated, without our packages

        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab", opener=own_file) as output:
            output.write(f"\n=== {shlex.join(command)}\n".encode())
            output.flush()
            self._guard = subprocess.Popen(
                [sys.executable, "-I", str(_GUARD), str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                # Ctrl-C in the terminal must not reach the server: the trainer still needs it to end the step.
                start_new_session=True,
            )

    def end(self, number: int) -> None:
        """Has the guard end everything, by sending it this signal; ends everything directly if the guard cannot."""
        guard, self._guard = self._guard, None
        if guard is None:
            return
        if guard.poll() is None:
            guard.send_signal(signal.SIGCONT)
            guard.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                guard.wait(_STOP_SECONDS)
        if guard.poll() is None:
            end(lambda: descendants(guard.pid))
            guard.kill()
            guard.wait()
        # A guard that was killed has left its session running; one that ended by itself has ended everything.
        if guard.returncode < 0:
            end(lambda: session(guard.pid))


def guard(arguments: list[str]) -> None:
    """Runs the command of these arguments, PARENT COMMAND…, and ends it with all its descendants.

    PARENT is the process id of the trainer, which starts the guard. Everything is ended when PARENT is gone (also by
    SIGKILL), when the guard gets SIGTERM, or when the command ends. The command gets SIGTERM; after a few seconds all
    remaining descendants get SIGKILL, in every process group and session. SIGUSR1 skips those seconds. The guard ends
    after the last descendant. If the guard itself is killed, the kernel kills the command.
    """
    parent, command = int(arguments[0]), arguments[1:]
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda signal_number, _: signals.append(signal_number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    adopt_orphans()
    libc = ctypes.CDLL(None)
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        # This process has one thread, so a fork from it is safe.
        preexec_fn=lambda: libc.prctl(_PDEATHSIG, signal.SIGKILL),
    )
    while not signals and os.getppid() == parent and child.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_GUARD_POLL)
    if child.returncode is not None:
        print(f"the server ended by itself with status {child.returncode}", file=sys.stderr, flush=True)
    # Only the command gets SIGTERM: it ends its own children in order, and would take their early end for a crash.
    child.terminate()

    until = time.monotonic() + _GUARD_GRACE
    while descendants(os.getpid()) and signal.SIGUSR1 not in signals and time.monotonic() < until:
        time.sleep(_CLOSING_POLL)
    if survivors := end(lambda: descendants(os.getpid())):
        print(f"processes {sorted(survivors)} could not be ended", file=sys.stderr, flush=True)
    reap()


if __name__ == "__main__":
    guard(sys.argv[1:])
