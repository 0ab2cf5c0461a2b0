"""Processes that descend from ours: what is told to end is waited for, with a deadline, and then killed. Linux."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

_SUBREAPER = 36
_LOOK_EVERY = 0.02  # seconds
# Seconds in which whatever was told to end may do so by itself, and in which the kernel ends what was killed.
GRACE, KILLED = 5.0, 10.0


def adopt_orphans(adopt: bool = True) -> None:
    """From now on, descendants whose parent is gone become children of this process, and so stay its descendants."""
    ctypes.CDLL(None).prctl(_SUBREAPER, int(adopt), 0, 0, 0)


def family(pid: int) -> list[int]:
    """The process, then the running ones that it started, then those that they started, and so on."""
    children, running = defaultdict(set), {pid}
    for entry, parent, _, runs in _processes():
        # One that has ended while we looked is still the link to its children.
        children[parent].add(entry)
        running |= {entry} if runs else set()
    found = [pid]
    for member in found:
        found += sorted(children[member].difference(found))
    return [member for member in found if member in running]


def descendants(pid: int) -> set[int]:
    """The running processes that a process started, and those that they started."""
    return set(family(pid)[1:])


def session(sid: int) -> set[int]:
    """The running processes of a session."""
    return {entry for entry, _, session, runs in _processes() if runs and session == sid}


def end(left: Callable[[], Iterable[int]], grace: float = 0.0, deadline: float = KILLED) -> set[int]:
    """Waits up to `grace` seconds until no process is left, then kills until none is; those left after `deadline`.

    A look at all processes takes a while, in which a process may pass from one parent to another unseen: none is left
    where two looks found none.
    """

    def found() -> set[int]:
        return set(left()) or set(left())

    until = time.monotonic() + grace
    while (last := found()) and time.monotonic() < until:
        time.sleep(_LOOK_EVERY)
    until = time.monotonic() + deadline
    while last and time.monotonic() < until:
        for pid in last:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_LOOK_EVERY)
        last = found()
    return last


def end_all(grace: float | None = None) -> None:
    """Tells the children of this process to end, and returns when nothing that descends from it is left; what is after
    `grace` seconds, GRACE by default, is killed."""
    own = os.getpid()
    for entry, parent, _, runs in _processes():
        if runs and parent == own:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(entry, signal.SIGTERM)
    if left := end(lambda: descendants(own), GRACE if grace is None else grace):
        print(f"processes {sorted(left)} could not be ended; kill them", file=sys.stderr, flush=True)
    else:
        reap()


def leave_none() -> None:
    """Has this command end with everything that it started: at its end, by an exception, and by SIGTERM."""
    owner = os.getpid()
    adopt_orphans()
    # What is registered later, as what closes workers and engines, goes first.
    atexit.register(lambda: end_all() if os.getpid() == owner else None)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def reap(deadline: float = KILLED) -> None:
    """Buries the children of this process, which have all been told to end; what they held is free by then."""
    until = time.monotonic() + deadline
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0] or time.monotonic() < until:
            time.sleep(_LOOK_EVERY)


def _processes() -> Iterator[tuple[int, int, int, bool]]:
    """Id, parent and session of every process, and whether it still runs, if only to free what it held."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError):
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                # Of a process whose first thread is gone, others may still run.
                yield int(entry), int(fields[1]), int(fields[3]), fields[0] not in "ZX" or int(fields[17]) > 1
