"""What the loop is made of: the parts, which stay, and the state, which changes."""

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
    """Everything that changes. `evolved` is the step of the last evolution, `pending` the signals since; `waiting` are
    the next step's groups, where they were sampled ahead. `record` is what is known of this step while its evolution
    is still to come: it was stopped there."""

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
    """Everything that does not: the parts, and the paper's settings (Table 9) by their names.

    `evolve` is an entry of `synthesis.EVOLUTIONS`; every `evolve_every` steps it prepares at most `contexts`
    expeditions, of which at most `budget` tasks come back, `per_context` from each. `select` is an entry of
    `synthesis.SELECTIONS`; what `kin` finds worded like a task in the pool is refused. `fresh_fraction` of a batch is
    drawn from the newest tasks (0 is the paper), the others by `curriculum`, an entry of `curriculum.CURRICULA`, from
    what the detector `visits` remembers; None draws all alike (the paper).

    `detectors` look at every step; those of them that raise signals are `kinds`, by their names.

    `quality` is what the record of an evolution says of the pool after it.

    `staleness` is by how many updates the weights that sample may be behind those that learn: with 1, the next step's
    groups are sampled while this step's update runs. An update waits for the share `quorum` of each group. With
    `evolve_beside`, an evolution runs while the next step trains, and its tasks come one step later; at the last step,
    which none follows, it does not.

    With `dynamic_sampling` tasks are sampled until `batch_size` groups are live, or that many groups were, and the
    update learns from the live ones alone; 0 is off.

    Steps play at most `episodes` together, whole groups; those for which none are left learn nothing. 0 is any number.
    They are counted by the detector `played`.
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
            raise ValueError(f"staleness is {self.staleness}; expected 0, or 1: rollouts run one step ahead of updates")
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
