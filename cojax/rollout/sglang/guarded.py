"""A process with a guard that ends it, with all its descendants, when this process ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from cojax.host.processes import descendants, end, session

_GUARD = Path(__file__).with_name("guard.py")
# Seconds that a guard may need to end everything: its grace period, and the kernel's time for killed processes.
_STOP_SECONDS = 15.0


class GuardedProcess:
    """One process at a time. The caller keeps threads apart."""

    def __init__(self) -> None:
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._guard is not None and self._guard.poll() is None

    def start(self, command: Sequence[str], log: IO[bytes], environment: Mapping[str, str]) -> None:
        """Starts the command, whose output goes to `log`. None may be running. Raises OSError."""
        self._guard = subprocess.Popen(
            [sys.executable, "-I", str(_GUARD), str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
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
