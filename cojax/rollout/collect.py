"""Tasks → groups: plays many episodes in parallel, each with deadlines and a typed outcome.

Every episode runs on a daemon thread. If its environment or engine exceeds a deadline, the thread is abandoned, and the
outcome of the episode follows from the phase in which it hung. A lost episode is played again with the same seeds: a
limit hit in `step` counts against the policy only if that happens twice. If the actions may have made the environment
fail in another way, those actions alone are played first. They are charged if that episode is lost too, while an
episode of the task without any action can be evaluated.
"""

import collections
import dataclasses
import itertools
import logging
import math
import queue
import types
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

from cojax.environment import HANG_ADVICE, Environment, Progress, play, running, runs_policy_code
from cojax.environment.replay import follow
from cojax.host.background import Interrupted, run_on_thread
from cojax.rollout.chat import Actors
from cojax.types import INFRASTRUCTURE, Action, Group, Outcome, Task, Trajectory

_LOG = logging.getLogger(__name__)
# Phase → outcome. A hang in `step` is attributed to the action if it happens twice, any other to the infrastructure.
_HANG_OUTCOMES: dict[str, Outcome] = {"act": "engine_error", "step": "timeout"}
# If an environment runs code that a policy wrote, that code may also make the evaluation hang.
_CODE_HANG_OUTCOMES: dict[str, Outcome] = {**_HANG_OUTCOMES, "evaluate": "timeout"}
_NO_EPISODES: Mapping[str, Trajectory] = types.MappingProxyType({})
# Seconds between two checks of the deadlines.
_CHECK_INTERVAL_S = 0.05


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of one episode, how many are played at once, and how many may be lost.

    `environment_deadline` bounds one call of the environment and `engine_deadline` one completion, in seconds; time in
    which this process was suspended, or the episode waited for a slot of the engine, does not count. `retries` is how
    often an episode lost to the infrastructure is played again. An episode that hung is always played again, once.
    `collect` raises if the share of lost episodes is above `error_rate`.
    """

    max_turns: int = 30
    environment_deadline: float = 60.0
    engine_deadline: float = 600.0
    retries: int = 1
    error_rate: float = 0.3
    concurrency: int = 128


@dataclasses.dataclass
class EpisodeRequest:
    """One episode to play: its index in the results, its seed, and the attempt under way.

    `lost_trajectory` is a lost attempt that its own actions may have caused, until further plays have decided that.
    `replayed_actions` are then the actions of the current play: those of the loss, or none. If it is None, the policy
    acts.
    """

    index: int
    task: Task
    episode: str
    seed: tuple[int, ...]
    attempt_number: int = 0
    loss_count: int = 0  # attempts lost to the infrastructure
    has_hung: bool = False  # an earlier attempt hung, possibly because of the policy's action
    progress: Progress = dataclasses.field(default_factory=Progress)
    lost_trajectory: Trajectory | None = None
    replayed_actions: tuple[Action, ...] | None = None

    @property
    def session_name(self) -> str:
        return f"{self.episode}-{self.attempt_number}"

    def to_trajectory(self, outcome: Outcome, error: str) -> Trajectory:
        """The turns so far, with an outcome that the episode itself did not reach."""
        turns, opening = tuple(self.progress.turns), self.progress.opening
        return Trajectory(self.task, self.episode, opening, turns, outcome=outcome, error=error)


@dataclasses.dataclass(eq=False)
class EpisodeThreads:
    """Plays episodes of one environment on threads; each object serves one call of `play`."""

    actors: Actors
    environment: Environment
    limits: Limits
    on_episode: Callable[[Trajectory], None]

    def __post_init__(self) -> None:
        self.policy_code = runs_policy_code(self.environment)  # a policy's code may make it hang
        self.waiting: collections.deque[EpisodeRequest] = collections.deque()
        self.running: dict[int, EpisodeRequest] = {}
        self.end_queue: queue.SimpleQueue[tuple[EpisodeRequest, Progress, Future[Trajectory]]] = queue.SimpleQueue()

    def play(
        self,
        jobs: Sequence[EpisodeRequest],
        result_by_index: dict[int, Trajectory],
        has_enough: Callable[[Mapping[int, Trajectory]], bool],
        should_stop: Callable[[], bool],
    ) -> list[Trajectory]:
        """Plays the jobs without a result until all have one, or `has_enough` says that the results suffice.

        Adds to `result_by_index`. Returns one trajectory for each job, in the order of the jobs. Episodes that were not
        waited for have the outcome `cut`. Raises Interrupted soon after `should_stop` turns true.
        """
        self.waiting.extend(job for job in jobs if job.index not in result_by_index)
        try:
            while len(result_by_index) < len(jobs) and not has_enough(result_by_index):
                if should_stop():
                    raise Interrupted(f"stopped with {len(result_by_index)} of {len(jobs)} episodes played")
                while self.waiting and len(self.running) < self.limits.concurrency:
                    self._start_episode(self.waiting.popleft())
                self._receive_result(result_by_index)
        finally:
            for job in list(self.running.values()):
                self._abandon_job(job)
        return [result_by_index.get(job.index) or job.to_trajectory("cut", "not waited for") for job in jobs]

    def _start_episode(self, job: EpisodeRequest) -> None:
        """Plays the episode on its own thread, which puts its future into `end_queue`."""
        progress, session, replayed_actions = job.progress, job.session_name, job.replayed_actions

        def play_episode() -> Trajectory:
            try:
                return play(
                    self.environment,
                    job.task,
                    self.actors(session, job.seed) if replayed_actions is None else follow(replayed_actions),
                    max_turns=self.limits.max_turns if replayed_actions is None else len(replayed_actions),
                    episode=job.episode,
                    progress=progress,
                )
            finally:
                self.actors.release(session)

        progress.since = running()
        self.running[job.index] = job
        future = run_on_thread(f"episode {session}", play_episode)
        future.add_done_callback(lambda future: self.end_queue.put((job, progress, future)))

    def _receive_result(self, result_by_index: dict[int, Trajectory]) -> None:
        """Waits a moment for an episode to end; if none does, looks for those that exceeded a deadline."""
        try:
            job, progress, future = self.end_queue.get(timeout=_CHECK_INTERVAL_S)
        except queue.Empty:
            self._abandon_late_jobs(result_by_index)
            return
        if not progress.is_abandoned:
            del self.running[job.index]
            self._record_result(job, future.result(), result_by_index)

    def _record_result(self, job: EpisodeRequest, result: Trajectory, result_by_index: dict[int, Trajectory]) -> None:
        """Adds the result to `result_by_index`, unless its episode is played again."""
        trajectory = self._attribute_loss(job, result)
        if trajectory is None or self._queue_retry(job, trajectory):
            return
        result_by_index[job.index] = trajectory
        self.on_episode(trajectory)

    def _attribute_loss(self, job: EpisodeRequest, result: Trajectory) -> Trajectory | None:
        """The result, a timeout if its actions made the environment fail; None while further plays must decide that."""
        is_suspicious = job.progress.is_suspect or (job.replayed_actions is not None and result.outcome == "timeout")
        if job.lost_trajectory is None:
            if is_suspicious:
                job.lost_trajectory = result
                self._queue_play(job, tuple(turn.action for turn in result.turns))
            return None if is_suspicious else result
        if job.replayed_actions and is_suspicious:
            self._queue_play(job, ())
            return None
        # If an episode without actions is `truncated`, it was evaluated.
        is_at_fault = job.replayed_actions == () and result.outcome == "truncated"
        lost_episode, job.lost_trajectory, job.replayed_actions = job.lost_trajectory, None, None
        if not is_at_fault:
            return lost_episode
        job.has_hung = True  # it was played again already
        _LOG.warning("episode %s is failed by its actions, which break it again (%s)", job.episode, lost_episode.error)
        return dataclasses.replace(lost_episode, outcome="timeout")

    def _queue_retry(self, job: EpisodeRequest, result: Trajectory) -> bool:
        """Plays a lost episode again with the same seeds. Returns False if the result is final.

        An episode that hung is played again once, so that a hang counts against the policy only if it is repeated. An
        episode lost to the infrastructure is played again while retries are left.
        """
        if result.outcome == "timeout":
            if job.has_hung:
                return False
            job.has_hung = True
        elif result.outcome in INFRASTRUCTURE and job.loss_count < self.limits.retries:
            job.loss_count += 1
        else:
            return False
        _LOG.warning("episode %s lost (%s: %s); playing it again", result.episode, result.outcome, result.error)
        job.attempt_number += 1
        self._queue_play(job, None)
        return True

    def _queue_play(self, job: EpisodeRequest, actions: tuple[Action, ...] | None) -> None:
        """Queues the episode to be played again, with these actions; with None the policy acts."""
        job.replayed_actions, job.progress = actions, Progress()
        self.waiting.append(job)

    def _abandon_job(self, job: EpisodeRequest) -> None:
        """Leaves the episode's thread behind: it ends at the next step of its loop, and its result is not read."""
        job.progress.is_abandoned = True
        del self.running[job.index]
        self.actors.release(job.session_name)

    def _abandon_late_jobs(self, result_by_index: dict[int, Trajectory]) -> None:
        """Abandons the episodes that exceeded a deadline; the outcome follows from the phase."""
        now_s = running()
        for job in [job for job in self.running.values() if now_s - job.progress.since > self._find_deadline(job)]:
            phase, progress = job.progress.phase, job.progress
            self._abandon_job(job)
            if progress.result is not None:  # it hangs in close(): its evaluation is already done and counts
                self._record_result(job, progress.result, result_by_index)
                continue
            error_text = f"{phase} took longer than {self._find_deadline(job):g} s and was abandoned on its thread"
            if phase != "act":
                error_text += HANG_ADVICE
            hang_outcomes = _CODE_HANG_OUTCOMES if self.policy_code else _HANG_OUTCOMES
            outcome: Outcome = hang_outcomes.get(phase, "environment_error")
            trajectory = job.to_trajectory(outcome, error_text)
            progress.is_suspect = phase == "evaluate" and outcome == "environment_error" and bool(trajectory.turns)
            self._record_result(job, trajectory, result_by_index)

    def _find_deadline(self, job: EpisodeRequest) -> float:
        return self.limits.engine_deadline if job.progress.phase == "act" else self.limits.environment_deadline


class RolloutError(RuntimeError):
    """More episodes were lost to infrastructure failures than the limits allow."""


@dataclasses.dataclass(frozen=True)
class EpisodeCollector:
    """Plays `group_size` episodes of each task in `environment` with `actors`, within `limits`.

    They are numbered from `first_sample` on. Once the share `quorum` of every group is played, the other episodes are
    abandoned: their outcome is `cut`, and no advantage counts them. Which episodes are cut depends on timing.
    """

    actors: Actors
    environment: Environment
    limits: Limits
    group_size: int = 1
    quorum: float = 1.0
    first_sample: int = 0

    def collect(
        self,
        tasks: Sequence[Task],
        *,
        seed: tuple[int, ...],
        label: str,
        known_episodes: Mapping[str, Trajectory] = _NO_EPISODES,
        on_episode: Callable[[Trajectory], None] = lambda trajectory: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> list[Group]:
        """The groups of the tasks, ordered by task and sample, never by arrival.

        The random numbers of an episode derive from (seed, task, sample, turn); its id is LABEL-TASK-SAMPLE. An episode
        whose id is in `known_episodes` is not played: its known trajectory is used. `on_episode` is called with each
        episode played, to show progress. Raises RolloutError, which names the commonest cause, if more than
        `limits.error_rate` of the episodes are lost, and Interrupted soon after `stop` turns true.
        """
        size = self.group_size
        sample_numbers = range(self.first_sample, self.first_sample + size)
        jobs = [
            EpisodeRequest(index, task, f"{label}-{task.id}-{sample}", (*seed, int(task.id, 16), sample))
            for index, (task, sample) in enumerate(itertools.product(tasks, sample_numbers))
        ]
        result_by_index = {job.index: known_episodes[job.episode] for job in jobs if job.episode in known_episodes}
        threads = EpisodeThreads(self.actors, self.environment, self.limits, on_episode)
        trajectories = threads.play(jobs, result_by_index, lambda results: self._has_enough(results, len(jobs)), stop)
        _check_error_rate(self.limits.error_rate, trajectories)
        return [Group(task, tuple(trajectories[index * size : (index + 1) * size])) for index, task in enumerate(tasks)]

    def _has_enough(self, results: Mapping[int, Trajectory], job_count: int) -> bool:
        """Whether every group has its quorum of valid episodes, or all of its episodes. Always false at quorum 1."""
        size = self.group_size
        quorum = math.ceil(self.quorum * size - 1e-9)
        groups = (
            [results[i] for i in range(start, start + size) if i in results] for start in range(0, job_count, size)
        )
        complete_flags = (sum(episode.valid for episode in group) >= quorum or len(group) == size for group in groups)
        return quorum < size and all(complete_flags)


def count_outcomes(trajectories: Sequence[Trajectory]) -> dict[str, int]:
    """How many episodes ended in each outcome."""
    return dict(sorted(collections.Counter(trajectory.outcome for trajectory in trajectories).items()))


def _check_error_rate(max_rate: float, trajectories: Sequence[Trajectory]) -> None:
    losses = [trajectory for trajectory in trajectories if not trajectory.valid and trajectory.outcome != "cut"]
    if len(losses) <= max_rate * len(trajectories):
        return
    cause_counts = collections.Counter(f"{loss.outcome}: {loss.error}" for loss in losses)
    cause, cause_count = cause_counts.most_common(1)[0]
    raise RolloutError(
        f"{len(losses)} of {len(trajectories)} episodes were lost to the machinery, more than the {max_rate:.0%} "
        f"that error_rate allows; {cause_count} of them by {cause}. Remove the cause or raise config.limits.error_rate."
    )
