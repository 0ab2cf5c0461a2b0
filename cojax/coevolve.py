"""The loop: agent and task set evolve together (CoEvolve, arXiv 2604.15840, Figure 2)."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from cojax import signals as signs
from cojax.environment import Environment
from cojax.explorer import Explorer
from cojax.learner.step import Learner, TrainState
from cojax.metrics import Clock
from cojax.pool import TaskPool
from cojax.rollout.chat import Chat
from cojax.rollout.collect import Limits, collect, count_outcomes
from cojax.rollout.engine import Engine, Sampling
from cojax.run_directory import RunDirectory
from cojax.signals import Detector, Memory
from cojax.synthesis import Expedition, Quarry, Synthesis, Validate, synthesize
from cojax.synthesis.selection import Select, even, visits_of
from cojax.types import Group, Signal, SignalKind
from cojax.validation.similarity import Kin

_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class State:
    """Everything that changes. `evolved` is the step of the last evolution, `pending` the signals since; `waiting` are
    the next step's groups, where they were sampled ahead."""

    step: int
    learner: TrainState
    pool: TaskPool
    memory: Memory
    pending: tuple[Signal, ...] = ()
    evolved: int = 0
    waiting: tuple[Group, ...] = ()


@dataclasses.dataclass(frozen=True)
class Loop:
    """Everything that does not: the parts, and the paper's settings (Table 9) by their names.

    `evolve` is an entry of `synthesis.EVOLUTIONS`; every `evolve_every` steps it prepares at most `contexts`
    expeditions, of which at most `budget` tasks come back, `per_context` from each. `select` is an entry of
    `synthesis.SELECTIONS`; what `kin` finds worded like a task in the pool is refused. `fresh_fraction` of a batch is
    drawn from the newest tasks (0 is the paper).

    `staleness` is by how many updates the weights that sample may be behind those that learn: with 1, the next step's
    groups are sampled while this step's update runs. An update waits for the share `quorum` of each group.
    """

    environment: Environment
    engine: Engine
    chat: Chat
    learner: Learner
    explorer: Explorer
    validate: Validate
    detectors: Mapping[SignalKind, Detector]
    evolve: Callable[[Quarry], Iterator[Expedition]]
    popularity: Mapping[str, float] | None
    sampling: Sampling
    limits: Limits
    clock: Clock
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
    select: Select = even
    kin: Kin = dataclasses.field(default_factory=lambda: Kin(0.0))
    score: Callable[[int], Mapping[str, float] | None] = lambda step: None

    def __post_init__(self) -> None:
        if self.staleness not in (0, 1):
            raise ValueError(f"staleness is {self.staleness}; expected 0, or 1: rollouts run one step ahead of updates")
        if not 0.0 < self.quorum <= 1.0:
            raise ValueError(f"quorum is {self.quorum}; expected a share above 0, at most 1, of each group")


def coevolve(
    loop: Loop,
    state: State,
    directory: RunDirectory,
    observe: Callable[[dict[str, Any]], None],
    stop: Callable[[], bool] = lambda: False,
) -> State:
    """Runs to `loop.steps`, or to the end of the step in which `stop` turns true; the last state is checkpointed.

    `observe` sees every record of metrics.jsonl before it is written.
    """
    with loop.clock("sync"):
        loop.engine.load(loop.learner.weights(state.learner, state.step))
    stopped = stop()
    while state.step < loop.steps and not stopped:
        step, seed = state.step + 1, (loop.seed, state.step)

        # Stage 1: train on D_t, and notice where the policy is weak.
        groups = state.waiting or rollout(loop, state.pool, step)
        if not loop.staleness:
            with loop.clock("sync"):
                loop.engine.rest()
        with ahead(loop, state.pool, step + 1) as waiting, loop.clock("update"):
            learned, figures = loop.learner.update(state.learner, groups)
        with loop.clock("sync"):
            loop.engine.load(loop.learner.weights(learned, step))
        with loop.clock("feedback"):
            changes, found = signs.detect(loop.detectors, state.memory, groups)
            signs.apply(state.memory, changes)
        with loop.clock("checkpoint"):
            directory.memory.append([{"step": step, "changes": changes}])
            directory.add_episodes(step, groups, found)
        pending = (*state.pending, *found)
        state = dataclasses.replace(state, step=step, learner=learned, pending=pending, waiting=tuple(waiting))

        # Stages 2 and 3: reflect, go back there, keep what provably works.
        evolution = None
        if step % loop.evolve_every == 0:
            with loop.clock("feedback"):
                evolution = explore(loop, state, directory, seed)
                directory.add_evolution(evolution)
            state = dataclasses.replace(state, pool=state.pool.add(evolution.tasks), pending=(), evolved=step)

        record = describe(state, groups, found, figures, evolution)
        with loop.clock("evaluation"):
            record |= {"dev": score} if (score := loop.score(step)) else {}
        observe(record)
        stopped = stop()
        if step % loop.checkpoint_every == 0 or step == loop.steps or stopped:
            save(loop, state, directory)
    return state


def rollout(loop: Loop, pool: TaskPool, step: int) -> list[Group]:
    """The groups of a step."""
    with charged(loop):
        return sample(loop, pool, step)


@contextlib.contextmanager
def ahead(loop: Loop, pool: TaskPool, step: int) -> Iterator[list[Group]]:
    """Samples the groups of `step` on a thread beside the block; the list yielded is filled when the block is left.

    It stays empty where rollouts do not run ahead, and at the end. A block that fails is not waited for.
    """
    groups: list[Group] = []
    if not loop.staleness or step > loop.steps:
        yield groups
        return
    unwanted, sampled = threading.Event(), Future[list[Group]]()

    def work() -> None:
        try:
            sampled.set_result(sample(loop, pool, step, unwanted.is_set))
        except BaseException as error:
            sampled.set_exception(error)

    threading.Thread(target=work, name="ahead", daemon=True).start()
    try:
        yield groups
        with charged(loop):
            groups += sampled.result()
    finally:
        unwanted.set()


def sample(loop: Loop, pool: TaskPool, step: int, stop: Callable[[], bool] = lambda: False) -> list[Group]:
    """Tasks drawn from the pool, and the episodes played of each; decided by the seed and the step alone."""
    seed = loop.seed, step - 1
    return collect(
        loop.engine,
        loop.chat,
        loop.environment,
        pool.sample(loop.batch_size, seed, loop.fresh_fraction),
        group_size=loop.group_size,
        sampling=loop.sampling,
        seed=seed,
        label=str(step),
        limits=loop.limits,
        quorum=loop.quorum,
        stop=stop,
    )


@contextlib.contextmanager
def charged(loop: Loop) -> Iterator[None]:
    """Charges the engine's time within the block to generation, the rest of the wall time to the environment."""
    busy = loop.engine.busy_seconds
    with loop.clock("environment"):
        yield
    loop.clock.move("environment", "generation", loop.engine.busy_seconds - busy)


def explore(loop: Loop, state: State, directory: RunDirectory, seed: tuple[int, int]) -> Synthesis:
    """One evolution: expeditions from what was seen since the last one, and the tasks they bring back."""
    recall = directory.recall(range(state.evolved + 1, state.step + 1))
    loop.kin.update(state.pool)
    quarry = Quarry(
        environment=loop.environment,
        explorer=loop.explorer,
        signals=state.pending,
        episodes=recall.ids,
        find=recall.find,
        popularity=loop.popularity,
        contexts=loop.contexts,
        seed=seed,
        select=loop.select,
        visits=visits_of(recall.records, state.memory.get("forgetting", {}), loop.group_size),
    )
    evolution = synthesize(
        loop.evolve(quarry),
        loop.environment,
        loop.explorer,
        loop.validate,
        state.pool.__contains__,
        budget=loop.budget,
        per_context=loop.per_context,
        seed=seed,
        step=state.step,
        kin=loop.kin,
    )
    if evolution.counts["expeditions"] and not evolution.tasks:
        _LOG.warning(
            "step %d: %d expeditions brought no task; commonest reasons: %s",
            state.step, evolution.counts["expeditions"], "; ".join(evolution.reasons()) or "no draft came of them",
        )  # fmt: skip
    return evolution


def save(loop: Loop, state: State, directory: RunDirectory) -> None:
    """Checkpoints the state. Arrays first reach the disk, then the step counts."""
    with loop.clock("checkpoint"):
        host = {"evolved": state.evolved, "fresh": len(state.pool.fresh), "clock": loop.clock.state()}
        directory.save(state.step, state.learner, host, state.waiting)


def describe(
    state: State,
    groups: Sequence[Group],
    found: list[Signal],
    figures: Mapping[str, float],
    evolution: Synthesis | None,
) -> dict[str, Any]:
    """One record of metrics.jsonl: what the step did, all of it decided by the seed."""
    trajectories = [t for group in groups for t in group.trajectories]
    valid = [t for t in trajectories if t.valid]
    count = max(1, len(valid))
    record: dict[str, Any] = {
        "step": state.step,
        "success": sum(t.reward >= 1.0 for t in valid) / count,
        "reward": sum(t.reward for t in valid) / count,
        "partial": sum(t.partial for t in valid) / count,
        "turns": sum(len(t.turns) for t in valid) / count,
        "live_groups": figures["groups_live"] / max(1.0, figures["groups"]),
        "tokens_sampled": sum(len(turn.action_tokens) for t in trajectories for turn in t.turns),
        "tasks": len(state.pool),
        "outcomes": count_outcomes(trajectories),
        "signals": {kind: sum(s.kind == kind for s in found) for kind in sorted(signs.SIGNALS)},
        **figures,
    }
    if evolution is not None:
        origins = [task.origin for task in evolution.tasks]
        record["evolution"] = {
            **evolution.counts,
            "added": {origin: origins.count(origin) for origin in sorted(set(origins))},
            **({"explorer": evolution.figures} if evolution.figures else {}),
        }
    return record
