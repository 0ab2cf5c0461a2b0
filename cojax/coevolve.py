"""The loop: agent and task set evolve together (CoEvolve, arXiv 2604.15840, Figure 2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
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
from cojax.types import Group, Signal, SignalKind


@dataclasses.dataclass(frozen=True)
class State:
    """Everything that changes. `evolved` is the step of the last evolution, `pending` the signals since."""

    step: int
    learner: TrainState
    pool: TaskPool
    memory: Memory
    pending: tuple[Signal, ...] = ()
    evolved: int = 0


@dataclasses.dataclass(frozen=True)
class Loop:
    """Everything that does not: the parts, and the paper's settings (Table 9) by their names.

    `evolve` is an entry of `synthesis.EVOLUTIONS`; every `evolve_every` steps it prepares at most `contexts`
    expeditions, of which at most `budget` tasks come back, `per_context` from each. `fresh_fraction` of a batch is
    drawn from the newest tasks (0 is the paper). `observe` sees every record of metrics.jsonl before it is written.
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
    score: Callable[[int], Mapping[str, float] | None] = lambda step: None


def coevolve(
    loop: Loop,
    state: State,
    directory: RunDirectory,
    observe: Callable[[dict[str, Any]], None],
    stop: Callable[[], bool] = lambda: False,
) -> State:
    """Runs to `loop.steps`, or to the end of the step in which `stop` turns true; the last state is checkpointed."""
    with loop.clock("sync"):
        loop.engine.load(loop.learner.weights(state.learner, state.step))
    while state.step < loop.steps and not stop():
        step, seed = state.step + 1, (loop.seed, state.step)

        # Stage 1: train on D_t, and notice where the policy is weak.
        tasks = state.pool.sample(loop.batch_size, seed, loop.fresh_fraction)
        groups = rollout(loop, tasks, seed, step)
        with loop.clock("update"):
            learned, figures = loop.learner.update(state.learner, groups)
        with loop.clock("sync"):
            loop.engine.load(loop.learner.weights(learned, step))
        with loop.clock("feedback"):
            changes, found = signs.detect(loop.detectors, state.memory, groups)
            signs.apply(state.memory, changes)
        with loop.clock("checkpoint"):
            directory.memory.append([{"step": step, "changes": changes}])
            directory.add_episodes(step, groups, found)
        state = dataclasses.replace(state, step=step, learner=learned, pending=(*state.pending, *found))

        # Stages 2 and 3: reflect, go back there, keep what provably works.
        evolution = None
        if step % loop.evolve_every == 0:
            with loop.clock("feedback"):
                evolution = explore(loop, state, directory, seed)
                directory.add_tasks(evolution.tasks)
                directory.drafts.append(evolution.drafts)
            state = dataclasses.replace(state, pool=state.pool.add(evolution.tasks), pending=(), evolved=step)

        record = describe(state, groups, found, figures, evolution)
        with loop.clock("evaluation"):
            record |= {"dev": score} if (score := loop.score(step)) else {}
        observe(record)
        if step % loop.checkpoint_every == 0 or step == loop.steps or stop():
            save(loop, state, directory)
    return state


def rollout(loop: Loop, tasks: tuple, seed: tuple[int, int], step: int) -> list[Group]:
    """The groups of one step; engine time is charged to generation, the rest of the wall time to the environment."""
    busy = loop.engine.busy_seconds
    with loop.clock("environment"):
        groups = collect(
            loop.engine,
            loop.chat,
            loop.environment,
            tasks,
            group_size=loop.group_size,
            sampling=loop.sampling,
            seed=seed,
            label=str(step),
            limits=loop.limits,
        )
    loop.clock.move("environment", "generation", loop.engine.busy_seconds - busy)
    return groups


def explore(loop: Loop, state: State, directory: RunDirectory, seed: tuple[int, int]) -> Synthesis:
    """One evolution: expeditions from what was seen since the last one, and the tasks they bring back."""
    recall = directory.recall(range(state.evolved + 1, state.step + 1))
    quarry = Quarry(
        environment=loop.environment,
        explorer=loop.explorer,
        signals=state.pending,
        episodes=recall.ids,
        find=recall.find,
        popularity=loop.popularity,
        contexts=loop.contexts,
        seed=seed,
    )
    return synthesize(
        loop.evolve(quarry),
        loop.environment,
        loop.explorer,
        loop.validate,
        state.pool.__contains__,
        budget=loop.budget,
        per_context=loop.per_context,
        seed=seed,
        step=state.step,
    )


def save(loop: Loop, state: State, directory: RunDirectory) -> None:
    """Checkpoints the state. Arrays first reach the disk, then the step counts."""
    with loop.clock("checkpoint"):
        host = {"evolved": state.evolved, "fresh": len(state.pool.fresh), "clock": loop.clock.state()}
        directory.save(state.step, state.learner, host)


def describe(
    state: State, groups: list[Group], found: list[Signal], figures: Mapping[str, float], evolution: Synthesis | None
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
        }
    return record
