"""The loop of co-evolving agents (arXiv 2511.22254), and of its baselines ETO, RFT and SFT: one step is one round."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cojax import signals
from cojax.loop import Loop, State
from cojax.loop.evolution import Evolutions
from cojax.loop.groups import draw_tasks
from cojax.loop.records import end_step
from cojax.preference.rounds import Rounds

if TYPE_CHECKING:
    from cojax.storage.run_directory import RunDirectory


def coevolving(
    loop: Loop,
    rounds: Rounds,
    state: State,
    directory: "RunDirectory",
    observe: Callable[[dict[str, Any]], None],
    stop: Callable[[], bool] = lambda: False,
) -> State:
    """Trains up to step `loop.steps` and returns the last state, which is checkpointed.

    Training ends early after the step in which `stop` turns true. At the end the engine holds the target's weights.
    `observe` receives every record of metrics.jsonl before it is written.
    """
    evolutions = Evolutions(loop, directory, stop)
    rounds.load(state.learner, state.step)
    if state.record is not None:
        # The run was stopped during the evolution at the end of this step: repeat the evolution, not the step.
        state = end_step(evolutions, state, state.record, observe)
    while state.step < loop.steps and not stop():
        step = state.step + 1
        tasks = draw_tasks(loop, state, step)
        # Both agents play the tasks that the experts solve.
        solutions = rounds.play_solutions(tasks)
        rollouts = rounds.play(state, tasks, step)

        # The target learns from experts and failures, the failure agent from failures alone.
        target_state, metrics, example_counts = rounds.learn_target(state, solutions, rollouts, step)
        second_state, second_metrics = rounds.learn_second(state, solutions, rollouts, step)
        rounds.load(target_state, step)

        # Signals: where is the target weak?
        with loop.clock("feedback"):
            changes, new_signals = signals.detect(loop.detectors, state.memory, rollouts.target)
            signals.apply(state.memory, changes)
            changes |= rounds.count_second(state, rollouts)
        with loop.clock("checkpoint"):
            directory.memory.append([{"step": step, "changes": changes}])
            directory.add_episodes(step, rollouts.target, new_signals, rollouts.second)

        # Keep validated tasks, if the task set grows. Then record and checkpoint.
        pending = (*state.pending, *new_signals)
        state = dataclasses.replace(state, step=step, learner=target_state, second=second_state, pending=pending)
        record = rounds.make_record(state, rollouts, new_signals, metrics, example_counts, second_metrics)
        state = end_step(evolutions, state, record, observe)
    return state
