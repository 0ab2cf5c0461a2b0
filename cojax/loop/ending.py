"""Ends a step: makes the evolution that is due, writes the record and the checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from cojax.loop import State
from cojax.loop.evolution import Evolution
from cojax.loop.records import save, with_scores
from cojax.metrics import plain
from cojax.synthesis import Interrupted


def end_step(
    evolution: Evolution,
    state: State,
    record: Mapping[str, Any],
    observe: Callable[[dict[str, Any]], None],
) -> State:
    """Ends a step and returns the new state: makes the evolution that is due, writes the record and the checkpoint.

    If the evolution is stopped, the checkpoint keeps the record so far, with the seconds that the step took. The
    evolution then starts again when the run is resumed.
    """
    loop, directory = evolution.loop, evolution.directory
    try:
        state, record = evolution.end_step(state, record)
    except Interrupted:
        state = dataclasses.replace(state, record=plain({**record, "seconds": loop.clock.lap()}))
        save(loop, state, directory)
        return state
    observe(with_scores(loop, state, record))
    state = dataclasses.replace(state, record=None)
    last = state.step == loop.steps
    if state.step % loop.checkpoint_every == 0 or last or evolution.due_beside(state) or evolution.stop():
        save(loop, state, directory)
    return state
