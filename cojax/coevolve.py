"""The loop: agent and task set evolve together (CoEvolve, arXiv 2604.15840, Figure 2)."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cojax import signals
from cojax.host.background import in_background
from cojax.loop import Loop, State
from cojax.loop.groups import ahead, rollout, taught
from cojax.metrics import plain
from cojax.rollout.collect import count_outcomes
from cojax.storage.run_directory import RunDirectory
from cojax.synthesis import EvolutionInputs, Interrupted, Synthesis, synthesize
from cojax.synthesis.selection import visits_of
from cojax.types import Group, Signal

_LOG = logging.getLogger(__name__)


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
    if state.record is not None:
        state = finish(loop, state, state.record, directory, observe, stop)
    while state.step < loop.steps and not stop():
        # Stage 1: train on D_t, and notice where the policy is weak.
        groups = state.waiting or rollout(loop, state, state.step + 1)
        if not loop.staleness:
            with loop.clock("sync"):
                loop.engine.rest()
        try:
            with (
                evolving(loop, state, directory, stop) as evolutions,
                ahead(loop, state, state.step + 2) as waiting,
                loop.clock("update"),
            ):
                learned, figures = loop.learner.update(state.learner, *taught(loop, groups))
        except Interrupted:
            # The step before it is checkpointed.
            return state
        step = state.step + 1
        with loop.clock("sync"):
            loop.engine.load(loop.learner.weights(learned, step))
        with loop.clock("feedback"):
            changes, found = signals.detect(loop.detectors, state.memory, groups)
            signals.apply(state.memory, changes)
        with loop.clock("checkpoint"):
            directory.memory.append([{"step": step, "changes": changes}])
            directory.add_episodes(step, groups, found)
        for evolution in evolutions:
            state = with_evolution(loop, state, evolution, directory)
        pending = (*state.pending, *found)
        state = dataclasses.replace(state, step=step, learner=learned, pending=pending, waiting=tuple(waiting))

        # Stages 2 and 3: reflect, go back there, keep what provably works.
        record = describe(loop, state, groups, found, figures, evolutions)
        state = finish(loop, state, record, directory, observe, stop)
    return state


def finish(
    loop: Loop,
    state: State,
    record: Mapping[str, Any],
    directory: RunDirectory,
    observe: Callable[[dict[str, Any]], None],
    stop: Callable[[], bool],
) -> State:
    """The end of a step: its evolution, where there is one that nothing runs beside, its record and its checkpoint.

    An evolution that is stopped is left, and begun again when the run goes on; the record then knows the seconds that
    the step took before.
    """
    evolves = due(loop, state)
    aside = evolves and loop.evolve_beside and state.step < loop.steps
    if evolves and not aside:
        try:
            with loop.clock("feedback"):
                evolution = prepare_evolution(loop, state, directory)(stop)
        except Interrupted:
            state = dataclasses.replace(state, record=plain({**record, "seconds": loop.clock.lap()}))
            save(loop, state, directory)
            return state
        state = with_evolution(loop, state, evolution, directory)
        record = {**record, "tasks": len(state.pool), **evolution_record(evolution, state.step)}
    with loop.clock("evaluation"):
        record = {**record, **({"dev": score} if (score := loop.score(state.step)) else {})}
        if "evolution" in record and (quality := loop.quality(state.pool)):
            record["evolution"] = {**record["evolution"], "quality": quality}
    observe(dict(record))
    state = dataclasses.replace(state, record=None)
    if state.step % loop.checkpoint_every == 0 or state.step == loop.steps or aside or stop():
        save(loop, state, directory)
    return state


def due(loop: Loop, state: State) -> bool:
    """Whether the step ends with an evolution that has not been."""
    return state.step > state.evolved and state.step % loop.evolve_every == 0


@contextlib.contextmanager
def evolving(loop: Loop, state: State, directory: RunDirectory, stop: Callable[[], bool]) -> Iterator[list[Synthesis]]:
    """Evolves on a thread beside the block, where that is due; the list yielded is filled when the block is left."""
    evolutions: list[Synthesis] = []
    if not (loop.evolve_beside and due(loop, state)):
        yield evolutions
        return
    with loop.clock("feedback"):
        evolve = prepare_evolution(loop, state, directory)
    with in_background("evolution", lambda unwanted: evolve(lambda: stop() or unwanted())) as evolved:
        yield evolutions
        with loop.clock("feedback"):
            evolutions.append(evolved.result())


def with_evolution(loop: Loop, state: State, evolution: Synthesis, directory: RunDirectory) -> State:
    """The state with the tasks of an evolution of its step."""
    with loop.clock("feedback"):
        directory.add_evolution(evolution)
    return dataclasses.replace(state, pool=state.pool.add(evolution.tasks), pending=(), evolved=state.step)


def prepare_evolution(loop: Loop, state: State, directory: RunDirectory) -> Callable[[Callable[[], bool]], Synthesis]:
    """An evolution: expeditions from what was seen since the last one, and the tasks they bring back.

    All that it looks at is gathered here, so that any thread may run it. It is told when to stop, and then raises
    Interrupted.
    """
    recall = directory.recall(range(state.evolved + 1, state.step + 1))
    loop.near_duplicates.update(state.pool)
    seed = loop.seed, state.step - 1
    inputs = EvolutionInputs(
        environment=loop.environment,
        explorer=loop.explorer,
        signals=state.pending,
        episodes=recall.ids,
        find=recall.find,
        popularity=loop.popularity,
        contexts=loop.contexts,
        seed=seed,
        select=loop.select,
        visits=visits_of(recall.records, _windows(loop, state), loop.group_size),
        kinds=loop.kinds,
    )

    def evolve(stop: Callable[[], bool]) -> Synthesis:
        evolution = synthesize(
            loop.evolve(inputs),
            loop.environment,
            loop.explorer,
            loop.validate,
            state.pool.__contains__,
            budget=loop.budget,
            per_context=loop.per_context,
            seed=seed,
            step=state.step,
            near_duplicates=loop.near_duplicates,
            stop=stop,
        )
        if evolution.counts["expeditions"] and not evolution.tasks:
            _LOG.warning(
                "step %d: %d expeditions brought no task; commonest reasons: %s",
                state.step, evolution.counts["expeditions"], "; ".join(evolution.reasons()) or "no draft came of them",
            )  # fmt: skip
        return evolution

    return evolve


def save(loop: Loop, state: State, directory: RunDirectory) -> None:
    """Checkpoints the state. Arrays first reach the disk, then the step counts."""
    with loop.clock("checkpoint"):
        host = {
            "evolved": state.evolved,
            "fresh": len(state.pool.fresh),
            "clock": loop.clock.state(),
            "record": state.record,
        }
        directory.save(state.step, state.learner, host, state.waiting)


def _windows(loop: Loop, state: State) -> Mapping[str, Any]:
    """The scores that forgetting remembers, by task."""
    remembers = isinstance(loop.kinds.get("forgetting"), signals.Forgetting)
    return state.memory["forgetting"] if remembers else {}


def describe(
    loop: Loop,
    state: State,
    groups: Sequence[Group],
    found: Sequence[Signal],
    figures: Mapping[str, float],
    evolutions: Sequence[Synthesis],
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
        "live_groups": figures["groups_live"] / max(1.0, len(groups) if loop.dynamic_sampling else figures["groups"]),
        "tokens_sampled": sum(len(turn.action_tokens) for t in trajectories for turn in t.turns),
        "tasks": len(state.pool),
        **({"groups_sampled": len(groups)} if loop.dynamic_sampling else {}),
        "outcomes": count_outcomes(trajectories),
        "signals": {kind: sum(s.kind == kind for s in found) for kind in signals.named(loop.kinds)},
        **figures,
    }
    for evolution in evolutions:
        record |= evolution_record(evolution, state.evolved)
    return record


def evolution_record(evolution: Synthesis, step: int) -> dict[str, Any]:
    """What the record of a step says of an evolution, which looked at what was seen up to `step`."""
    origins = [task.origin for task in evolution.tasks]
    return {
        "evolution": {
            "step": step,
            **evolution.counts,
            "added": {origin: origins.count(origin) for origin in sorted(set(origins))},
            **({"explorer": evolution.figures} if evolution.figures else {}),
        }
    }
