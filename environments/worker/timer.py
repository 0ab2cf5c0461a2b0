"""The time that a call of a child counts: what the host took, by a stop or by starving the child, is not its own."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Iterator
from pathlib import Path

from cojax.environment import running

# A reply that has begun has so many seconds to end, a large one from when it has room.
_SENDING = 2.0
# However starved the child is, a call ends after so many times its deadline.
_PATIENCE = 5
_TICK = os.sysconf("SC_CLK_TCK")


@dataclasses.dataclass(frozen=True)
class Usage:
    """Seconds of processor time, and those in which a thread was ready to run and had to wait for a processor."""

    worked: float = 0.0
    waited: float = 0.0


class Timer:
    """The seconds of one call that count against `deadline`: min(wall, max(worked, wall - waited)).

    `wall` is what passed while this process ran, less what the host is known to have taken; `worked` and `waited` are
    those of the process `pid` and all below it. A child that sleeps is over after `deadline` seconds of wall time, one
    that works after as many of its own, and any after five times as many of wall time.
    """

    def __init__(self, deadline: float) -> None:
        self.deadline, self._begun = deadline, False
        self._start = running()
        self._pid, self._before = 0, Usage()
        # Seconds excused so far, and since when it has been excused now.
        self._excused, self._away = 0.0, math.inf

    def follow(self, pid: int) -> None:
        """From now on, this process and those below it, unless another one is followed."""
        if self._pid:
            return
        self._pid, self._before = pid, usage(pid)

    @property
    def wall(self) -> float:
        now = running()
        return now - self._start - self._excused - max(0.0, now - self._away)

    def counted(self) -> float:
        """Seconds that count so far; before the deadline, for a cheap look, all of wall time."""
        wall = self.wall
        return wall if wall < self.deadline else self.total()

    def total(self) -> float:
        """Seconds that count so far, without those that the child waited for a processor."""
        wall = self.wall
        if not self._pid:
            return wall
        now = usage(self._pid)
        worked, waited = now.worked - self._before.worked, now.waited - self._before.waited
        return min(wall, max(worked, wall - waited, wall / _PATIENCE))

    def begin(self) -> None:
        """The reply has begun; where it comes late, it may still come to its end."""
        if not self._begun:
            self._begun = True
            self.deadline = max(self.deadline, self.wall + _SENDING)

    def admitted(self) -> None:
        """A large reply has room, which others wait for: it has to end soon."""
        self.deadline = self.wall + _SENDING

    @contextlib.contextmanager
    def excused(self) -> Iterator[None]:
        """What passes within is the host's."""
        self._away = running()
        try:
            yield
        finally:
            self._excused, self._away = self._excused + running() - self._away, math.inf


def usage(pid: int) -> Usage:
    """What the process and all below it have used, as far as they are still there."""
    worked = waited = 0.0
    open_, seen = [pid], set()
    while open_:
        if (one := open_.pop()) in seen:
            continue
        seen.add(one)
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            worked += sum(map(int, fields[11:15])) / _TICK
            for thread in os.listdir(f"/proc/{one}/task"):
                waited += int(Path(f"/proc/{one}/task/{thread}/schedstat").read_text().split()[1]) / 1e9
                open_ += map(int, Path(f"/proc/{one}/task/{thread}/children").read_text().split())
    return Usage(worked, waited)
