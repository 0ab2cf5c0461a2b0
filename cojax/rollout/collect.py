"""Tasks → groups: many episodes at once, each with deadlines and a typed outcome."""

from __future__ import annotations

import collections
import math
import types
from collections.abc import Callable, Mapping, Sequence

from cojax.environment import Environment
from cojax.rollout.chat import Actors, Chat, PolicyActors
from cojax.rollout.engine import Engine, Sampling
from cojax.rollout.episode_threads import EpisodeThreads, Job
from cojax.rollout.episode_threads import Limits as Limits  # callers take them from here
from cojax.rollout.episode_threads import RolloutStopped as RolloutStopped
from cojax.types import Group, Task, Trajectory

_NONE: Mapping[str, Trajectory] = types.MappingProxyType({})


class RolloutError(RuntimeError):
    """Too many episodes were lost to the machinery for the step to mean anything."""


def collect(
    engine: Engine,
    chat: Chat,
    environment: Environment,
    tasks: Sequence[Task],
    *,
    group_size: int,
    sampling: Sampling,
    seed: tuple[int, ...],
    label: str,
    limits: Limits,
    quorum: float = 1.0,
    on_episode: Callable[[Trajectory], None] = lambda trajectory: None,
    stop: Callable[[], bool] = lambda: False,
) -> list[Group]:
    """Has the policy that `engine` holds play `group_size` episodes of each task; see `gather`."""
    return gather(
        PolicyActors(engine, chat, sampling),
        environment,
        tasks,
        group_size=group_size,
        seed=seed,
        label=label,
        limits=limits,
        quorum=quorum,
        on_episode=on_episode,
        stop=stop,
    )


def gather(
    actors: Actors,
    environment: Environment,
    tasks: Sequence[Task],
    *,
    group_size: int,
    seed: tuple[int, ...],
    label: str,
    limits: Limits,
    quorum: float = 1.0,
    known: Mapping[str, Trajectory] = _NONE,
    on_episode: Callable[[Trajectory], None] = lambda trajectory: None,
    stop: Callable[[], bool] = lambda: False,
) -> list[Group]:
    """Has `actors` play `group_size` episodes of each task; groups are ordered by task and sample, never by arrival.

    The random numbers of an episode derive from (seed, task, sample, turn); its id is LABEL-TASK-SAMPLE. Once the share
    `quorum` of every group is in, the others are cut: their outcome is `cut`, which no advantage counts, and which of
    them it hits is a matter of time. `on_episode` is called with each finished one, for progress. Raises RolloutError,
    which names the commonest cause, when more than `limits.error_rate` of them are lost, RolloutStopped soon after
    `stop` turns true. Episodes that are `known` by their id are taken as they are instead of played.
    """
    jobs = [
        Job(place * group_size + sample, task, f"{label}-{task.id}-{sample}", (*seed, int(task.id, 16), sample))
        for place, task in enumerate(tasks)
        for sample in range(group_size)
    ]
    needed = math.ceil(quorum * group_size - 1e-9)

    def enough(results: Mapping[int, Trajectory]) -> bool:
        return needed < group_size and all(
            sum(trajectory.valid for trajectory in found) >= needed or len(found) == group_size
            for found in (
                [results[index] for index in range(start, start + group_size) if index in results]
                for start in range(0, len(jobs), group_size)
            )
        )

    played = {job.index: known[job.episode] for job in jobs if job.episode in known}
    trajectories = EpisodeThreads(actors, environment, limits, on_episode).play(jobs, played, enough, stop)
    _raise_above(limits.error_rate, trajectories)
    return [
        Group(task, tuple(trajectories[place * group_size : (place + 1) * group_size]))
        for place, task in enumerate(tasks)
    ]


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
        f"error_rate allows; {count} of them by {cause}. Mend that, or raise config.limits.error_rate."
    )
