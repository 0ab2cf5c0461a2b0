"""The loop's data: `Loop` holds the parts and settings that a run never changes, `State` what each step changes."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cojax.environment import Environment
from cojax.explorer import Explorer
from cojax.host.stopwatch import Stopwatch
from cojax.learner.learner import Learner
from cojax.learner.update import TrainState, join_states
from cojax.pool import Curriculum, TaskPool
from cojax.rollout.chat import Chat
from cojax.rollout.collect import Limits
from cojax.rollout.engine import Engine, Sampling
from cojax.signals import Detector, Memory, SignalKind
from cojax.synthesis import Admission, Evolve, Validate
from cojax.synthesis.evolutions import SignalSelector, even
from cojax.synthesis.pipeline import Predict
from cojax.types import Action, Group, Signal, Task

if TYPE_CHECKING:
    from cojax.similarity import NearDuplicates

# (task, the memory of the detector `prefixes`, {} before the first step) → the actions that its episodes begin with.
Prefix = Callable[[Task, Mapping[str, Any]], Sequence[Action]]


@dataclasses.dataclass(frozen=True)
class State:
    """Everything that changes from step to step.

    `memory` holds the memories of all detectors; it grows with the run, so the loop changes it in place.
    `last_evolution` is a step, and `pending` holds the signals since then. `waiting` holds the groups of the next steps
    that were sampled when the step was checkpointed. `record` is None, except in a step that was stopped during its
    evolution. Then it is the step's record so far, and the evolution starts again when the run is resumed. `second` is
    the second agent of a run of co-evolving agents, None in every other run.
    """

    step: int
    learner: TrainState
    pool: TaskPool
    memory: Memory
    pending: tuple[Signal, ...] = ()
    last_evolution: int = 0
    waiting: Sequence[Sequence[Group]] = ()
    record: Mapping[str, Any] | None = None
    second: TrainState | None = None

    @property
    def arrays(self) -> Any:
        """The arrays that a checkpoint holds."""
        return join_states(self.learner, self.second)


@dataclasses.dataclass(frozen=True)
class Loop:
    """Everything that a run never changes: the parts, and the paper's settings (Table 9) by their names.

    Evolution: `evolve` is an entry of `synthesis.EVOLUTIONS`, which also receives the memories of the detectors named
    in `reads`. Every `evolve_every` steps it prepares at most `contexts` expeditions, which find at most `budget` tasks
    in total and `per_context` each. `select` is an entry of `synthesis.SELECTIONS`. A draft is refused if
    `near_duplicates` finds a similarly worded task in the pool; None compares nothing. `predictor` turns the memory of
    the detector `beliefs` into a function that predicts a draft's success, for the draft's record. A setup whose hash
    is in `closed` is never explored without a signal. With an `admission`, an evolution prepares
    `admission.candidates` times as many expeditions to find as many times more tasks. The policy tries each of these
    tasks, and the admission chooses among them. `quality` measures the pool after an evolution, for the step's record.

    Tasks: the share `fresh_fraction` of a batch is drawn from the newest tasks (0 in the paper). `curriculum`, an entry
    of `pool.CURRICULA`, weights the other tasks by the scores that the detector `visits` remembers; None weights all
    equally (the paper). `draw` draws from the pool; a fork's never draws a task that is gone. With `dynamic_sampling`
    above 0, tasks are sampled until `batch_size` groups are live or `dynamic_sampling` groups have been sampled. The
    update then learns only from the live groups.

    Signals: `detectors` see the groups of every step. `kinds` are the detectors that raise signals, by name.

    Time: `staleness` is the number of updates by which the sampling weights lag behind the trained weights: so many
    steps are sampled ahead, while earlier updates run. With `mixed`, the engine always samples with the newest weights
    instead. An update starts once the share `quorum` of each group is played. With `evolve_beside`, an evolution runs
    while the next step trains, and its tasks arrive one step later. It must then not sample from the engine, which is
    in use, and rests at staleness 0. The last step has no next step, so its evolution runs at its end.

    The run plays at most `episodes` training episodes, in whole groups. It plays no step after the one in which the
    actions of all training episodes reach `environment_steps`. 0 means no limit. Once either is used up, a step learns
    nothing. The detector `played` counts both. `score` gives a development score after every `score_every` steps; 0 is
    never. `prefix` gives the actions that a task's episodes begin with, from the memory of the detector `prefixes`: the
    policy neither samples them nor learns from them.
    """

    environment: Environment
    engine: Engine
    chat: Chat
    learner: Learner
    explorer: Explorer
    validate: Validate
    detectors: Mapping[str, Detector]
    evolve: Evolve
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
    mixed: bool = False
    quorum: float = 1.0
    evolve_beside: bool = False
    curriculum: Curriculum | None = None
    dynamic_sampling: int = 0
    episodes: int = 0
    environment_steps: int = 0
    kinds: Mapping[str, SignalKind] = dataclasses.field(default_factory=dict)
    select: SignalSelector = even
    reads: tuple[str, ...] = ()
    admission: Admission | None = None
    near_duplicates: "NearDuplicates | None" = None
    predictor: Callable[[Mapping[str, Any]], Predict] = lambda beliefs: lambda draft: None
    closed: frozenset[str] = frozenset()
    prefix: Prefix = lambda task, memory: ()
    draw: Callable[..., tuple[Task, ...]] = TaskPool.sample
    score_every: int = 0
    score: Callable[[int], Mapping[str, float]] = lambda step: {}
    quality: Callable[[TaskPool], Mapping[str, Any]] = lambda pool: {}

    def __post_init__(self) -> None:
        if self.staleness < 0 or not 0.0 < self.quorum <= 1.0:
            raise ValueError(
                f"staleness is {self.staleness}, and quorum is {self.quorum}; expected at least 0 updates, and a share "
                "above 0, at most 1, of each group"
            )
        if self.dynamic_sampling and (self.dynamic_sampling < self.batch_size or self.quorum < 1.0):
            raise ValueError(
                f"dynamic_sampling is {self.dynamic_sampling} with batch_size={self.batch_size} and "
                f"quorum={self.quorum}; expected 0, or at least batch_size groups and a quorum of 1"
            )
        if (self.episodes or self.environment_steps) and (self.staleness or "played" not in self.detectors):
            raise ValueError(
                f"episodes is {self.episodes} and environment_steps {self.environment_steps} with "
                f"staleness={self.staleness} and the detectors {', '.join(self.detectors) or 'none'}; expected 0 and "
                "0, or a staleness of 0 and the detector played"
            )
