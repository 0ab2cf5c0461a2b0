"""The ways to guide an evolution: around signals, around random trajectories, or unguided.

There are more signals and trajectories than expeditions. So one of each task is picked at random, and the picks are
shuffled: all tasks have equal chances, however many signals or trajectories each has.
"""

import contextlib
import dataclasses
import itertools
import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

from cojax.environment import Environment, ask
from cojax.explorer import Explorer
from cojax.signals import SignalKind, Visit
from cojax.signals.kinds import PLAN, PLAN_GUIDANCE, step_of, task_of
from cojax.signals.tools import tools_called
from cojax.synthesis.expeditions import Expedition
from cojax.types import INFRASTRUCTURE, ExplorationContext, Signal, Task, Trajectory, content_hash, setup_hash

_HALF = 0.5

T = TypeVar("T")
VisitsByTask = Mapping[str, Sequence[Visit]]  # task id → its visits, oldest first
Confidence = Callable[[Signal], float]
SignalSelector = Callable[[Iterable[Signal], int, tuple, Confidence], tuple[Signal, ...]]


def even(signals: Iterable[Signal], budget: int, seed: tuple, confidence: Confidence) -> tuple[Signal, ...]:
    """Selects at most `budget` signals, one for each task and kind.

    They are taken from the kinds in turn, so that no kind crowds out another. Within a kind all tasks have equal
    chances, as have all signals of a task.
    """
    return confident(signals, budget, seed, lambda signal: 0.0)


def confident(signals: Iterable[Signal], budget: int, seed: tuple, confidence: Confidence) -> tuple[Signal, ...]:
    """Selects as `even` does, but within each kind the signals with the highest confidence come first.

    Tasks of equal confidence have equal chances.
    """
    rng = random.Random(repr(("select", seed)))

    def order(kind_signals: list[Signal]) -> list[Signal]:
        picks = [task_signals[0] for task_signals in in_groups(kind_signals, lambda signal: signal.task, rng)]
        # The sort is stable: signals of equal confidence stay in random order.
        return sorted(picks, key=confidence)

    return take_in_turn(signals, budget, order)


def take_in_turn(
    signals: Iterable[Signal], budget: int, order: Callable[[list[Signal]], list[Signal]]
) -> tuple[Signal, ...]:
    """Selects at most `budget` signals, from the kinds in turn. `order` orders those of a kind, the next one last."""
    signals_by_kind: dict[str, list[Signal]] = {}
    for signal in signals:
        signals_by_kind.setdefault(signal.kind, []).append(signal)
    queues = [order(signals_by_kind[kind]) for kind in sorted(signals_by_kind)]
    selection: list[Signal] = []
    while len(selection) < budget and any(queues):
        selection += [queue.pop() for queue in queues if queue][: budget - len(selection)]
    return tuple(selection)


def every(signals: Iterable[Signal], budget: int, seed: tuple, confidence: Confidence) -> tuple[Signal, ...]:
    """Selects all signals, in random order, even beyond the budget (the paper's choice)."""
    selection = list(signals)
    random.Random(repr(("select", seed))).shuffle(selection)
    return tuple(selection)


SELECTIONS: dict[str, SignalSelector] = {"even": even, "confident": confident, "all": every}


def list_visits(
    episodes: Mapping[str, Mapping[str, Any]], scores_by_task: Mapping[str, Sequence[float]], group_size: int
) -> dict[str, list[Visit]]:
    """The visits of every task in `episodes`, oldest first.

    Recent visits are counted from `episodes`, whose ids are STEP-TASK-SAMPLE. Of older visits only the mean scores in
    `scores_by_task` remain: each counts as a visit of `group_size` trajectories at step 0.
    """
    counts_by_task: dict[str, dict[int, list[float]]] = {}
    for episode_id, episode in episodes.items():
        task_id = task_of(episode_id)
        outcome_counts = counts_by_task.setdefault(task_id, {}).setdefault(step_of(episode_id), [0.0, 0.0])
        if episode["outcome"] not in INFRASTRUCTURE:
            outcome_counts[episode["reward"] < _HALF] += 1
    visits: dict[str, list[Visit]] = {}
    for task_id, counts_by_step in counts_by_task.items():
        recent_visits = [Visit(step, *counts_by_step[step]) for step in sorted(counts_by_step)]
        recent_count = sum(visit.solved + visit.failed > 0 for visit in recent_visits)
        scores = scores_by_task.get(task_id, ())
        older = scores[: max(0, len(scores) - recent_count)]
        visits[task_id] = [Visit(0, score * group_size, (1 - score) * group_size) for score in older] + recent_visits
    return visits


def make_confidence(kinds: Mapping[str, SignalKind], visits: VisitsByTask) -> Confidence:
    """The confidence that a signal's kind has in it, given the visits of its task; 0.5 if no visits are known."""

    def confidence(signal: Signal) -> float:
        task_visits = visits.get(signal.task, ())
        return kinds[signal.kind].confidence(signal, task_visits) if task_visits and signal.kind in kinds else _HALF

    return confidence


def in_groups(items: Iterable[T], group_of: Callable[[T], Hashable], rng: random.Random) -> list[list[T]]:
    """The items by group: groups in random order, and the items of each in random order.

    All orders of the groups are equally likely, whatever their sizes: the first n groups, one item of each, are a fair
    draw among groups. The result depends on `rng` and the items, not on the order in which they are given.
    """
    items_by_group: dict[Hashable, list[T]] = {}
    for item in sorted(items, key=repr):
        items_by_group.setdefault(group_of(item), []).append(item)
    item_lists = list(items_by_group.values())
    for group_items in item_lists:
        rng.shuffle(group_items)
    rng.shuffle(item_lists)
    return item_lists


# If some setups are closed, this many are drawn for each one needed, because closed ones are left out.
_DRAWS = 4
# (EvolutionInputs, the memory of each detector of MEMORIES that a further parameter names) → expeditions. The settings
# of an evolution are its keyword-only parameters.
Evolve = Callable[..., Iterator[Expedition]]


@dataclasses.dataclass(frozen=True)
class EvolutionInputs:
    """Everything that an evolution reads.

    `signals` are those since the last evolution, `episodes` are the ids of all trajectories since then, each
    STEP-TASK-SAMPLE, and `find` returns a trajectory by its id. `popularity` weights the tools of an unguided explorer.
    Unguided expeditions take setups from `split`, never queries. `contexts` is the number of expeditions to prepare.
    `select` is an entry of `SELECTIONS`. `kinds` compute the confidence in a signal from the `visits` of its task.
    `closed` holds the hashes (`setup_hash`) of setups at which no task may begin.
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
    select: SignalSelector = even
    visits: VisitsByTask = dataclasses.field(default_factory=dict)
    kinds: Mapping[str, SignalKind] = dataclasses.field(default_factory=dict)
    closed: frozenset[str] = frozenset()

    def setups(self) -> tuple[Task, ...]:
        """Setups of the split to explore; fewer than `contexts` if too many of those drawn are closed."""
        setups = sample_setups(self.environment, self.split, self.contexts * (_DRAWS if self.closed else 1), self.seed)
        return tuple(setup for setup in setups if setup_hash(setup) not in self.closed)[: self.contexts]

    def trajectories(self, rng: random.Random) -> Iterator[Trajectory]:
        """Valid trajectories in random order, one of each task, picked at random among the task's own.

        All tasks have equal chances, however often each was visited (`in_groups`).
        """
        # A generator draws the episodes when the first one is needed. The order of draws from `rng` decides results.
        for episodes in in_groups(self.episodes, task_of, rng):
            if trajectory := next((candidate for candidate in map(self.find, episodes) if candidate.valid), None):
                yield trajectory

    def selected_signals(self) -> tuple[Signal, ...]:
        """The signals to follow."""
        return self.select(self.signals, self.contexts, self.seed, make_confidence(self.kinds, self.visits))

    def around(self, signal: Signal) -> Expedition:
        """The expedition around the trajectory that has the signal."""
        trajectory = self.find(signal.episode)
        reflect = reflect_on(trajectory, signal)
        return Expedition(trajectory.task, signal.kind, signal=signal.evidence, reflect=reflect)


def begins_at(*places: Literal["signals", "episodes", "setups"]) -> Callable[[Evolve], Evolve]:
    """Declares where an evolution begins; without the declaration it may begin at any of the three places.

    If it makes no expedition, a run says what was missing there.
    """

    def declare(evolve: Evolve) -> Evolve:
        vars(evolve)["begins_at"] = places
        return evolve

    return declare


def static(inputs: EvolutionInputs) -> Iterator[Expedition]:
    """Makes no expeditions, so no new tasks: plain GRPO on D_0."""
    return iter(())


@begins_at("setups")
def unguided(inputs: EvolutionInputs) -> Iterator[Expedition]:
    """Explores unguided, with weights that favour popular tools (the paper's random exploration)."""
    for setup in inputs.setups():
        yield Expedition(setup, "unguided", weights=inputs.popularity)


@begins_at("setups")
def uniform(inputs: EvolutionInputs) -> Iterator[Expedition]:
    """Explores unguided, with all tools equally likely."""
    for setup in inputs.setups():
        yield Expedition(setup, "uniform")


@begins_at("episodes")
def around_trajectories(inputs: EvolutionInputs) -> Iterator[Expedition]:
    """The control: explores with guidance, but around trajectories picked at random, one for each task."""
    rng = random.Random(repr(("trajectory", inputs.seed)))
    for trajectory in itertools.islice(inputs.trajectories(rng), inputs.contexts):
        yield Expedition(trajectory.task, "trajectory", reflect=reflect_on(trajectory))


@begins_at("signals", "episodes")
def around_displaced_signals(inputs: EvolutionInputs) -> Iterator[Expedition]:
    """The matched control: each signal to follow is moved to a trajectory picked at random.

    The number of contexts of each kind, their guidance and the number of tools in focus stay the same. Trajectories are
    picked at random, one for each task and kind. The tools in focus are picked at random among those that the
    trajectory called.
    """
    rng = random.Random(repr(("displaced", inputs.seed)))
    selection = inputs.selected_signals()
    kinds = dict.fromkeys(signal.kind for signal in selection)
    trajectories_by_kind = {kind: inputs.trajectories(rng) for kind in kinds}
    for signal in selection:
        trajectory = next(trajectories_by_kind[signal.kind], None)
        if trajectory is None:
            continue
        candidate_tools = sorted(set(tools_called(trajectory)) - {inputs.explorer.ending})
        focus_tools = tuple(rng.sample(candidate_tools, min(len(candidate_tools), len(signal.focus))))
        evidence = f"picked at random, in place of a trajectory with the signal {signal.kind}"
        moved_signal = Signal(signal.kind, trajectory.task.id, trajectory.episode, evidence, focus_tools)
        yield Expedition(trajectory.task, "trajectory", signal=evidence, reflect=reflect_on(trajectory, moved_signal))


@begins_at("signals")
def around_signals(inputs: EvolutionInputs) -> Iterator[Expedition]:
    """CoEvolve: explores around the trajectories that have the signals."""
    yield from map(inputs.around, inputs.selected_signals())


def partly_uniform(
    inputs: EvolutionInputs, floor: float, rng: random.Random, guided: Callable[[], Expedition | None]
) -> Iterator[Expedition]:
    """Yields `contexts` expeditions: the share `floor` is as in `uniform`, `guided` makes the others.

    If `guided` returns None, the expedition is as in `uniform` too. It is omitted if no setup is left.
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
    """Returns a function that makes the context of an expedition around the trajectory when the expedition starts.

    `plan` is as in ExplorationContext. Signal and plan decide the kind of the context, which names the guidance; the
    expedition's origin may have any name. The kind is the signal's, or "trajectory" without a signal. With a plan
    it is one of PLAN_GUIDANCE: "posterior" replaces any other.
    """
    if plan and signal is None:
        signal = Signal(PLAN, trajectory.task.id, trajectory.episode, "", tuple(dict.fromkeys(plan)))
    kind = signal.kind if signal else "trajectory"
    if plan and kind not in PLAN_GUIDANCE:
        kind = PLAN
    return lambda explorer: dataclasses.replace(explorer.reflect(trajectory, kind, signal), plan=tuple(plan))


def offered_tools(environment: Environment, task: Task) -> list[str]:
    """The tools that an episode of the task offers."""
    with contextlib.closing(ask(environment.start, task)) as episode:
        return [tool["function"]["name"] for tool in ask(episode.tools)]


def sample_setups(environment: Environment, split: str, count: int, seed: tuple) -> tuple[Task, ...]:
    """The setups of `count` tasks of the split, as tasks without query and solution; the seed alone decides which."""
    task_seed = int(content_hash(["places", repr(seed)]), 16) % 2**31
    return tuple(dataclasses.replace(t, query="", solution=()) for t in ask(environment.tasks, split, count, task_seed))
