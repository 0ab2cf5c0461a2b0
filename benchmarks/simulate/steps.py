"""Simulates training steps in the order of `cojax.coevolve`: what waits for what, and what runs beside what."""

import collections
import dataclasses
import random
from collections.abc import Callable, Sequence

from benchmarks.simulate.rollout import Played, Rollout, Work
from benchmarks.simulate.servers import Server

Groups = Sequence[Sequence[Work]]


@dataclasses.dataclass(frozen=True)
class System:
    """What a step is made of; every cost is drawn anew for each step, in seconds.

    `groups` draws the episodes of a step. `rate` is the work a second of one of `servers` by its requests at once, at
    most `slots`, divided by a `pace` drawn for the step: a shared machine is slower at times. `update` is given
    the tokens that it learns from, and `host` the number of episodes: `host` is all that stands between two steps
    besides the parts that have names. The other settings are the loop's.
    """

    groups: Callable[[random.Random], Groups]
    rate: Callable[[float], float]
    servers: int
    conversations: int
    update: Callable[[random.Random, float], float]
    sync: Callable[[random.Random], float]
    evolution: Callable[[random.Random], float]
    host: Callable[[random.Random, int], float]
    pace: Callable[[random.Random], float] = lambda rng: 1.0
    slots: int = 1_000_000
    staleness: int = 0
    quorum: float = 1.0
    evolve_every: int = 10
    evolve_beside: bool = False


@dataclasses.dataclass(frozen=True)
class Step:
    """Seconds of a simulated step by what it waited for, and how many episodes it learned from and abandoned.

    `update` is the update itself. `rollout` and `evolution` are what the step waited for them apart from the update.
    `generating` is the share of the rollout's own seconds in which some server worked.
    """

    rollout: float
    update: float
    sync: float
    evolution: float
    host: float
    learned: int
    abandoned: int
    generating: float

    @property
    def seconds(self) -> float:
        return self.rollout + self.update + self.sync + self.evolution + self.host


def simulate_steps(system: System, steps: int, seed: int = 0) -> list[Step]:
    """So many steps from the start of a run; the same for the same seed."""
    rng = random.Random(seed)
    simulated_steps: list[Step] = []
    now_s, queue = 0.0, _Queue(system, rng)
    due = False  # an evolution runs beside this step
    for step_index in range(1, steps + 1):
        queue.order(now_s, min(step_index + system.staleness, steps))
        groups, played, sampled_s = queue.steps.popleft()
        update_start_s = max(now_s, sampled_s)
        update = system.update(rng, _count_learned_tokens(groups, played))
        evolution = system.evolution(rng) if due else 0.0
        # The trainer goes on once the update, the next step's rollout and what runs beside both have ended.
        update_end_s = update_start_s + update
        block_end_s = max(update_end_s, queue.steps[0][2] if queue.steps else 0.0)
        evolution_end_s = max(block_end_s, update_start_s + evolution)
        sync = queue.offer(evolution_end_s, system.sync(rng))
        evolution_s = evolution_end_s - block_end_s
        evolves = step_index % system.evolve_every == 0
        due = evolves and system.evolve_beside and step_index < steps
        if evolves and not due:
            # It may sample the policy, so it waits until the engine is free.
            drained_s = max(0.0, queue.free_s - evolution_end_s - sync) + queue.sync_s
            queue.sync_s = 0.0
            evolution_s += drained_s + system.evolution(rng)
        episodes = sum(map(len, groups))
        step = Step(
            rollout=update_start_s - now_s + block_end_s - update_end_s,
            update=update,
            sync=sync,
            evolution=evolution_s,
            host=system.host(rng, episodes),
            learned=played.finished,
            abandoned=episodes - played.finished,
            generating=played.engine / played.seconds if played.seconds else 0.0,
        )
        simulated_steps.append(step)
        now_s += step.seconds
    return simulated_steps


class _Queue:
    """As `cojax.rollout.step_queue`: it samples one step after another, each from the weights before its order.

    `steps` holds the groups of each step ordered, how they were played, and when they are sampled. The engine is free
    at `free_s`. It loads weights in the `sync_s` seconds before the next step if it was busy when they came.
    """

    def __init__(self, system: System, rng: random.Random) -> None:
        self.system, self.rng = system, rng
        self.steps: collections.deque[tuple[Groups, Played, float]] = collections.deque()
        self.last_step, self.free_s, self.sync_s = 0, 0.0, 0.0

    def order(self, now_s: float, last_step: int) -> None:
        """Orders the steps up to the last one."""
        for _ in range(last_step - self.last_step):
            groups, played = _play_step(self.system, self.rng)
            self.free_s, self.sync_s = max(now_s, self.free_s) + self.sync_s + played.seconds, 0.0
            self.steps.append((groups, played, self.free_s))
        self.last_step = last_step

    def offer(self, now_s: float, sync_s: float) -> float:
        """The seconds for which the trainer waits until weights are loaded."""
        if self.free_s <= now_s:
            self.sync_s = 0.0
            return sync_s
        self.sync_s = sync_s
        return 0.0


def _play_step(system: System, rng: random.Random) -> tuple[Groups, Played]:
    groups, pace = system.groups(rng), system.pace(rng)
    servers: list[Server[int]] = [
        Server(lambda requests: system.rate(requests) / pace, system.slots) for _ in range(system.servers)
    ]
    return groups, Rollout(groups, servers, system.conversations, system.quorum).play()


def _count_learned_tokens(groups: Groups, played: Played) -> float:
    """The tokens of the groups whose rewards differ, in proportion to the episodes that ended."""
    live = sum(work.tokens for group in groups for work in group if len({work.reward for work in group}) > 1)
    return live * played.finished / max(1, sum(map(len, groups)))
