"""The threads that play episodes, and the watch over their deadlines.

Every episode runs on a daemon thread of its own. A thread whose environment or engine overruns its deadline is
abandoned and the episode counts by where it hung; a lost episode is played again with the same seeds, so that only
what happens twice is put down to the policy.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence

from cojax.environment import Abandoned, Environment, Progress, play, running, runs_policy_code
from cojax.host.deadlines import ADVICE
from cojax.rollout.chat import Actors
from cojax.types import INFRASTRUCTURE, Outcome, Task, Trajectory

_LOG = logging.getLogger(__name__)
# A hang inside `step` is, when it happens twice, the action's doing; elsewhere it is the machinery's.
_WHERE_IT_HUNG: dict[str, Outcome] = {"act": "engine_error", "step": "timeout"}
# Where an environment runs what a policy wrote, a hanging verdict too may be its doing.
_WHERE_CODE_HUNG: dict[str, Outcome] = {**_WHERE_IT_HUNG, "evaluate": "timeout"}
# Seconds between two looks at the deadlines.
_WATCH_EVERY = 0.05


class RolloutStopped(RuntimeError):
    """Nobody wants the episodes any more."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """What one episode may take, and how much loss a step bears.

    `environment_deadline` bounds one call of the environment and `engine_deadline` one completion, in seconds in which
    this process ran; `retries` is how often an episode lost to the machinery is played again (one that hung always is,
    once); `error_rate` is the share of lost episodes above which `collect` raises.
    """

    max_turns: int = 30
    environment_deadline: float = 60.0
    engine_deadline: float = 600.0
    retries: int = 1
    error_rate: float = 0.3
    concurrency: int = 128


@dataclasses.dataclass
class Job:
    """One episode to play: its place among the results, and the attempt under way."""

    index: int
    task: Task
    episode: str
    seed: tuple[int, ...]
    attempt: int = 0
    lost: int = 0  # attempts that the machinery lost
    hung: bool = False  # an attempt before was lost by what may be the policy's doing
    progress: Progress = dataclasses.field(default_factory=Progress)

    @property
    def session(self) -> str:
        return f"{self.episode}-{self.attempt}"


class EpisodeThreads:
    """The threads, by what they play and how; for one `play`."""

    def __init__(
        self,
        actors: Actors,
        environment: Environment,
        limits: Limits,
        on_episode: Callable[[Trajectory], None],
    ):
        self.actors, self.environment = actors, environment
        self.limits, self.on_episode = limits, on_episode
        self.charged = runs_policy_code(environment)
        self.todo: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.done: queue.SimpleQueue[tuple[Job, Progress, Trajectory | BaseException]] = queue.SimpleQueue()
        self.running: dict[int, Job] = {}
        self.lock = threading.Lock()
        self.threads = 0
        self.dismissed = False

    def play(
        self,
        jobs: Sequence[Job],
        results: dict[int, Trajectory],
        enough: Callable[[Mapping[int, Trajectory]], bool],
        stop: Callable[[], bool],
    ) -> list[Trajectory]:
        """Plays every job that is not among the `results`, which it fills, to its end, or until `enough` of them are
        in; the trajectories in the order of the jobs."""
        left = [job for job in jobs if job.index not in results]
        for job in left:
            self.todo.put(job)
        for _ in range(min(len(left), self.limits.concurrency)):
            self._hire()
        try:
            while len(results) < len(jobs) and not enough(results):
                if stop():
                    raise RolloutStopped(f"stopped with {len(results)} of {len(jobs)} episodes played")
                self._receive(results)
        finally:
            self._dismiss()
        return [results.get(job.index) or _cut(job) for job in jobs]

    def _receive(self, results: dict[int, Trajectory]) -> None:
        """Waits a moment for what comes next; a result that stands goes into `results`."""
        try:
            job, progress, result = self.done.get(timeout=_WATCH_EVERY)
        except queue.Empty:
            self._watch()
            return
        if progress is not job.progress:
            return
        if isinstance(result, BaseException):
            raise result
        if self._again(job, result):
            return
        results[job.index] = result
        self.on_episode(result)

    def _again(self, job: Job, result: Trajectory) -> bool:
        """Plays a lost episode once more, with the same seeds: a hanging one once, as only what comes again is put down
        to the policy, one that the machinery lost while retries are left."""
        if result.outcome == "timeout":
            if job.hung:
                return False
            job.hung = True
        elif result.outcome in INFRASTRUCTURE and job.lost < self.limits.retries:
            job.lost += 1
        else:
            return False
        _LOG.warning("episode %s lost (%s: %s); playing it again", result.episode, result.outcome, result.error)
        job.attempt += 1
        job.progress = Progress()
        self.todo.put(job)
        return True

    def _hire(self) -> None:
        self.threads += 1
        threading.Thread(target=self._work, name=f"episode-{self.threads}", daemon=True).start()

    def _work(self) -> None:
        while (job := self.todo.get()) is not None:
            progress, session = job.progress, job.session
            progress.since = running()
            with self.lock:
                if self.dismissed:
                    return
                self.running[job.index] = job
            try:
                result: Trajectory | BaseException = play(
                    self.environment,
                    job.task,
                    self.actors(session, job.seed),
                    max_turns=self.limits.max_turns,
                    episode=job.episode,
                    progress=progress,
                )
            except Abandoned:
                return
            except BaseException as bug:
                result = bug
            finally:
                self.actors.release(session)
            with self.lock:
                if progress.abandoned:
                    return
                self.running.pop(job.index, None)
            self.done.put((job, progress, result))

    def _watch(self) -> None:
        """Abandons the threads that overran a deadline and puts others in their place."""
        now = running()
        with self.lock:
            late = [job for job in self.running.values() if now - job.progress.since > self._deadline(job)]
            for job in late:
                job.progress.abandoned = True
                del self.running[job.index]
        for job in late:
            phase, progress = job.progress.phase, job.progress
            self.actors.release(job.session)
            self._hire()
            if progress.result is not None:  # only closing hangs: the verdict stands
                self.done.put((job, progress, progress.result))
                continue
            error = f"{phase} took longer than {self._deadline(job):g} s and was abandoned on its thread"
            if phase != "act":
                error += ADVICE
            where = _WHERE_CODE_HUNG if self.charged else _WHERE_IT_HUNG
            outcome: Outcome = where.get(phase, "environment_error")
            turns = tuple(progress.turns)
            lost = Trajectory(job.task, job.episode, progress.opening, turns, outcome=outcome, error=error)
            self.done.put((job, progress, lost))

    def _deadline(self, job: Job) -> float:
        return self.limits.engine_deadline if job.progress.phase == "act" else self.limits.environment_deadline

    def _dismiss(self) -> None:
        """Sends the threads home; those still at work are abandoned (nobody waits for them any more)."""
        with contextlib.suppress(queue.Empty):
            while True:
                self.todo.get_nowait()
        with self.lock:
            self.dismissed = True
            for job in self.running.values():
                job.progress.abandoned = True
            left = list(self.running.values())
        for job in left:
            self.actors.release(job.session)
        for _ in range(self.threads):
            self.todo.put(None)


def _cut(job: Job) -> Trajectory:
    """An episode that was not waited for, as far as it went."""
    seen = job.progress
    return Trajectory(job.task, job.episode, seen.opening, tuple(seen.turns), outcome="cut", error="not waited for")
