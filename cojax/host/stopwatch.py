"""Where the wall time of a run goes."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

# The parts of a run's time, in the order of summary.json. The total does not include the warm start.
TIME_PARTS = ("warm_start", "generation", "environment", "update", "sync", "feedback", "evaluation", "checkpoint")


class Stopwatch:
    """Charges wall time, in seconds, to the parts of a run, every moment to at most one part.

    Opening a part inside another one stops the outer one until the inner one closes. `total` is measured separately:
    the gap between it and the sum of the parts is time charged to none. Only the thread of the loop may use it.
    """

    def __init__(self, parts: Sequence[str] = TIME_PARTS, read_clock: Callable[[], float] = time.perf_counter):
        self._read_clock = read_clock
        self._part_seconds: dict[str, float] = dict.fromkeys(parts, 0.0)
        self._total = 0.0
        self._open_parts: list[str] = []
        self._last_reading = read_clock()
        self._counters: dict[str, Callable[[], float]] = {}
        self._lap_summary = self.summary()

    def count(self, name: str, read_seconds: Callable[[], float]) -> None:
        """Adds to every lap, as `name`, the seconds that `read_seconds` has counted; they may overlap the parts."""
        self._counters[name] = read_seconds
        self._lap_summary[name] = read_seconds()

    @contextlib.contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Charges the time inside the `with` block to `part`."""
        self._charge_time()
        self._open_parts.append(self._expect_part(part))
        try:
            yield
        finally:
            self._charge_time()
            self._open_parts.pop()

    def move(self, source: str, target: str, seconds: float) -> None:
        """Moves seconds that were charged to `source` to `target`, at most as many as `source` has."""
        self._charge_time()
        seconds = min(seconds, self._part_seconds[self._expect_part(source)])
        self._part_seconds[source] -= seconds
        self._part_seconds[self._expect_part(target)] += seconds

    def summary(self, outside: Sequence[str] = ("warm_start",)) -> dict[str, float]:
        """Seconds of every part so far, and `total`, which does not include the parts in `outside`."""
        self._charge_time()
        return {**self._part_seconds, "total": self._total - sum(self._part_seconds.get(part, 0.0) for part in outside)}

    def lap(self) -> dict[str, float]:
        """Seconds of every part and counter, and `total`, since the last lap or the start; without those of 0 s."""
        summary = {**self.summary(), **{name: read_seconds() for name, read_seconds in self._counters.items()}}
        lap_seconds = {part: seconds - self._lap_summary[part] for part, seconds in summary.items()}
        self._lap_summary = summary
        return {part: seconds for part, seconds in lap_seconds.items() if seconds > 0.0 or part == "total"}

    def state(self) -> dict[str, Any]:
        """All seconds so far as JSON, for a checkpoint."""
        self._charge_time()
        return {"parts": dict(self._part_seconds), "total": self._total}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Adds the seconds of a `state()` saved before an interruption; the time in between does not count."""
        self._charge_time()
        for part, seconds in state["parts"].items():
            self._part_seconds[self._expect_part(part)] += seconds
        self._total += state["total"]
        self._lap_summary |= self.summary()

    def _charge_time(self) -> None:
        reading = self._read_clock()
        # The system clock may be set back; time spent is never negative.
        seconds = max(0.0, reading - self._last_reading)
        if self._open_parts:
            self._part_seconds[self._open_parts[-1]] += seconds
        self._total += seconds
        self._last_reading = reading

    def _expect_part(self, part: str) -> str:
        if part not in self._part_seconds:
            raise KeyError(f"the stopwatch has no part {part!r}; it has {', '.join(self._part_seconds)}")
        return part
