"""Workers, fork servers and children that die or stop in the middle of an honest episode.

What the host loses says nothing of the policy: the episode earns its full reward when it is played again, or is told to
be lost; it is never charged. Whatever happened, the next episode is sound.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping

from cojax.environment import Episode, OutOfContext
from cojax.host import processes
from cojax.rollout.collect import EpisodeCollector, Limits
from cojax.types import Message, Trajectory, Turn
from environments.worker import Bounds, IsolatedEnvironment, isolate
from experiments.campaign import wild
from experiments.campaign.cases import Violation, draw

# Seconds that a call may take; stops last up to twice as long.
_DEADLINE = 1.5
BOUNDS = Bounds(deadline=_DEADLINE, service_deadline=10.0)
# Who is struck: depth below the trainer, 0 the supervisor, 1 the fork server, 2 the child.
_VICTIMS = ("supervisor", "fork server", "child", "child", "everyone")
_SIGNALS: Mapping[str, int] = {
    "killed": signal.SIGKILL, "ended": signal.SIGTERM, "crashed": signal.SIGSEGV, "stopped": signal.SIGSTOP,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Fault:
    """Who is struck, how, before which turn, and for how many seconds where it is stopped."""

    victim: str
    deed: str
    turn: int
    seconds: float

    def strike(self, supervisor: int) -> None:
        family = processes.family(supervisor)
        struck = {"supervisor": family[:1], "fork server": family[1:2], "child": family[2:], "everyone": family}
        for pid in struck[self.victim]:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, _SIGNALS[self.deed])
        if self.deed == "stopped":
            threading.Timer(self.seconds, _go_on, (struck[self.victim],)).start()


def _go_on(family: list[int]) -> None:
    for pid in family:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGCONT)


def drawn(rng: random.Random) -> Fault:
    victim = rng.choice(_VICTIMS)
    deed = "stopped" if victim == "everyone" else rng.choice(("killed", "killed", "ended", "crashed", "stopped"))
    return Fault(victim, deed, rng.randrange(3), rng.choice((0.1, 0.5, _DEADLINE, 2 * _DEADLINE)))


@contextlib.contextmanager
def worker() -> Iterator[IsolatedEnvironment]:
    environment = isolate("experiments.campaign.hostile", bounds=BOUNDS, runs_policy_code=True)
    try:
        yield environment
    finally:
        environment.close()


def inject(id: str, seed: int) -> list[Violation]:
    """One fault in one honest episode of a worker of its own, and an honest episode after it."""
    rng = draw(seed, id)
    fault = drawn(rng)
    name = f"{fault.victim} {fault.deed} before turn {fault.turn + 1}"
    found = []
    with worker() as environment:
        judged = wild.Judged(environment)
        family = set(processes.family(environment.supervisor))
        struck = _played(judged, f"{id}-struck", lambda: fault.strike(environment.supervisor), fault.turn)
        if struck.valid and struck.reward < 1.0:
            found.append(Violation("forged", id, f"{name}: an honest episode is charged ({_told(struck)})"))
        if not _recovered(judged, id):
            found.append(Violation("lost", id, f"{name}: no honest episode can be played any more"))
        family |= set(processes.family(environment.supervisor))
    if left := _left(sorted(family)):
        found.append(Violation("leaked", id, f"{name}: processes {left} stay"))
    return found


def _recovered(judged: wild.Judged, id: str) -> bool:
    """Whether an honest episode earns its reward again, once what is stopped goes on."""
    until = time.monotonic() + 20.0
    while time.monotonic() < until:
        after = _played(judged, f"{id}-after", lambda: None, 99)
        if after.valid and after.reward == 1.0:
            return True
        time.sleep(0.2)
    return False


def _left(pids: list[int]) -> list[int]:
    """Those that still run, once they had time to end."""
    until = time.monotonic() + 10.0
    while left := [pid for pid in pids if pid in processes.family(os.getpid())]:
        if time.monotonic() > until:
            return left
        time.sleep(0.05)
    return []


def _played(judged: wild.Judged, label: str, strike: Callable[[], None], at: int) -> Trajectory:
    """An honest episode, struck once before the turn `at`."""
    strikes = iter([strike])

    class Honest:
        def __call__(self, session: str, seed: tuple[int, ...]) -> Callable[[Episode, tuple[Message, ...]], Turn]:
            actions = [wild.say("nothing"), wild.say("nothing"), wild.say("right")]
            turns = iter(enumerate(actions))

            def act(episode: Episode, messages: tuple[Message, ...]) -> Turn:
                for place, action in turns:
                    if place == at:
                        next(strikes, lambda: None)()
                    return Turn(action)
                raise OutOfContext

            return act

        def release(self, session: str) -> None:
            pass

    limits = Limits(max_turns=3, environment_deadline=60.0, error_rate=1.0, concurrency=1)
    (group,) = EpisodeCollector(Honest(), judged, limits).collect([wild.task()], seed=(0,), label=label)
    return group.trajectories[0]


def _told(trajectory: Trajectory) -> str:
    return f"{trajectory.outcome}, reward {trajectory.reward:g}: {trajectory.error}"[:300]
