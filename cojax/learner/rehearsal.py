"""Memory rehearsal: the longest batch goes through the real update before the first step, and is thrown away.

So a run that cannot fit ends in its first minute, with advice, instead of in its ninth hour. What the backward pass
keeps may be chosen the same way: the most that fits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from cojax.learner.batch import TrainBatch
from cojax.learner.device_memory import OutOfMemory, check_fits, free, needed
from cojax.learner.learner import Learner
from cojax.learner.update import TrainState
from cojax.policy.routes import RouteShape
from cojax.policy.transformer import REMAT

AUTO = "auto"  # in place of a name of REMAT: `fastest_that_fits` decides
_FASTEST_FIRST = tuple(REMAT)


def rehearse(learner: Learner, state: TrainState, sizes: Sequence[int]) -> TrainState:
    """The same state, bit for bit, once full rows have gone through everything that a step does to them.

    `sizes` are the trajectories of each group of a step, which say what it packs; one micro-batch of that is computed,
    as memory is that of one. Nothing is compiled that the first step would not compile. `state` is donated. Raises
    OutOfMemory.
    """
    rows = learner.objective.rows(sizes, learner.micro_rows)
    full = _full(rows, learner.row_length, learner.route_shape)
    advice, count = _advice(learner), np.int32(1)
    try:
        if all(device.platform == "cpu" for device in learner.devices):
            check_fits(learner.programs(state, full), len(learner.devices), _batches(full), advice)
        batch = learner.prepare(state, full, count)
        # A step keeps its state where loss or gradient is not finite, and here neither is.
        state, _ = learner.apply(state, batch, count)
        return jax.block_until_ready(state)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise OutOfMemory(f"the update does not fit: {str(error).splitlines()[0]}; {advice}") from error


def fastest_that_fits(learner: Learner, state: TrainState, sizes: Sequence[int], beside: int = 0) -> Learner:
    """The learner with the first entry of REMAT under which an update takes no more memory than is free, the last of
    them where none does.

    `sizes` are as in `rehearse`; `beside` bytes are left for what is yet to be loaded. Programs are compiled and none
    is run. Where it is not told what is free, it is the last.
    """
    there = free(learner.devices)
    if there is not None:
        full = _full(learner.objective.rows(sizes, learner.micro_rows), learner.row_length, learner.route_shape)
        for remat in _FASTEST_FIRST[:-1]:
            candidate = dataclasses.replace(learner, remat=remat)
            if needed(candidate.programs(state, full), len(learner.devices), _batches(full) + beside) <= there:
                return candidate
    return dataclasses.replace(learner, remat=_FASTEST_FIRST[-1])


def _batches(full: TrainBatch) -> int:
    """Bytes of a batch, which stands in memory twice: as the host packs it, and where it is computed with."""
    return 2 * sum(array.nbytes for array in jax.tree.leaves(full))


def _full(rows: int, length: int, routes: RouteShape | None) -> TrainBatch:
    """Rows that are as full as rows can be, with infinite weights: no loss or gradient of them is finite.

    Views of one row, which take no memory.
    """
    places = np.arange(length, dtype=np.int32)

    def repeated(row: np.ndarray | np.generic) -> np.ndarray:
        return np.broadcast_to(row, (rows, length))

    one, zero = repeated(np.float32(1)), repeated(np.float32(0))
    return TrainBatch(
        tokens=repeated(np.int32(0)),
        segment_ids=repeated(np.int32(1)),
        positions=repeated(places),
        advantages=one,
        sampler_logprobs=zero,
        versions=repeated(np.int32(0)),
        reference_logprobs=zero,
        old_logprobs=zero,
        weights=repeated(np.where(places > 0, np.float32(np.inf), np.float32(0))),
        sequences=repeated(np.int32(0)),
        tasks=repeated(np.int32(0)),
        groups=repeated(np.int32(0)),
        turns=repeated(np.int32(0)),
        lengths=repeated(np.int32(length - 1)),
        group_sizes=repeated(np.int32(1)),
        rewards=zero,
        routes=None if routes is None else np.broadcast_to(routes.unknown(), (rows, length, *routes.unknown().shape)),
    )


def _advice(learner: Learner) -> str:
    """The settings that would make an update smaller, and are not used."""
    ways = [f"lower learner.micro_rows ({learner.micro_rows}) or learner.row_length ({learner.row_length})"]
    ways += ["set learner.remat=layers"] if learner.remat != "layers" else []
    ways += ["set model.dtype=bfloat16"] if learner.config.dtype == "float32" else []
    ways += ["set optimizer.moments_dtype=bfloat16 or learner.lora.rank=16"] if learner.lora is None else []
    return ", ".join([*ways, "or spread it over more devices by mesh"])
