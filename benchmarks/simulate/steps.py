"""Simulates training steps in the order of `cojax.coevolve`: what waits for what, and what runs beside what."""

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
    next_rollout: tuple[Groups, Played] | None = None
    due = False  # an evolution runs beside this step
    for step_index in range(1, steps + 1):
        groups, played = next_rollout or _play_step(system, rng)
        waited_s = 0.0 if next_rollout else played.seconds
        next_rollout = _play_step(system, rng) if system.staleness and step_index < steps else None
        update = system.update(rng, _count_learned_tokens(groups, played))
        evolution = system.evolution(rng) if due else 0.0
        # The block of the update ends with the last of what runs beside it.
        block = max(update, next_rollout[1].seconds if next_rollout else 0.0)
        is_late = max(0.0, evolution - block)
        evolves = step_index % system.evolve_every == 0
        due = evolves and system.evolve_beside and step_index < steps
        if evolves and not due:
            is_late += system.evolution(rng)
        episodes = sum(map(len, groups))
        simulated_steps.append(
            Step(
                rollout=waited_s + block - update,
                update=update,
                sync=system.sync(rng),
                evolution=is_late,
                host=system.host(rng, episodes),
                learned=played.finished,
                abandoned=episodes - played.finished,
                generating=played.engine / played.seconds if played.seconds else 0.0,
            )
        )
    return simulated_steps


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
