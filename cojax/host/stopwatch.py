"""Where the wall time of a run goes."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

# The parts of a run's time, in the order of summary.json. The total does not include the warm start.
PARTS = ("warm_start", "generation", "environment", "update", "sync", "feedback", "evaluation", "checkpoint")


class Stopwatch:
    """Charges wall time, in seconds, to the parts of a run, every moment to at most one part.

    Opening a part inside another one stops the outer one until the inner one closes. `total` is measured separately:
    the gap between it and the sum of the parts is time charged to none. Only the thread of the loop may use it.
    """

    def __init__(self, parts: Sequence[str] = PARTS, now: Callable[[], float] = time.perf_counter):
        self._now = now
        self._parts: dict[str, float] = dict.fromkeys(parts, 0.0)
        self._total = 0.0
        self._open: list[str] = []
        self._mark = now()
        self._lap = self.summary()

    @contextlib.contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Charges the time inside the `with` block to `part`."""
        self._charge()
        self._open.append(self._expect_part(part))
        try:
            yield
        finally:
            self._charge()
            self._open.pop()

    def move(self, source: str, target: str, seconds: float) -> None:
        """Moves seconds that were charged to `source` to `target`, at most as many as `source` has."""
        self._charge()
        seconds = min(seconds, self._parts[self._expect_part(source)])
        self._parts[source] -= seconds
        self._parts[self._expect_part(target)] += seconds

    def summary(self, outside: Sequence[str] = ("warm_start",)) -> dict[str, float]:
        """Seconds of every part so far, and `total`, which does not include the parts in `outside`."""
        self._charge()
        return {**self._parts, "total": self._total - sum(self._parts.get(part, 0.0) for part in outside)}

    def lap(self) -> dict[str, float]:
        """Seconds of every part, and `total`, since the last lap or the start; parts of 0 seconds are left out."""
        summary = self.summary()
        parts = {part: seconds - self._lap[part] for part, seconds in summary.items()}
        self._lap = summary
        return {part: seconds for part, seconds in parts.items() if seconds > 0.0 or part == "total"}

    def state(self) -> dict[str, Any]:
        """All seconds so far as JSON, for a checkpoint."""
        self._charge()
        return {"parts": dict(self._parts), "total": self._total}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Adds the seconds of a `state()` saved before an interruption; the time in between does not count."""
        self._charge()
        for part, seconds in state["parts"].items():
            self._parts[self._expect_part(part)] += seconds
        self._total += state["total"]
        self._lap = self.summary()

    def _charge(self) -> None:
        now = self._now()
        # The system clock may be set back; time spent is never negative.
        seconds = max(0.0, now - self._mark)
        if self._open:
            self._parts[self._open[-1]] += seconds
        self._total += seconds
        self._mark = now

    def _expect_part(self, part: str) -> str:
        if part not in self._parts:
            raise KeyError(f"the stopwatch has no part {part!r}; it has {', '.join(self._parts)}")
        return part
