"""Tasks → groups: plays many episodes in parallel, each with deadlines and a typed outcome."""

from __future__ import annotations

import collections
import dataclasses
import math
import types
from collections.abc import Callable, Mapping, Sequence

from cojax.environment import Environment
from cojax.rollout.chat import Actors
from cojax.rollout.episode_threads import EpisodeRequest, EpisodeThreads
from cojax.rollout.episode_threads import Limits as Limits  # callers take them from here
from cojax.rollout.episode_threads import RolloutStopped as RolloutStopped
from cojax.types import Group, Task, Trajectory

_NONE: Mapping[str, Trajectory] = types.MappingProxyType({})


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
        known: Mapping[str, Trajectory] = _NONE,
        on_episode: Callable[[Trajectory], None] = lambda trajectory: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> list[Group]:
        """The groups of the tasks, ordered by task and sample, never by arrival.

        The random numbers of an episode derive from (seed, task, sample, turn); its id is LABEL-TASK-SAMPLE. An episode
        whose id is in `known` is not played: the known trajectory is used. `on_episode` is called with each episode
        played, to show progress. Raises RolloutError, which names the commonest cause, if more than `limits.error_rate`
        of the episodes are lost, and RolloutStopped soon after `stop` turns true.
        """
        size = self.group_size
        jobs = [
            EpisodeRequest(
                place * size + sample - self.first_sample,
                task,
                f"{label}-{task.id}-{sample}",
                (*seed, int(task.id, 16), sample),
            )
            for place, task in enumerate(tasks)
            for sample in range(self.first_sample, self.first_sample + size)
        ]
        played = {job.index: known[job.episode] for job in jobs if job.episode in known}
        threads = EpisodeThreads(self.actors, self.environment, self.limits, on_episode)
        trajectories = threads.play(jobs, played, lambda results: self._enough(results, len(jobs)), stop)
        _raise_above(self.limits.error_rate, trajectories)
        return [Group(task, tuple(trajectories[place * size : (place + 1) * size])) for place, task in enumerate(tasks)]

    def _enough(self, results: Mapping[int, Trajectory], jobs: int) -> bool:
        """Whether every group has its quorum of valid episodes, or all of its episodes. Always false at quorum 1."""
        size = self.group_size
        needed = math.ceil(self.quorum * size - 1e-9)
        return needed < size and all(
            sum(trajectory.valid for trajectory in found) >= needed or len(found) == size
            for found in (
                [results[index] for index in range(start, start + size) if index in results]
                for start in range(0, jobs, size)
            )
        )


def count_outcomes(trajectories: Sequence[Trajectory]) -> dict[str, int]:
    """How many episodes ended in each outcome."""
    return dict(sorted(collections.Counter(t.outcome for t in trajectories).items()))


def _raise_above(rate: float, trajectories: Sequence[Trajectory]) -> None:
    lost = [t for t in trajectories if not t.valid and t.outcome != "cut"]
    if len(lost) <= rate * len(trajectories):
        return
    causes = collections.Counter(f"{t.outcome}: {t.error}" for t in lost)
    cause, count = causes.most_common(1)[0]
    raise RolloutError(
        f"{len(lost)} of {len(trajectories)} episodes were lost to the machinery, more than the {rate:.0%} that "
        f"error_rate allows; {count} of them by {cause}. Remove the cause, or raise config.limits.error_rate."
    )
