"""A server that works on several requests at once: all advance alike, at a rate that depends on their number."""

import bisect
import collections
import dataclasses
import heapq
import itertools
from collections.abc import Callable
from typing import Generic, TypeVar

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Rates:
    """Work a second by the number of requests at once: points that rise in number, linear between them.

    From no request to the first point it rises in proportion; after the last it stays. Raises ValueError for points
    that do not rise, or whose rate is not above 0.
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        request_counts = [request_count for request_count, _ in self.points]
        if not request_counts or request_counts[0] <= 0 or sorted(set(request_counts)) != request_counts:
            raise ValueError(f"numbers of requests are {request_counts}; expected them to rise from above 0")
        if any(rate <= 0 for _, rate in self.points):
            raise ValueError(f"rates are {[rate for _, rate in self.points]}; expected them above 0")

    def __call__(self, requests: float) -> float:
        index = bisect.bisect_left(self.points, (requests, 0.0))
        if index == len(self.points):
            return self.points[-1][1]
        (right, above) = self.points[index]
        (left, below) = self.points[index - 1] if index else (0.0, 0.0)
        return below + (above - below) * (requests - left) / (right - left)


def make_constant(rate: float) -> Rates:
    """The rates of a machine that does the same work a second for any number of requests, one or more."""
    return Rates(((1.0, rate),))


class Server(Generic[_T]):
    """Processor sharing: n requests at once each get rate(n) / n. At most `slots` run, the others wait in order.

    Time is whatever the caller says; it never goes back. `busy` are the seconds with a request so far.
    """

    def __init__(self, rate: Callable[[float], float], slots: int = 1_000_000) -> None:
        self._rate, self._slots = rate, slots
        # (finish, number, request), finish in work that every request has got since the start.
        self._running: list[tuple[float, int, _T]] = []
        self._waiting: collections.deque[tuple[float, _T]] = collections.deque()
        self._got, self._now = 0.0, 0.0
        self._numbers = itertools.count()
        self.busy = 0.0

    def __len__(self) -> int:
        """Requests that run or wait."""
        return len(self._running) + len(self._waiting)

    def arrive(self, now: float, work: float, request: _T) -> None:
        """A request for so much work."""
        self._advance(now)
        self._waiting.append((work, request))
        self._admit()

    def ends(self) -> float | None:
        """When the next request ends if none arrives before; None without any."""
        if not self._running:
            return None
        remaining_work = max(0.0, self._running[0][0] - self._got)
        return self._now + remaining_work / self._speed()

    def end(self, now: float) -> _T:
        """Takes out the request that ends at that time."""
        self._advance(now)
        finish, _, request = heapq.heappop(self._running)
        self._got = max(self._got, finish)
        self._admit()
        return request

    def leave(self, now: float, request: _T) -> None:
        """Takes a request out before its end; nothing happens where the server does not have it."""
        self._advance(now)
        self._running = [entry for entry in self._running if entry[2] != request]
        heapq.heapify(self._running)
        self._waiting = collections.deque(entry for entry in self._waiting if entry[1] != request)
        self._admit()

    def _speed(self) -> float:
        return self._rate(len(self._running)) / len(self._running)

    def _advance(self, now: float) -> None:
        if self._running:
            self._got += (now - self._now) * self._speed()
            self.busy += now - self._now
        self._now = now

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._slots:
            work, request = self._waiting.popleft()
            heapq.heappush(self._running, (self._got + work, next(self._numbers), request))
