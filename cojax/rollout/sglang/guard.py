"""Runs a server process, and ends it with all its descendants when the trainer is gone.

    python guard.py PARENT COMMAND…

PARENT is the process id of the trainer, which starts this process. Everything is ended when PARENT is gone (also by
SIGKILL), when this process gets SIGTERM, or when the command ends. The command gets SIGTERM; after a few seconds all
remaining descendants get SIGKILL, in every process group and session. SIGUSR1 skips those seconds. This process ends
after the last descendant. If this process itself is killed, the kernel kills the command. Standard library only; Linux.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).parents[3]))  # it runs isolated

from cojax.host.processes import adopt_orphans, descendants, end, reap

_PDEATHSIG = 1
_POLL, _CLOSING_POLL = 0.2, 0.05  # seconds between two checks, while it serves and while it ends
_GRACE = 3.0  # seconds


def main(arguments: list[str]) -> None:
    parent, command = int(arguments[0]), arguments[1:]
    signals: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        signals.append(number)

    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, stop)
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
            child.wait(_POLL)
    if child.returncode is not None:
        print(f"the server ended by itself with status {child.returncode}", file=sys.stderr, flush=True)
    # Only the command gets SIGTERM: it ends its own children in order, and would take their early end for a crash.
    child.terminate()

    until = time.monotonic() + _GRACE
    while descendants(os.getpid()) and signal.SIGUSR1 not in signals and time.monotonic() < until:
        time.sleep(_CLOSING_POLL)
    if left := end(lambda: descendants(os.getpid())):
        print(f"processes {sorted(left)} could not be ended", file=sys.stderr, flush=True)
    reap()


if __name__ == "__main__":
    main(sys.argv[1:])
