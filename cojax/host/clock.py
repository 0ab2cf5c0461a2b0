"""Time that counts against a deadline: the seconds in which this process could run, not those of a stop."""

from __future__ import annotations

import os
import threading
import time

# Seconds between two looks at the clock, and what one gap between looks counts at most: longer ones are the host's.
_EVERY, _MOST = 0.1, 0.5


class Clock:
    """`time.monotonic()` less the time in which nobody could look; a thread of its own looks from `start` on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen, self._lost = time.monotonic(), 0.0
        self._started = False

    def now(self) -> float:
        with self._lock:
            seen = time.monotonic()
            self._lost += max(0.0, seen - self._seen - _MOST)
            self._seen = seen
            return seen - self._lost

    def start(self) -> None:
        """Has a thread look from now on; what was before counts as time that this process could run."""
        with self._lock:
            if self._started:
                return
            self._started, self._seen = True, time.monotonic()
        threading.Thread(target=self._look, name="clock", daemon=True).start()

    def _look(self) -> None:
        while True:
            time.sleep(_EVERY)
            self.now()


_CLOCK = Clock()


def running() -> float:
    """Seconds on a clock that stands still while this process is stopped, or so starved that no thread of it runs."""
    _CLOCK.start()
    return _CLOCK.now()


def _renew() -> None:
    """A forked process has no thread but one, and maybe a lock that nobody will release."""
    global _CLOCK
    _CLOCK = Clock()


os.register_at_fork(after_in_child=_renew)
