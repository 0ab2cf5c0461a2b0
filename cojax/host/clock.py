"""The clock for deadlines: it counts the seconds in which this process could run, not those in which it was stopped."""

from __future__ import annotations

import os
import threading
import time

# Seconds between two readings of the clock, and how many seconds the time between two readings counts at most. A longer
# gap means that the process was stopped.
_EVERY, _MOST = 0.1, 0.5


class Clock:
    """`time.monotonic()` without the time in which the process was stopped; from `start` on a thread reads it often."""

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
        """Starts the thread that reads the clock. The time before counts as time in which this process could run."""
        with self._lock:
            if self._started:
                return
            self._started, self._seen = True, time.monotonic()
        threading.Thread(target=self._keep_reading, name="clock", daemon=True).start()

    def _keep_reading(self) -> None:
        while True:
            time.sleep(_EVERY)
            self.now()


_CLOCK = Clock()


def running() -> float:
    """Seconds on a clock that stands still while this process is stopped, or so starved that no thread of it runs."""
    _CLOCK.start()
    return _CLOCK.now()


def _renew() -> None:
    """Makes a new clock in a forked process: its reading thread is gone, and its lock may be held for ever."""
    global _CLOCK
    _CLOCK = Clock()


os.register_at_fork(after_in_child=_renew)
