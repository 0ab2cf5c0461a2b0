"""`play` and `ask` under deadlines, for actors that run in the caller's thread: explorers and validation."""

import dataclasses
from collections.abc import Callable
from concurrent.futures import wait
from typing import Any, TypeVar

from cojax.environment import Actor, Environment, EnvironmentFailure, Progress, ask, play, running
from cojax.host.background import on_thread
from cojax.types import Task, Trajectory

_T = TypeVar("_T")

# Seconds in which an environment must say what it offers. An actor that asks may be allowed more time for its action
# than that, so that the watch over its episode would notice a hanging environment too late.
PATIENCE = 60.0
ADVICE = "; run this environment isolated in a worker, where it can be killed"


@dataclasses.dataclass(frozen=True)
class WatchedPlay:
    """Plays on a daemon thread and gives it up when one call of the environment takes longer than `deadline` seconds.

    `thinking` is how many seconds an actor may take for one action. None is `deadline`, for an actor that does little
    but ask the environment what it may do. What hangs becomes the outcome environment_error, wherever it hangs: an
    explorer's action is no policy's failure. The thread is abandoned, as Python cannot end it, and stops at the next
    step of the loop.
    """

    deadline: float
    thinking: float | None = None

    def _limit(self, phase: str) -> float:
        return self.thinking if phase == "act" and self.thinking is not None else self.deadline

    def __call__(self, environment: Environment, task: Task, act: Actor, **settings: Any) -> Trajectory:
        """As `play`, which takes the same `settings`."""
        progress = Progress(since=running())
        played = on_thread("watched", lambda: play(environment, task, act, progress=progress, **settings))
        while not played.done():
            # Another phase may begin while this waits, and its limit may be nearer.
            patience = min(self.deadline, progress.since + self._limit(progress.phase) - running())
            wait([played], max(0.001, patience))
            limit = self._limit(progress.phase)
            if not played.done() and running() - progress.since > limit:
                progress.abandoned = True
                if progress.result is not None:  # only closing hangs: the verdict stands
                    return progress.result
                error = f"{progress.phase} took longer than {limit:g} s and was abandoned on its thread{ADVICE}"
                return Trajectory(task, outcome="environment_error", error=error)
        return played.result()


def ask_within(seconds: float, call: Callable[[], _T]) -> _T:
    """What the environment answers. Raises EnvironmentFailure where it fails, or takes longer than that."""
    answer = on_thread("asked", lambda: ask(call))
    until = running() + seconds
    while not wait([answer], max(0.001, until - running())).done:
        if running() >= until:
            raise EnvironmentFailure(f"what the environment offers was not said within {seconds:g} s{ADVICE}")
    return answer.result()
