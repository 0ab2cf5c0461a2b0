"""Ends the processes that descend from ours: tells them to end, waits for a bounded time, and kills the rest. Linux.

A command that cojax/api started has an owner: it tells it facts, and ends with it. For all others `tell` does nothing.
"""

import atexit
import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

_SUBREAPER = 36
_POLL = 0.02  # seconds
# Seconds in which processes that are told to end may do so by themselves, and in which the kernel ends killed ones.
GRACE, KILLED = 5.0, 10.0
_TOLD: list[int] = []  # the pipe to the owner


def adopt_orphans(adopt: bool = True) -> None:
    """Makes descendants whose parent ends children of this process, so that they stay its descendants."""
    ctypes.CDLL(None).prctl(_SUBREAPER, int(adopt), 0, 0, 0)


def family(pid: int) -> list[int]:
    """The process, then the running processes that it started, then those that they started, and so on."""
    children, running = defaultdict(set), {pid}
    for entry, parent, _, runs in _processes():
        # A process that ended meanwhile still leads to its children.
        children[parent].add(entry)
        running |= {entry} if runs else set()
    found = [pid]
    for member in found:
        found += sorted(children[member].difference(found))
    return [member for member in found if member in running]


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


def session(sid: int) -> set[int]:
    """The running processes of a session."""
    return {entry for entry, _, session, runs in _processes() if runs and session == sid}


def end(left: Callable[[], Iterable[int]], grace: float = 0.0, deadline: float = KILLED) -> set[int]:
    """Waits up to `grace` seconds until no process is left, then kills until none is. Returns those left after another
    `deadline` seconds.

    Listing all processes takes a while, in which a process may pass from one parent to another and be missed. So none
    is left only where two lists in a row are empty.
    """

    def found() -> set[int]:
        return set(left()) or set(left())

    until = time.monotonic() + grace
    while (last := found()) and time.monotonic() < until:
        time.sleep(_POLL)
    until = time.monotonic() + deadline
    while last and time.monotonic() < until:
        for pid in last:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL)
        last = found()
    return last


def end_all(grace: float | None = None) -> None:
    """Tells the children of this process to end, and returns when no descendant is left. Descendants that still run
    after `grace` seconds, GRACE by default, are killed."""
    own = os.getpid()
    for entry, parent, _, runs in _processes():
        if runs and parent == own:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(entry, signal.SIGTERM)
    if left := end(lambda: descendants(own), GRACE if grace is None else grace):
        print(f"processes {sorted(left)} could not be ended; kill them", file=sys.stderr, flush=True)
    else:
        reap()


def end_descendants_at_exit() -> None:
    """Makes this command end everything that it started, however it ends: normally, by an exception or by SIGTERM."""
    owner = os.getpid()
    adopt_orphans()
    # Handlers registered later run first: those that close workers and engines.
    atexit.register(lambda: end_all() if os.getpid() == owner else None)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def reap(deadline: float = KILLED) -> None:
    """Waits at most `deadline` seconds for all children of this process, which were told to end, and reaps them."""
    until = time.monotonic() + deadline
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0] or time.monotonic() < until:
            time.sleep(_POLL)


def _processes() -> Iterator[tuple[int, int, int, bool]]:
    """Id, parent and session of every process, and whether it still runs; one that frees its memory does."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError):
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                # The first thread of a process may have ended while others still run.
                yield int(entry), int(fields[1]), int(fields[3]), fields[0] not in "ZX" or int(fields[17]) > 1


def end_with_owner(owner: int, told: int) -> None:
    """Sends this process SIGTERM once the other end of the pipe `owner` is closed; `tell` writes to the pipe `told`."""
    for pipe in (owner, told):
        os.set_inheritable(pipe, False)
    _TOLD[:] = [told]
    threading.Thread(target=_end_with, args=(owner,), name="owner", daemon=True).start()


def tell(**facts: Any) -> None:
    """Tells the owner facts about this command, as one line of JSON. An owner that is gone hears nothing."""
    for pipe in _TOLD:
        with contextlib.suppress(OSError):
            os.write(pipe, (json.dumps(facts) + "\n").encode())


def _end_with(owner: int) -> None:
    with contextlib.suppress(OSError):
        while os.read(owner, 1):
            pass
    os.kill(os.getpid(), signal.SIGTERM)


def usable_cores() -> int:
    """How many there are; less than the machine has where a container or `taskset` confines the process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
