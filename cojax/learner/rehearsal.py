"""Memory rehearsal: runs the real update on a full batch before the first step, and discards the result.

So a run that does not fit into memory ends in its first minute, with advice, and not hours later. `fastest_that_fits`
chooses in the same way what the backward pass keeps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.stages import Compiled

from cojax.learner.batch import TrainBatch
from cojax.learner.device_memory import DeviceMemoryError, check_fits, free_bytes, needed_bytes
from cojax.learner.learner import Learner
from cojax.learner.train_state import TrainState
from cojax.policy.attention import block_scores_bytes
from cojax.policy.moe import RouteShape
from cojax.policy.transformer import REMAT

AUTO = "auto"  # in place of a name of REMAT: `fastest_that_fits` decides
_FASTEST_FIRST = tuple(REMAT)


def rehearse(learner: Learner, state: TrainState, sizes: Sequence[int]) -> TrainState:
    """Runs everything that a step runs on full rows, and returns the same state, bit for bit.

    `sizes` are the numbers of trajectories of a step's groups, which decide the shape of its batch. Only one
    micro-batch is computed, as all use the same memory in turn. Only programs that the first step needs are compiled.
    `state` is donated. Raises DeviceMemoryError.
    """
    full, pairs = full_batches(learner, sizes)
    advice, count = _advice(learner), np.int32(1)
    try:
        devices = learner.placement.devices
        if all(device.platform == "cpu" for device in devices):
            here = sum(device.process_index == jax.process_index() for device in devices)
            check_fits(least_bytes(learner) * here // len(devices), advice)
            check_fits(needed_bytes(_programs(learner, state, full, pairs), here, _batch_bytes(full, pairs)), advice)
        batch = learner.prepare(state, full, count)
        extra = None if pairs is None else learner.prepare_pairs(state, pairs, count)
        # An update keeps the old state if loss or gradient is not finite. Here neither is, so the state is unchanged.
        state, _ = learner.apply(state, batch, count, extra)
        return jax.block_until_ready(state)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise DeviceMemoryError(f"the update does not fit: {str(error).splitlines()[0]}; {advice}") from error


def fastest_that_fits(learner: Learner, state: TrainState, sizes: Sequence[int], beside: int = 0) -> Learner:
    """The learner with the first entry of REMAT whose update fits into free memory; with the last one if none fits.

    `sizes` is as in `rehearse`; `beside` bytes are left free for arrays that are loaded later. Programs are compiled
    but not run. Where free memory is not known, the last entry is taken.
    """
    devices = learner.placement.devices
    available = free_bytes(devices)
    if available is not None and available >= least_bytes(learner):
        full, pairs = full_batches(learner, sizes)
        for remat in _FASTEST_FIRST[:-1]:
            candidate = dataclasses.replace(learner, remat=remat)
            needed = needed_bytes(
                _programs(candidate, state, full, pairs), len(devices), _batch_bytes(full, pairs) + beside
            )
            if needed <= available:
                return candidate
    return dataclasses.replace(learner, remat=_FASTEST_FIRST[-1])


def full_batches(learner: Learner, sizes: Sequence[int]) -> tuple[TrainBatch, TrainBatch | None]:
    """The full batch of a step, and that of its hard negatives, if it learns from these."""
    counts = [learner.objective.rows(sizes, learner.micro_rows)]
    if learner.hard is not None:
        counts.append(learner.hard.rows(sizes, learner.micro_rows))
    full = [full_batch(rows, learner.row_length, learner.route_shape) for rows in counts]
    return full[0], full[1] if learner.hard is not None else None


def _programs(learner: Learner, state: TrainState, full: TrainBatch, pairs: TrainBatch | None) -> list[Compiled]:
    """The programs of a step, compiled. Later calls of `prepare` and `apply` find them compiled."""
    return [program.compile() for program in learner.lowered(state, full, pairs).values()]


def least_bytes(learner: Learner) -> int:
    """Bytes that an update needs at least, on all devices together.

    These are the layers' inputs in a micro-batch, which every backward pass keeps, or on CPUs the attention scores of
    a block of queries, whichever is more. So an update that is far too large is refused before a program is compiled:
    that takes long, and jaxlib 0.12 may end the process.
    """
    config, rows, length = learner.config, learner.micro_rows, learner.row_length
    inputs = config.num_hidden_layers * rows * length * config.hidden_size * jnp.dtype(config.dtype).itemsize
    on_cpu = all(device.platform == "cpu" for device in learner.placement.devices)
    return max(inputs, rows * config.num_attention_heads * block_scores_bytes(length) if on_cpu else 0)


def _batch_bytes(*full: TrainBatch | None) -> int:
    """Bytes of batches, which are in memory twice: as the host packed them, and on the devices."""
    return 2 * sum(array.nbytes for array in jax.tree.leaves(full))


def full_batch(rows: int, length: int, routes: RouteShape | None) -> TrainBatch:
    """A batch of completely full rows with infinite weights, so that neither loss nor gradient is finite.

    Its arrays are views of one row, which take no memory.
    """
    positions = np.arange(length, dtype=np.int32)

    def repeated(row: np.ndarray | np.generic) -> np.ndarray:
        return np.broadcast_to(row, (rows, length))

    one, zero = repeated(np.float32(1)), repeated(np.float32(0))
    return TrainBatch(
        tokens=repeated(np.int32(0)),
        segment_ids=repeated(np.int32(1)),
        positions=repeated(positions),
        advantages=one,
        sampler_logprobs=zero,
        versions=repeated(np.int32(0)),
        reference_logprobs=zero,
        old_logprobs=zero,
        weights=repeated(np.where(positions > 0, np.float32(np.inf), np.float32(0))),
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
    """The settings that would make an update smaller and are not used yet."""
    ways = [f"lower learner.micro_rows ({learner.micro_rows}) or learner.row_length ({learner.row_length})"]
    ways += ["set learner.remat=layers"] if learner.remat != "layers" else []
    ways += ["set model.dtype=bfloat16"] if learner.config.dtype == "float32" else []
    ways += ["set optimizer.moments_dtype=bfloat16 or learner.lora.rank=16"] if learner.lora is None else []
    return ", ".join([*ways, "or spread it over more devices by mesh"])
