"""`play` under a deadline, for actors that run in the caller's thread: explorers and validation."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from cojax.environment import Abandoned, Actor, Environment, EnvironmentFailure, Progress, ask, play, running
from cojax.types import Task, Trajectory

_T = TypeVar("_T")

# Seconds that an environment may take to say what it offers. An actor that asks may be one that thinks longer than
# that, so that whoever watches the episode would not notice in time.
PATIENCE = 60.0
ADVICE = "; run this environment isolated in a worker, where it can be killed"


@dataclasses.dataclass(frozen=True)
class Watched:
    """Plays on a daemon thread and gives it up when one call of the environment takes longer than `deadline` seconds.

    `thinking` is what an actor may take for one action, in seconds; None is `deadline`, for one that does little but
    ask the environment what it may do. What hangs becomes the outcome environment_error: an explorer's action is
    nobody's failure. The thread is abandoned, as Python cannot end it, and stops at the next step of the loop.
    """

    deadline: float
    thinking: float | None = None

    def _limit(self, phase: str) -> float:
        return self.thinking if phase == "act" and self.thinking is not None else self.deadline

    def __call__(self, environment: Environment, task: Task, act: Actor, **settings: Any) -> Trajectory:
        """As `play`, which takes the same `settings`."""
        progress = Progress(since=running())
        result: list[Trajectory | BaseException] = []

        def run() -> None:
            try:
                result.append(play(environment, task, act, progress=progress, **settings))
            except Abandoned:
                pass
            except BaseException as error:
                result.append(error)

        thread = threading.Thread(target=run, name="watched", daemon=True)
        thread.start()
        while thread.is_alive():
            # Another phase may begin meanwhile, whose limit is nearer.
            patience = min(self.deadline, progress.since + self._limit(progress.phase) - running())
            thread.join(max(0.001, patience))
            limit = self._limit(progress.phase)
            if thread.is_alive() and running() - progress.since > limit:
                progress.abandoned = True
                if progress.result is not None:  # only closing hangs: the verdict stands
                    return progress.result
                error = f"{progress.phase} took longer than {limit:g} s and was abandoned on its thread{ADVICE}"
                return Trajectory(task, outcome="environment_error", error=error)
        if isinstance(result[0], BaseException):
            raise result[0]
        return result[0]


def within(seconds: float, call: Callable[[], _T]) -> _T:
    """What the environment answers. Raises EnvironmentFailure where it fails, or takes longer than that."""
    answer: Future[_T] = Future()

    def work() -> None:
        try:
            answer.set_result(ask(call))
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=work, name="asked", daemon=True).start()
    until = running() + seconds
    while not wait([answer], max(0.001, until - running())).done:
        if running() < until:
            continue
        raise EnvironmentFailure(f"what it offers was not said within {seconds:g} s{ADVICE}")
    return answer.result()
