"""Measures the wall time during which an engine is busy."""

from __future__ import annotations

import threading
import time


class BusyTime:
    """Wall time during which at least one `with` block of this object runs, in seconds; any thread may run a block."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running, self._since, self._total = 0, 0.0, 0.0

    @property
    def seconds(self) -> float:
        with self._lock:
            return self._total + (time.perf_counter() - self._since if self._running else 0.0)

    def __enter__(self) -> None:
        with self._lock:
            if not self._running:
                self._since = time.perf_counter()
            self._running += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._running -= 1
            if not self._running:
                self._total += time.perf_counter() - self._since
