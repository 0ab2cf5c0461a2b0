"""Runs a server in a process group that does not outlive its parent.

    python sglang_guard.py PARENT COMMAND…

PARENT is the process id of whoever starts this. When that process is gone (by SIGKILL too), when this one gets SIGTERM,
or when the command ends, the whole group is ended: SIGTERM to the command, a few seconds, SIGKILL to all. If this
process itself is killed, the kernel kills the command. Standard library only; Linux.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from types import FrameType

_PDEATHSIG = 1
_LOOK_EVERY = 0.2  # seconds
_GRACE = 3.0  # seconds


def main(arguments: list[str]) -> None:
    parent, command = int(arguments[0]), arguments[1:]
    stopping: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.append(number)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    libc = ctypes.CDLL(None)
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        # This process has one thread, so a fork from it is safe.
        preexec_fn=lambda: libc.prctl(_PDEATHSIG, signal.SIGKILL),
    )
    while not stopping and os.getppid() == parent and child.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_LOOK_EVERY)
    if child.returncode is not None:
        print(f"the server ended by itself with status {child.returncode}", file=sys.stderr, flush=True)
    # To the command alone: it ends its children in order, which would take their own SIGTERM for a crash.
    child.terminate()
    deadline = time.monotonic() + _GRACE
    while _others() and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY)
        child.poll()
    os.killpg(0, signal.SIGKILL)


def _others() -> bool:
    """Whether the group has another process that still runs."""
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            with contextlib.suppress(OSError, ValueError):
                with open(f"/proc/{entry}/stat") as file:
                    state, _, group = file.read().rpartition(")")[2].split()[:3]
                if int(group) == os.getpgrp() and state != "Z":
                    return True
    return False


if __name__ == "__main__":
    main(sys.argv[1:])
