"""Faults of workers: supervisor, fork server or child die or stop in the middle of an honest episode.

A loss of the host's says nothing about the policy: the episode earns its full reward when it is played again, or counts
as lost, but never as failed. The next episode is sound in any case.
"""

import contextlib
import dataclasses
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping

from campaign import hostile_cases
from campaign.cases import Violation, draw
from cojax.environment import Episode, OutOfContext
from cojax.host import processes
from cojax.rollout.collect import EpisodeCollector, Limits
from cojax.types import Message, Trajectory, Turn
from environments.worker import Bounds, IsolatedEnvironment, isolate

# Seconds that a call may take; a process is stopped for up to twice as long.
_DEADLINE = 1.5
BOUNDS = Bounds(deadline=_DEADLINE, service_deadline=10.0)
_VICTIMS = ("supervisor", "fork server", "child", "child", "everyone")
_SIGNALS: Mapping[str, int] = {
    "killed": signal.SIGKILL, "ended": signal.SIGTERM, "crashed": signal.SIGSEGV, "stopped": signal.SIGSTOP,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Fault:
    """Which process gets which signal, before which turn, and after how many seconds it is continued if stopped."""

    victim: str
    kind: str
    turn: int
    seconds: float

    def inject(self, supervisor: int) -> None:
        family = processes.family(supervisor)
        victims = {"supervisor": family[:1], "fork server": family[1:2], "child": family[2:], "everyone": family}
        for pid in victims[self.victim]:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, _SIGNALS[self.kind])
        if self.kind == "stopped":
            threading.Timer(self.seconds, _go_on, (victims[self.victim],)).start()


def _go_on(family: list[int]) -> None:
    for pid in family:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGCONT)


def draw_fault(rng: random.Random) -> Fault:
    victim = rng.choice(_VICTIMS)
    kind = "stopped" if victim == "everyone" else rng.choice(("killed", "killed", "ended", "crashed", "stopped"))
    return Fault(victim, kind, rng.randrange(3), rng.choice((0.1, 0.5, _DEADLINE, 2 * _DEADLINE)))


@contextlib.contextmanager
def worker() -> Iterator[IsolatedEnvironment]:
    environment = isolate("campaign.hostile_environment", bounds=BOUNDS, runs_policy_code=True)
    try:
        yield environment
    finally:
        environment.close()


def inject(id: str, seed: int) -> list[Violation]:
    """One fault in one honest episode of a worker of its own, and an honest episode after it."""
    rng = draw(seed, id)
    fault = draw_fault(rng)
    name = f"{fault.victim} {fault.kind} before turn {fault.turn + 1}"
    found = []
    with worker() as environment:
        judged = hostile_cases.Judged(environment)
        family = set(processes.family(environment.supervisor))
        hit = _play(judged, f"{id}-struck", lambda: fault.inject(environment.supervisor), fault.turn)
        if hit.valid and hit.reward < 1.0:
            found.append(Violation("forged", id, f"{name}: an honest episode is charged ({_ending(hit)})"))
        if not _recovered(judged, id):
            found.append(Violation("lost", id, f"{name}: no honest episode can be played any more"))
        family |= set(processes.family(environment.supervisor))
    if left := _left(sorted(family)):
        found.append(Violation("leaked", id, f"{name}: processes {left} stay"))
    return found


def _recovered(judged: hostile_cases.Judged, id: str) -> bool:
    """Whether an honest episode earns its reward again within 20 s, as stopped processes are continued."""
    until = time.monotonic() + 20.0
    while time.monotonic() < until:
        after = _play(judged, f"{id}-after", lambda: None, 99)
        if after.valid and after.reward == 1.0:
            return True
        time.sleep(0.2)
    return False


def _left(pids: list[int]) -> list[int]:
    """The processes that still run after 10 s."""
    until = time.monotonic() + 10.0
    while left := [pid for pid in pids if pid in processes.family(os.getpid())]:
        if time.monotonic() > until:
            return left
        time.sleep(0.05)
    return []


def _play(judged: hostile_cases.Judged, label: str, strike: Callable[[], None], at: int) -> Trajectory:
    """Plays an honest episode; calls `strike` once, before the turn `at`."""
    strikes = iter([strike])

    class Honest:
        def __call__(self, session: str, seed: tuple[int, ...]) -> Callable[[Episode, tuple[Message, ...]], Turn]:
            actions = [hostile_cases.say("nothing"), hostile_cases.say("nothing"), hostile_cases.say("right")]
            turns = iter(enumerate(actions))

            def act(episode: Episode, messages: tuple[Message, ...]) -> Turn:
                for number, action in turns:
                    if number == at:
                        next(strikes, lambda: None)()
                    return Turn(action)
                raise OutOfContext

            return act

        def release(self, session: str) -> None:
            pass

    limits = Limits(max_turns=3, environment_deadline=60.0, error_rate=1.0, concurrency=1)
    (group,) = EpisodeCollector(Honest(), judged, limits).collect([hostile_cases.task()], seed=(0,), label=label)
    return group.trajectories[0]


def _ending(trajectory: Trajectory) -> str:
    return f"{trajectory.outcome}, reward {trajectory.reward:g}: {trajectory.error}"[:300]
