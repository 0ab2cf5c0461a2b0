"""How far an episode is, for the watcher of its deadlines; and what its deadlines do not count."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator

from cojax.host.clock import running
from cojax.types import Message, Trajectory, Turn


class Abandoned(BaseException):
    """The watcher gave up on this episode. Its thread ends at the next step of `play`."""


@dataclasses.dataclass
class Progress:
    """How far an episode is, for the watcher of its deadlines. Phases: queued, reset, act, step, evaluate, over.

    `since` is `running()` at the start of the phase. The watcher sets `abandoned`. `turns` includes the current turn,
    whose observation is still empty. `result` is the trajectory, known before the episode is closed. `suspect` says
    that the environment failed in a way that the actions may have caused: after one of them, in `step` or `evaluate`,
    by anything but a plain `EnvironmentFailure`.
    """

    phase: str = "queued"
    since: float = 0.0
    abandoned: bool = False
    opening: tuple[Message, ...] = ()
    turns: list[Turn] = dataclasses.field(default_factory=list)
    result: Trajectory | None = None
    suspect: bool = False

    def enter(self, phase: str) -> None:
        if self.abandoned:
            raise Abandoned
        self.phase, self.since = phase, running()


# The progress of the episode that this thread plays; its deadline is measured from `since`.
PLAYING: contextvars.ContextVar[Progress | None] = contextvars.ContextVar("playing", default=None)
_EXCUSED: contextvars.ContextVar[float] = contextvars.ContextVar("excused", default=0.0)


def excuse(seconds: float) -> None:
    """Takes `seconds` off `counted_seconds`, and off the deadline of the episode that this thread plays.

    An environment calls it when it knows that its call waited for the host.
    """
    _EXCUSED.set(_EXCUSED.get() + seconds)
    if progress := PLAYING.get():
        progress.since += seconds


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """The time in this block is not charged: the deadline of the episode that this thread plays stands still.

    An engine calls it while a request waits for others to end. It must not span work that may hang.
    """
    progress = PLAYING.get() or Progress()
    since, began = progress.since, running()
    progress.since = float("inf")
    try:
        yield
    finally:
        progress.since = since + running() - began


def counted_seconds() -> float:
    """A clock in seconds for deadlines within an environment: `running()` without what this thread excused."""
    return running() - _EXCUSED.get()
