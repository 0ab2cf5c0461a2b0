"""Where an evolution goes: expeditions around signals, around trajectories, or wherever popularity draws them."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

from cojax.environment import Environment, ask
from cojax.explorer import Explorer
from cojax.signals import SignalKind
from cojax.signals.tools import tools_called
from cojax.synthesis.selection import Select, Visits, even, judged
from cojax.types import ExplorationContext, Origin, Signal, Task, Trajectory, content_hash


@dataclasses.dataclass(frozen=True)
class Expedition:
    """One trip into the environment: to the task's setup, guided by a context or by mere weights over tools.

    `signal` is the line of evidence that sent it, where one did. `reflect` makes the context once the expedition sets
    out: it may take a model a while, and several can think at once.
    """

    task: Task
    origin: Origin
    context: ExplorationContext | None = None
    signal: str = ""
    weights: Mapping[str, float] | None = None
    reflect: Callable[[Explorer], ExplorationContext] | None = None

    def prepared(self, explorer: Explorer) -> Expedition:
        """With its context."""
        if self.reflect is None:
            return self
        return dataclasses.replace(self, context=self.reflect(explorer), reflect=None)


@dataclasses.dataclass(frozen=True)
class EvolutionInputs:
    """What an evolution draws on.

    `signals` are those pending since the last evolution, `episodes` the ids of all its trajectories, and `find` brings
    a trajectory back by its id. `popularity` is how much an unguided explorer is drawn to each tool. `split` is where
    unguided expeditions take their setups from, never the queries; `contexts` how many expeditions are prepared.
    `select` is an entry of `selection.SELECTIONS`; `kinds` judge signals by the `visits` of their tasks so far.
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
    visits: Visits = dataclasses.field(default_factory=dict)
    kinds: Mapping[str, SignalKind] = dataclasses.field(default_factory=dict)

    def chosen(self) -> tuple[Signal, ...]:
        """The signals to follow."""
        return self.select(self.signals, self.contexts, self.seed, judged(self.kinds, self.visits))


def static(inputs: EvolutionInputs) -> Iterator[Expedition]:
    """No growth: plain GRPO on D_0."""
    return iter(())


def unguided(inputs: EvolutionInputs) -> Iterator[Expedition]:
    """Unguided growth, skewed to popular tools (the paper's random exploration)."""
    for place in fresh_places(inputs.environment, inputs.split, inputs.contexts, inputs.seed):
        yield Expedition(place, "unguided", weights=inputs.popularity)


def uniform(inputs: EvolutionInputs) -> Iterator[Expedition]:
    """Unguided growth, uniform over tools: a ceiling."""
    for place in fresh_places(inputs.environment, inputs.split, inputs.contexts, inputs.seed):
        yield Expedition(place, "uniform")


def around_trajectories(inputs: EvolutionInputs) -> Iterator[Expedition]:
    """The control: guided as by a signal, around trajectories picked at random, one a task."""
    episodes = list(inputs.episodes)
    random.Random(repr(("trajectory", inputs.seed))).shuffle(episodes)
    visited: set[str] = set()
    for episode in episodes:
        if len(visited) == inputs.contexts:
            return
        trajectory = inputs.find(episode)
        if trajectory.valid and trajectory.task.id not in visited:
            visited.add(trajectory.task.id)
            yield Expedition(trajectory.task, "trajectory", reflect=_reflecting(trajectory, "trajectory", None))


def around_displaced_signals(inputs: EvolutionInputs) -> Iterator[Expedition]:
    """The matched control: as many contexts of each kind as there are signals to follow, with that kind's guidance and
    as many tools in focus, but around trajectories picked at random, one a task and kind, and tools picked at random
    among those that they called."""
    rng = random.Random(repr(("displaced", inputs.seed)))
    chosen = inputs.chosen()
    places = {kind: _shuffled(inputs, rng) for kind in dict.fromkeys(signal.kind for signal in chosen)}
    for signal in chosen:
        trajectory = next(places[signal.kind], None)
        if trajectory is None:
            continue
        called = sorted(set(tools_called(trajectory)) - {inputs.explorer.ending})
        focus = tuple(rng.sample(called, min(len(called), len(signal.focus))))
        evidence = f"picked at random, in place of a trajectory with the signal {signal.kind}"
        moved = Signal(signal.kind, trajectory.task.id, trajectory.episode, evidence, focus)
        reflect = _reflecting(trajectory, signal.kind, moved)
        yield Expedition(trajectory.task, "trajectory", signal=evidence, reflect=reflect)


def _shuffled(inputs: EvolutionInputs, rng: random.Random) -> Iterator[Trajectory]:
    """Valid trajectories since the last evolution in random order, one a task."""
    episodes = rng.sample(inputs.episodes, len(inputs.episodes))
    visited: set[str] = set()
    for trajectory in map(inputs.find, episodes):
        if trajectory.valid and trajectory.task.id not in visited:
            visited.add(trajectory.task.id)
            yield trajectory


def around_signals(inputs: EvolutionInputs) -> Iterator[Expedition]:
    """CoEvolve: around the trajectories that carry signals."""
    for signal in inputs.chosen():
        trajectory = inputs.find(signal.episode)
        reflect = _reflecting(trajectory, signal.kind, signal)
        yield Expedition(trajectory.task, signal.kind, signal=signal.evidence, reflect=reflect)


def _reflecting(
    trajectory: Trajectory, kind: Origin, signal: Signal | None
) -> Callable[[Explorer], ExplorationContext]:
    return lambda explorer: explorer.reflect(trajectory, kind, signal)


EVOLUTIONS: dict[str, Callable[[EvolutionInputs], Iterator[Expedition]]] = {
    "none": static,
    "random": unguided,
    "uniform": uniform,
    "trajectory": around_trajectories,
    "displaced": around_displaced_signals,
    "feedback": around_signals,
}


def fresh_places(environment: Environment, split: str, count: int, seed: tuple) -> tuple[Task, ...]:
    """Setups of `count` tasks of the split, without their queries and solutions; the seed alone decides which."""
    number = int(content_hash(["places", repr(seed)]), 16) % 2**31
    return tuple(
        dataclasses.replace(task, query="", solution=()) for task in ask(environment.tasks, split, count, number)
    )
