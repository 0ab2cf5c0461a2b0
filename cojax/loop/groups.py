"""The groups of a step: draws its tasks and plays the episodes of each."""

import contextlib
import dataclasses
import functools
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cojax.loop import Loop, State
from cojax.pool import weigh_task
from cojax.rollout.chat import PolicyActors
from cojax.rollout.collect import EpisodeCollector
from cojax.rollout.step_queue import StepQueue
from cojax.signals.kinds import task_of
from cojax.types import Group, Signal, Task

# Keeps the random numbers of probes apart from those of training, whose seeds are one number shorter.
_PROBE_SEED = 1


class PlayedCount:
    """A statistic: the numbers of training episodes so far, and of their environment steps."""

    def init(self) -> dict[str, Any]:
        return {"episodes": 0, "environment_steps": 0}

    def update(self, memory: Mapping[str, Any], groups: Sequence[Group]) -> tuple[dict[str, Any], list[Signal]]:
        episodes = [trajectory for group in groups for trajectory in group.trajectories]
        return {
            "episodes": memory["episodes"] + len(episodes),
            "environment_steps": memory["environment_steps"] + sum(len(trajectory.turns) for trajectory in episodes),
        }, []


def open_queue(loop: Loop, state: State) -> StepQueue:
    """The queue of the steps after `state`, with the groups that wait in it."""
    queue = StepQueue(loop.engine, state.step, loop.mixed, functools.partial(time_rollout, loop))
    for groups in state.waiting:
        queue.order(functools.partial(lambda groups, stop: groups, groups))
    loop.clock.count("trainer_waited", lambda: queue.waits.total_seconds)
    loop.clock.count("sampler_waited", lambda: time.perf_counter() - queue.samples.total_seconds)
    return queue


def order_steps(loop: Loop, queue: StepQueue, state: State) -> None:
    """Orders the steps that are due the weights and the tasks of `state`: those up to `staleness` after the next one.

    So step t has weights and tasks of step max(0, t − 1 − staleness), however fast the trainer is. A run that goes on
    beyond its last step begins as at step 0.
    """
    # Later steps change the memories in place while these steps are played.
    names = {"prefixes", "visits"} if loop.dynamic_sampling else {"prefixes"}
    copies = {name: dict(state.memory[name]) for name in names & state.memory.keys()}
    state = dataclasses.replace(state, memory={**state.memory, **copies})
    for step in range(queue.last_step + 1, min(state.step + 1 + loop.staleness, loop.steps) + 1):
        queue.order(functools.partial(_play_and_refill, loop, state, step, draw_tasks(loop, state, step)))


def _play_and_refill(
    loop: Loop, state: State, step: int, tasks: Sequence[Task], stop: Callable[[], bool]
) -> list[Group]:
    """Plays these tasks and, with dynamic sampling, further ones (DAPO, arXiv 2503.14476, §3.2).

    Tasks are added until `batch_size` groups are live, `dynamic_sampling` groups have been sampled, the run's episodes
    are used up, or the pool has no other task. All groups are sampled from the same weights.
    """
    groups, refill_number = _play_groups(loop, tasks, step, range(loop.group_size), stop, state.memory), 0
    while (missing_count := _count_missing(loop, state, groups)) > 0:
        refill_number += 1
        task_ids = {group.task.id for group in groups}
        new_tasks = [task for task in draw_tasks(loop, state, step, refill_number) if task.id not in task_ids]
        if not new_tasks:
            break
        tasks = new_tasks[:missing_count]
        groups += _play_groups(loop, tasks, step, range(loop.group_size), stop, state.memory)
    return groups


def _count_missing(loop: Loop, state: State, groups: Sequence[Group]) -> int:
    """How many more groups to sample; 0 or a negative number means none."""
    missing_count = loop.batch_size - sum(group.live for group in groups)
    return min(missing_count, min(loop.dynamic_sampling, count_groups_left(loop, state)) - len(groups))


def count_groups_left(loop: Loop, state: State) -> int:
    """How many groups the run may still sample; `state` is the state before the step."""
    if loop.environment_steps and state.memory["played"]["environment_steps"] >= loop.environment_steps:
        return 0
    if not loop.episodes:
        return sys.maxsize
    return (loop.episodes - state.memory["played"]["episodes"]) // loop.group_size


def select_learnable(loop: Loop, groups: Sequence[Group]) -> tuple[Sequence[Group], Sequence[int]]:
    """The groups that a step learns from, and the group sizes of the largest batch that a step may have.

    With dynamic sampling a step learns only from live groups, so means are taken over those alone. The sizes are () if
    every batch is as large as this one.
    """
    sizes_vary = loop.dynamic_sampling or loop.episodes or loop.environment_steps
    group_sizes = [loop.group_size] * loop.batch_size if sizes_vary else ()
    return [group for group in groups if group.live] if loop.dynamic_sampling else groups, group_sizes


def draw_tasks(loop: Loop, state: State, step: int, refill_number: int = 0) -> tuple[Task, ...]:
    """Draws the tasks of a step; with `refill_number` above 0, those of the step's refill of that number.

    They depend only on the step's number and the pool, and with a curriculum also on past scores. A refill draws enough
    tasks that some of them are new. There are none once the run's episodes or environment steps are used up.
    """
    curriculum, scores = loop.curriculum, state.memory.get("visits", {})
    weigh = (lambda task_id: weigh_task(curriculum, scores.get(task_id, ()))) if curriculum else None
    seed: tuple = (loop.seed, step - 1)
    if refill_number:
        task_count, seed = loop.dynamic_sampling + loop.batch_size, (*seed, "refill", refill_number)
    else:
        task_count = min(loop.batch_size, count_groups_left(loop, state))
    return loop.draw(state.pool, task_count, seed, loop.fresh_fraction, weigh)


def play_tasks(loop: Loop, tasks: Sequence[Task], step: int, samples: range) -> list[Group]:
    """Plays the episodes numbered `samples` of each task, with the weights that the engine holds."""
    with time_rollout(loop):
        return _play_groups(loop, tasks, step, samples, lambda: False, {})


def _play_groups(
    loop: Loop, tasks: Sequence[Task], step: int, samples: range, stop: Callable[[], bool], memory: Mapping[str, Any]
) -> list[Group]:
    """Plays the episodes numbered `samples` of each task.

    Their random numbers depend only on the seed, the step and their numbers. The memory of the detector `prefixes`, if
    `memory` has it, decides what `loop.prefix` has them begin with.
    """
    prefix_memory, seed = memory.get("prefixes", {}), (loop.seed, step - 1)
    return _collect(loop, tasks, prefix_memory, loop.quorum, samples, seed=seed, label=str(step), stop=stop)


def probe_tasks(loop: Loop, tasks: Sequence[Task], step: int, attempts: int, stop: Callable[[], bool]) -> list[Group]:
    """Plays `attempts` episodes of each task with the weights that the engine holds; nothing is learned from them.

    Their random numbers differ from those of every step. They begin with the prefixes of the first training episodes.
    Raises Interrupted soon after `stop` turns true.
    """
    seed = (loop.seed, step, _PROBE_SEED)
    return _collect(loop, tasks, {}, 1.0, range(attempts), seed=seed, label=f"probe{step}", stop=stop)


def _collect(
    loop: Loop, tasks: Sequence[Task], prefix_memory: Mapping[str, Any], quorum: float, samples: range, **names: Any
) -> list[Group]:
    """Calls `EpisodeCollector.collect` with these tasks and `names`, if there is any task."""
    if not tasks:
        return []
    prefixes = {task.id: loop.prefix(task, prefix_memory) for task in tasks}
    actors = PolicyActors(loop.engine, loop.chat, loop.sampling, lambda session: prefixes.get(task_of(session), ()))
    collector = EpisodeCollector(
        actors, loop.environment, loop.limits, len(samples), quorum, first_sample=samples.start
    )
    return collector.collect(tasks, **names)


@contextlib.contextmanager
def time_rollout(loop: Loop) -> Iterator[None]:
    """Counts the engine's busy time within the block as generation, and the rest of the wall time as environment."""
    busy_s_before = loop.engine.busy_seconds
    with loop.clock("environment"):
        yield
    loop.clock.move("environment", "generation", loop.engine.busy_seconds - busy_s_before)
