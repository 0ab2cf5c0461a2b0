"""What the loop is made of: `Loop` holds the parts, which never change, and `State` all that changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cojax.curriculum import Curriculum
from cojax.environment import Environment
from cojax.explorer import Explorer
from cojax.learner.learner import Learner
from cojax.learner.train_state import TrainState
from cojax.metrics import Stopwatch
from cojax.pool import TaskPool
from cojax.rollout.chat import Chat
from cojax.rollout.collect import Limits
from cojax.rollout.engine import Engine, Sampling
from cojax.signals import Detector, Memory, SignalKind
from cojax.synthesis import EvolutionInputs, Expedition, Validate
from cojax.synthesis.selection import Select, even
from cojax.types import Group, Signal
from cojax.validation.similarity import NearDuplicates


@dataclasses.dataclass(frozen=True)
class State:
    """Everything that changes from step to step.

    `evolved` is the step of the last evolution, and `pending` are the signals since then. `waiting` are the next step's
    groups, where they were sampled ahead. `record` is the record so far of a step that was stopped in its evolution,
    which begins again when the run goes on; None otherwise.
    """

    step: int
    learner: TrainState
    pool: TaskPool
    memory: Memory
    pending: tuple[Signal, ...] = ()
    evolved: int = 0
    waiting: tuple[Group, ...] = ()
    record: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class Loop:
    """Everything that stays: the parts, and the paper's settings (Table 9) by their names.

    Evolution: `evolve` is an entry of `synthesis.EVOLUTIONS`. Every `evolve_every` steps it prepares at most `contexts`
    expeditions, which bring back at most `budget` tasks together and `per_context` each. `select` is an entry of
    `synthesis.SELECTIONS`. A draft that `near_duplicates` finds worded like a task in the pool is refused. `quality`
    measures the pool after an evolution, for the step's record.

    Tasks: the share `fresh_fraction` of a batch is drawn from the newest tasks (0 in the paper). `curriculum`, an entry
    of `curriculum.CURRICULA`, weighs the other tasks by the scores that the detector `visits` remembers; None weighs
    all alike (the paper). With `dynamic_sampling` above 0, tasks are sampled until `batch_size` groups are live or
    `dynamic_sampling` groups were sampled, and the update learns from the live groups alone.

    Signals: `detectors` see the groups of every step. `kinds` are those detectors that raise signals, by name.

    Time: `staleness` is by how many updates the sampling weights may be behind the learning ones. With 1, the next
    step's groups are sampled while this step's update runs. An update waits for the share `quorum` of each group. With
    `evolve_beside`, an evolution runs while the next step trains, and its tasks come one step later; at the last step,
    which no step follows, it does not.

    The steps of a run play at most `episodes` episodes together, in whole groups; 0 is any number. Steps for which none
    are left learn nothing. The detector `played` counts them. `score` gives a step's development score, None where the
    step has none.
    """

    environment: Environment
    engine: Engine
    chat: Chat
    learner: Learner
    explorer: Explorer
    validate: Validate
    detectors: Mapping[str, Detector]
    evolve: Callable[[EvolutionInputs], Iterator[Expedition]]
    popularity: Mapping[str, float] | None
    sampling: Sampling
    limits: Limits
    clock: Stopwatch
    seed: int
    steps: int
    batch_size: int
    group_size: int
    evolve_every: int
    fresh_fraction: float
    contexts: int
    budget: int
    per_context: int
    checkpoint_every: int
    staleness: int = 0
    quorum: float = 1.0
    evolve_beside: bool = False
    curriculum: Curriculum | None = None
    dynamic_sampling: int = 0
    episodes: int = 0
    kinds: Mapping[str, SignalKind] = dataclasses.field(default_factory=dict)
    select: Select = even
    near_duplicates: NearDuplicates = dataclasses.field(default_factory=lambda: NearDuplicates(0.0))
    score: Callable[[int], Mapping[str, float] | None] = lambda step: None
    quality: Callable[[TaskPool], Mapping[str, Any]] = lambda pool: {}

    def __post_init__(self) -> None:
        if self.staleness not in (0, 1):
            raise ValueError(f"staleness is {self.staleness}; expected 0, or 1 for rollouts one step ahead of updates")
        if not 0.0 < self.quorum <= 1.0:
            raise ValueError(f"quorum is {self.quorum}; expected a share above 0, at most 1, of each group")
        if self.dynamic_sampling and (self.dynamic_sampling < self.batch_size or self.quorum < 1.0):
            raise ValueError(
                f"dynamic_sampling is {self.dynamic_sampling} with batch_size={self.batch_size} and "
                f"quorum={self.quorum}; expected 0, or at least batch_size groups and a quorum of 1"
            )
        if self.episodes and (self.staleness or "played" not in self.detectors):
            raise ValueError(
                f"episodes is {self.episodes} with staleness={self.staleness} and the detectors "
                f"{', '.join(self.detectors) or 'none'}; expected 0, or a staleness of 0 and the detector played"
            )
