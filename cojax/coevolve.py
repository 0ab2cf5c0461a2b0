"""The loop: agent and task set evolve together (CoEvolve, arXiv 2604.15840, Figure 2)."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cojax import signals
from cojax.loop import Loop, State
from cojax.loop.evolution import Evolutions
from cojax.loop.groups import open_queue, order_steps, select_learnable
from cojax.loop.records import end_step, make_step_record
from cojax.synthesis import Interrupted

if TYPE_CHECKING:
    from cojax.storage.run_directory import RunDirectory


def coevolve(
    loop: Loop,
    state: State,
    directory: "RunDirectory",
    observe: Callable[[dict[str, Any]], None],
    stop: Callable[[], bool] = lambda: False,
) -> State:
    """Trains up to step `loop.steps` and returns the last state, which is checkpointed.

    Training ends early after the step in which `stop` turns true. `observe` receives every record of metrics.jsonl
    before it is written.
    """
    with open_queue(loop, state) as queue:
        evolutions = Evolutions(loop, directory, stop, queue.drain)
        with loop.clock("sync"):
            queue.offer(loop.learner.weights(state.learner, state.step))
        if state.record is not None:
            # The run was stopped during the evolution at the end of this step: repeat the evolution, not the step.
            state = end_step(evolutions, state, state.record, observe)
        while state.step < loop.steps and not stop():
            # Stage 1: train on D_t. An evolution and the rollouts of later steps may run in parallel with the update.
            order_steps(loop, queue, state)
            groups = queue.take(state.step + 1)
            if not loop.staleness:
                with loop.clock("sync"):
                    loop.engine.rest()
            try:
                with evolutions.run_beside(state) as syntheses, loop.clock("update"):
                    train_state, metrics = loop.learner.update(state.learner, *select_learnable(loop, groups))
            except Interrupted:
                # The previous step is already checkpointed.
                return state
            step = state.step + 1
            with loop.clock("sync"):
                queue.offer(loop.learner.weights(train_state, step))

            # Signals: where is the policy weak?
            with loop.clock("feedback"):
                changes, new_signals = signals.detect(loop.detectors, state.memory, groups)
                signals.apply(state.memory, changes)
            with loop.clock("checkpoint"):
                directory.memory.append([{"step": step, "changes": changes}])
                directory.add_episodes(step, groups, new_signals)

            # Stages 2 and 3: reflect, re-explore, keep validated tasks. Then record and checkpoint.
            for synthesis in syntheses:
                state = evolutions.store(state, synthesis)
            pending = (*state.pending, *new_signals)
            state = dataclasses.replace(state, step=step, learner=train_state, pending=pending, waiting=())
            record = make_step_record(loop, state, groups, new_signals, metrics, syntheses)
            state = end_step(evolutions, state, record, observe)
        return state
