"""The ways to guide an evolution: around signals, around random trajectories, or unguided to fresh setups."""

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

from cojax.environment import Environment, ask
from cojax.explorer import Explorer
from cojax.signals import SignalKind
from cojax.signals.kinds import PLAN, PLANNED, task_of
from cojax.signals.tools import tools_called
from cojax.synthesis.expeditions import Expedition
from cojax.synthesis.selection import Select, VisitsByTask, confidence_by, even, in_groups
from cojax.types import ExplorationContext, Signal, Task, Trajectory, content_hash
from cojax.validation.similarity import setup_hash

# Setups drawn for each that is wanted where some are closed, since those are left out.
_DRAWS = 4
# (EvolutionInputs, the memory of each detector of MEMORIES that a further parameter names) → expeditions. The settings
# of an evolution are its keyword-only parameters.
Evolve = Callable[..., Iterator[Expedition]]


@dataclasses.dataclass(frozen=True)
class EvolutionInputs:
    """All that an evolution reads.

    `signals` are those since the last evolution, `episodes` are the ids of all trajectories since then, each
    STEP-TASK-SAMPLE, and `find` returns a trajectory by its id. `popularity` weights the tools of an unguided explorer.
    Unguided expeditions take setups from `split`, never queries. `contexts` is how many expeditions are prepared.
    `select` is an entry of `selection.SELECTIONS`. `kinds` compute the confidence in a signal from the `visits` of its
    task. `closed` are the hashes (`setup_hash`) of setups on which no task may begin.
    """

    environment: Environment
    explorer: Explorer
    signals: Sequence[Signal]
    episodes: Sequence[str]
    find: Callable[[str], Trajectory]
    popularity: Mapping[str, float] | None
    contexts: int
    seed: tuple
    split: str = "seed"
    select: Select = even
    visits: VisitsByTask = dataclasses.field(default_factory=dict)
    kinds: Mapping[str, SignalKind] = dataclasses.field(default_factory=dict)
    closed: frozenset[str] = frozenset()

    def setups(self) -> tuple[Task, ...]:
        """Setups of the split to explore. There are fewer than `contexts` if too many that are drawn are closed."""
        drawn = sample_setups(self.environment, self.split, self.contexts * (_DRAWS if self.closed else 1), self.seed)
        return tuple(setup for setup in drawn if setup_hash(setup) not in self.closed)[: self.contexts]

    def trajectories(self, rng: random.Random) -> Iterator[Trajectory]:
        """Valid trajectories in random order, one of each task, picked at random among the task's own.

        All tasks have equal chances, however often each was visited (`selection.in_groups`).
        """
        # A generator draws the episodes when the first one is asked for. The order of draws from `rng` decides results.
        for episodes in in_groups(self.episodes, task_of, rng):
            if found := next((one for one in map(self.find, episodes) if one.valid), None):
                yield found

    def selected_signals(self) -> tuple[Signal, ...]:
        """The signals to follow."""
        return self.select(self.signals, self.contexts, self.seed, confidence_by(self.kinds, self.visits))


def static(inputs: EvolutionInputs) -> Iterator[Expedition]:
    """No expeditions, so no new tasks: plain GRPO on D_0."""
    return iter(())


def unguided(inputs: EvolutionInputs) -> Iterator[Expedition]:
    """Unguided, with weights that favour popular tools (the paper's random exploration)."""
    for setup in inputs.setups():
        yield Expedition(setup, "unguided", weights=inputs.popularity)


def uniform(inputs: EvolutionInputs) -> Iterator[Expedition]:
    """Unguided, all tools alike."""
    for setup in inputs.setups():
        yield Expedition(setup, "uniform")


def around_trajectories(inputs: EvolutionInputs) -> Iterator[Expedition]:
    """The control: guided like a signal's expedition, but around trajectories picked at random, one for each task."""
    rng = random.Random(repr(("trajectory", inputs.seed)))
    for trajectory in itertools.islice(inputs.trajectories(rng), inputs.contexts):
        yield Expedition(trajectory.task, "trajectory", reflect=reflect_on(trajectory))


def around_displaced_signals(inputs: EvolutionInputs) -> Iterator[Expedition]:
    """The matched control: each signal to follow is moved to a trajectory picked at random.

    The number of contexts of each kind, their guidance and the number of tools in focus stay the same. Trajectories are
    picked at random, one for each task and kind. The tools in focus are picked at random among those that the
    trajectory called.
    """
    rng = random.Random(repr(("displaced", inputs.seed)))
    chosen = inputs.selected_signals()
    kinds = dict.fromkeys(signal.kind for signal in chosen)
    trajectories = {kind: inputs.trajectories(rng) for kind in kinds}
    for signal in chosen:
        trajectory = next(trajectories[signal.kind], None)
        if trajectory is None:
            continue
        called = sorted(set(tools_called(trajectory)) - {inputs.explorer.ending})
        focus = tuple(rng.sample(called, min(len(called), len(signal.focus))))
        evidence = f"picked at random, in place of a trajectory with the signal {signal.kind}"
        moved = Signal(signal.kind, trajectory.task.id, trajectory.episode, evidence, focus)
        yield Expedition(trajectory.task, "trajectory", signal=evidence, reflect=reflect_on(trajectory, moved))


def around_signals(inputs: EvolutionInputs) -> Iterator[Expedition]:
    """CoEvolve: around the trajectories that have the signals."""
    for signal in inputs.selected_signals():
        trajectory = inputs.find(signal.episode)
        reflect = reflect_on(trajectory, signal)
        yield Expedition(trajectory.task, signal.kind, signal=signal.evidence, reflect=reflect)


def partly_uniform(
    inputs: EvolutionInputs, floor: float, rng: random.Random, guided: Callable[[], Expedition | None]
) -> Iterator[Expedition]:
    """As many expeditions as `contexts`: the share `floor` is as in `uniform`, the others are made by `guided`.

    An expedition that `guided` makes None of is as in `uniform` too. It is left out if no setup is left.
    """
    setups = iter(inputs.setups())
    for _ in range(inputs.contexts):
        # The order of draws from `rng` decides results: one for the share, then those of `guided`.
        if rng.random() >= floor and (expedition := guided()):
            yield expedition
        elif setup := next(setups, None):
            yield Expedition(setup, "uniform")


def reflect_on(
    trajectory: Trajectory, signal: Signal | None = None, plan: Sequence[str] = ()
) -> Callable[[Explorer], ExplorationContext]:
    """Makes the context of an expedition around the trajectory when it starts. `plan` is as in ExplorationContext.

    Signal and plan decide the kind of the context, which names the guidance; the expedition's origin may have any name.
    The kind is the signal's, and \"trajectory\" without a signal. With a plan it is one of PLANNED: \"posterior\"
    in place of any other.
    """
    if plan and signal is None:
        signal = Signal(PLAN, trajectory.task.id, trajectory.episode, "", tuple(dict.fromkeys(plan)))
    kind = signal.kind if signal else "trajectory"
    if plan and kind not in PLANNED:
        kind = PLAN
    return lambda explorer: dataclasses.replace(explorer.reflect(trajectory, kind, signal), plan=tuple(plan))


def offered_tools(environment: Environment, task: Task) -> list[str]:
    """The tools that an episode of the task offers."""
    episode = ask(environment.start, task)
    try:
        return [entry["function"]["name"] for entry in ask(episode.tools)]
    finally:
        episode.close()


def sample_setups(environment: Environment, split: str, count: int, seed: tuple) -> tuple[Task, ...]:
    """The setups of `count` tasks of the split, as tasks without query and solution; the seed alone decides which."""
    number = int(content_hash(["places", repr(seed)]), 16) % 2**31
    return tuple(
        dataclasses.replace(task, query="", solution=()) for task in ask(environment.tasks, split, count, number)
    )
