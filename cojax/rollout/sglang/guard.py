"""A process under a guard, which ends it with all its descendants when the trainer is gone.

The guard is this file as a program: `python guard.py PARENT COMMAND…`. PARENT is the process id of the trainer, which
starts the guard. Everything is ended when PARENT is gone (also by SIGKILL), when the guard gets SIGTERM, or when the
command ends. The command gets SIGTERM; after a few seconds all remaining descendants get SIGKILL, in every process
group and session. SIGUSR1 skips those seconds. The guard ends after the last descendant. If the guard itself is killed,
the kernel kills the command. Standard library only; Linux.
"""

import contextlib
import ctypes
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

if __name__ == "__main__":  # it runs isolated
    sys.path.insert(0, str(Path(__file__).parents[3]))

from cojax.durable import own_file
from cojax.host.processes import adopt_orphans, descendants, end, reap, session

_GUARD = Path(__file__)
_PDEATHSIG = 1
_POLL, _CLOSING_POLL = 0.2, 0.05  # seconds between two checks, while it serves and while it ends
_GRACE = 3.0  # seconds that the command has after SIGTERM
# Seconds that a guard may need to end everything: its grace period, and the kernel's time for killed processes.
_STOP_SECONDS = 15.0


class GuardedProcess:
    """One process and its guard, one at a time. The caller keeps threads apart."""

    def __init__(self) -> None:
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._guard is not None and self._guard.poll() is None

    def start(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        """Starts the command, whose output is appended to `log`. None may be running. Raises OSError."""
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
        """Has the guard end everything, by this signal to it; does it directly if the guard cannot."""
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
