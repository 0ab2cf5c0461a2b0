"""The groups of a step: which tasks it draws, and the episodes played of each."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cojax.curriculum import weighed
from cojax.host.background import in_background
from cojax.loop import Loop, State
from cojax.rollout.collect import collect
from cojax.types import Group, Signal, Task


class Played:
    """Counts, as a detector that signals nothing, the episodes of all steps so far."""

    def init(self) -> dict[str, Any]:
        return {"episodes": 0}

    def update(self, memory: Mapping[str, Any], groups: Sequence[Group]) -> tuple[dict[str, Any], list[Signal]]:
        return {"episodes": memory["episodes"] + sum(len(group.trajectories) for group in groups)}, []


def rollout(loop: Loop, state: State, step: int) -> list[Group]:
    """The groups of a step."""
    with time_rollout(loop):
        return refilled(loop, state, step, draw(loop, state, step))


@contextlib.contextmanager
def ahead(loop: Loop, state: State, step: int) -> Iterator[list[Group]]:
    """Samples the groups of `step` on a thread beside the block; the list yielded is filled when the block is left.

    It stays empty where rollouts do not run ahead, and at the end. A block that fails is not waited for.
    """
    groups: list[Group] = []
    if not loop.staleness or step > loop.steps:
        yield groups
        return
    tasks = draw(loop, state, step)
    with in_background("ahead", lambda unwanted: refilled(loop, state, step, tasks, unwanted)) as sampled:
        yield groups
        with time_rollout(loop):
            groups += sampled.result()


def refilled(
    loop: Loop, state: State, step: int, tasks: Sequence[Task], stop: Callable[[], bool] = lambda: False
) -> list[Group]:
    """The groups of these tasks and, with dynamic sampling, of further ones: until `batch_size` groups are live, so
    many were sampled, the run's episodes are used up, or the pool has no other task (DAPO, arXiv 2503.14476, §3.2). The
    engine's weights are those of the first."""
    groups, refill = sample(loop, tasks, step, stop), 0
    while (wanted := _wanted(loop, state, groups)) > 0:
        refill += 1
        known = {group.task.id for group in groups}
        further = [task for task in draw(loop, state, step, refill) if task.id not in known]
        if not further:
            break
        groups += sample(loop, further[:wanted], step, stop)
    return groups


def _wanted(loop: Loop, state: State, groups: Sequence[Group]) -> int:
    """How many more groups to sample; none below 1."""
    missing = loop.batch_size - sum(group.live for group in groups)
    return min(missing, min(loop.dynamic_sampling, left(loop, state)) - len(groups))


def left(loop: Loop, state: State) -> int:
    """How many groups the run may still sample, `state` being that before the step."""
    if not loop.episodes:
        return sys.maxsize
    return (loop.episodes - state.memory["played"]["episodes"]) // loop.group_size


def taught(loop: Loop, groups: Sequence[Group]) -> tuple[Sequence[Group], Sequence[int]]:
    """The groups that a step learns from, and the sizes of those that it may have, () where it has them all.

    With dynamic sampling they are those alone that are live, so that the mean over groups is over them.
    """
    room = [loop.group_size] * loop.batch_size if loop.dynamic_sampling or loop.episodes else ()
    return [group for group in groups if group.live] if loop.dynamic_sampling else groups, room


def draw(loop: Loop, state: State, step: int, refill: int = 0) -> tuple[Task, ...]:
    """The tasks of a step; decided by its number, the pool and, with a curriculum, how tasks went so far. Those of a
    refill are as many as it may take to find others. None once the run's episodes are used up."""
    wants, seen = loop.curriculum, state.memory.get("visits", {})
    weight = (lambda id: weighed(wants, seen.get(id, ()))) if wants else None
    seed = loop.seed, step - 1
    if not refill:
        return state.pool.sample(min(loop.batch_size, left(loop, state)), seed, loop.fresh_fraction, weight)
    return state.pool.sample(
        loop.dynamic_sampling + loop.batch_size, (*seed, "refill", refill), loop.fresh_fraction, weight
    )


def sample(loop: Loop, tasks: Sequence[Task], step: int, stop: Callable[[], bool] = lambda: False) -> list[Group]:
    """The episodes played of each task; decided by the seed and the step alone."""
    if not tasks:
        return []
    seed = loop.seed, step - 1
    return collect(
        loop.engine,
        loop.chat,
        loop.environment,
        tasks,
        group_size=loop.group_size,
        sampling=loop.sampling,
        seed=seed,
        label=str(step),
        limits=loop.limits,
        quorum=loop.quorum,
        stop=stop,
    )


@contextlib.contextmanager
def time_rollout(loop: Loop) -> Iterator[None]:
    """Charges the engine's time within the block to generation, the rest of the wall time to the environment."""
    busy = loop.engine.busy_seconds
    with loop.clock("environment"):
        yield
    loop.clock.move("environment", "generation", loop.engine.busy_seconds - busy)
