"""Episodes that take their tasks' solutions, here and on the nodes of a cluster, one of which may die meanwhile."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence

from patience import patience
from ray_nodes import RayNodes

from cojax.environment import Actor, Environment, Episode
from cojax.environment.replay import follow
from cojax.rollout.collect import EpisodeCollector, Limits
from cojax.types import Message, Task, Trajectory, Turn
from environments.cluster import ClusterEnvironment


def until(condition: Callable[[], bool], timeout_s: float = 200.0) -> None:
    """Waits for an event that another process brings about."""
    deadline = time.monotonic() + patience(timeout_s)
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


class Solving:
    """Actors that take their task's solution; `begun` is called before the first action of an episode."""

    def __init__(self, tasks: Sequence[Task], begun: Callable[[Episode], None] = lambda episode: None) -> None:
        self.solutions = {int(task.id, 16): task.solution for task in tasks}
        self.begun = begun

    def __call__(self, session: str, seed: tuple[int, ...]) -> Actor:
        actions, first = follow(self.solutions[seed[-2]]), [True]

        def act(episode: Episode, messages: tuple[Message, ...]) -> Turn:
            if first.pop() if first else False:
                self.begun(episode)
            return actions(episode, messages)

        return act

    def release(self, session: str) -> None:
        pass


def collected(environment: Environment, tasks: Sequence[Task], actors: Solving, **limits: float) -> list[Trajectory]:
    given = {"concurrency": 16, "error_rate": 0.0, **limits}
    groups = EpisodeCollector(actors, environment, Limits(**given)).collect(tasks, seed=(0,), label="t")
    return [untimed(trajectory) for group in groups for trajectory in group.trajectories]


def untimed(trajectory: Trajectory) -> Trajectory:
    turns = tuple(dataclasses.replace(turn, environment_seconds=0.0) for turn in trajectory.turns)
    return dataclasses.replace(trajectory, turns=turns)


def collected_with_a_loss(
    nodes: RayNodes, environment: ClusterEnvironment, tasks: Sequence[Task]
) -> tuple[list[Trajectory], int]:
    """What is collected though a node dies in the middle, and how many episodes were under way there."""
    episodes_before_loss, has_killed, struck_episode_ids = threading.Semaphore(len(tasks) // 2), threading.Event(), []
    lock = threading.Lock()
    (victim, *_) = environment.nodes.live

    def on_begin(episode: Episode) -> None:
        if episodes_before_loss.acquire(blocking=False):
            return
        with lock:
            if not has_killed.is_set() and episode.server is victim:
                nodes.kill(victim.id)
                struck_episode_ids.extend(victim.open_episode_ids)
                has_killed.set()
        assert has_killed.wait(patience(200))

    trajectories = collected(environment, tasks, Solving(tasks, on_begin))
    assert has_killed.is_set()
    assert victim.loss
    return trajectories, len(struck_episode_ids)
