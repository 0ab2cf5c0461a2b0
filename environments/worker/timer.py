"""Measures the time that counts against a call's deadline: without what the host took by stops or by other load."""

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cojax.environment import running

# A reply must end within so many seconds after it began; a large one, after it got room.
_SENDING = 2.0
# A call ends after so many times its deadline in wall time, however little processor time the child got.
_PATIENCE = 5
_TICK = os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """Seconds of processor time, and seconds in which a thread was ready to run but had no processor."""

    worked: float = 0.0
    waited: float = 0.0


class Timer:
    """The seconds of one call that count against `deadline`: min(wall, max(worked, wall - waited)).

    `wall` is the time that passed while this process ran, less the time that the host is known to have taken. `worked`
    and `waited` are those of the child and its descendants. A child that sleeps is over after `deadline` seconds of
    wall time, one that works after as many of processor time, and any child after five times as many of wall time.
    """

    def __init__(self, deadline: float) -> None:
        self.deadline, self._begun = deadline, False
        self._start = running()
        self._pid, self._before = 0, Usage()
        # Seconds excused so far, and since when it has been excused now.
        self._excused, self._away = 0.0, math.inf

    def follow(self, pid: int) -> None:
        """Measures this process and its descendants from now on, unless another one is measured."""
        if self._pid:
            return
        self._pid, self._before = pid, usage(pid)

    @property
    def wall(self) -> float:
        now = running()
        return now - self._start - self._excused - max(0.0, now - self._away)

    def counted(self) -> float:
        """Seconds that count so far; before the deadline all of wall time, which is cheap to read."""
        wall = self.wall
        return wall if wall < self.deadline else self.total()

    def total(self) -> float:
        """Seconds that count so far, without those in which the child waited for a processor."""
        wall = self.wall
        if not self._pid:
            return wall
        now = usage(self._pid)
        worked, waited = now.worked - self._before.worked, now.waited - self._before.waited
        return min(wall, max(worked, wall - waited, wall / _PATIENCE))

    def begin(self) -> None:
        """Notes that the reply has begun: one that begins late may still end."""
        if not self._begun:
            self._begun = True
            self.deadline = max(self.deadline, self.wall + _SENDING)

    def admitted(self) -> None:
        """Notes that a large reply has room: it must end soon, as others wait for the room."""
        self.deadline = self.wall + _SENDING

    @contextlib.contextmanager
    def excused(self) -> Iterator[None]:
        """Time within the block is the host's and does not count."""
        self._away = running()
        try:
            yield
        finally:
            self._excused, self._away = self._excused + running() - self._away, math.inf


def usage(pid: int) -> Usage:
    """The processor time of the process and its descendants, as far as they still exist."""
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
