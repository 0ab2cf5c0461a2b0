"""The arithmetic of one update: `train_step` is the only one there is, written to be jitted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from cojax.learner.batch import TrainBatch
from cojax.learner.losses import Loss

Params = Any  # a nested dict of jax.Array
Metrics = dict[str, float]

# Facts whose largest value over the learned tokens is worth a line beside their mean.
PEAKS = ("logprob_mismatch", "ratio")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """step: int32[], batches seen; params: nested dict of arrays; opt_state: optax's."""

    step: Any
    params: Params
    opt_state: Any


class NonFiniteUpdate(RuntimeError):
    """A loss or gradient was not a number. `state` is as before that update; `batch` and `metrics` are its causes."""

    def __init__(self, state: TrainState, batch: TrainBatch, metrics: Metrics):
        self.state, self.batch, self.metrics = state, batch, metrics
        super().__init__(
            f"step {int(state.step)}: loss {metrics['loss']}, gradient norm {metrics['grad_norm']}; expected finite "
            "numbers. The parameters are unchanged. Look at the saved batch; if its log-probs are sound, "
            "lower learning_rate or importance_cap, in a new workdir."
        )

    def save(self, path: Path) -> None:
        """Writes the batch and the metrics as one .npz; `numpy.load` reads it."""
        arrays = {field.name: getattr(self.batch, field.name) for field in dataclasses.fields(self.batch)}
        arrays |= {f"metric_{name}": np.float64(value) for name, value in self.metrics.items()}
        np.savez_compressed(path, allow_pickle=False, **arrays)


def train_step(
    state: TrainState,
    batch: TrainBatch,
    count: jax.Array,
    *,
    logprobs: Callable[[Params, TrainBatch], jax.Array],
    loss: Loss,
    optimizer: optax.GradientTransformation,
    on_policy: bool,
    shardings: tuple[jax.sharding.Sharding, ...] | None = None,
) -> tuple[TrainState, dict[str, jax.Array]]:
    """One optimiser update on the first `count` of M micro-batches, which add up exactly to the full batch.

    batch: arrays [M, b, T]; count: int32[], at most M, so that one compiled program serves any number of live rows.
    With `on_policy`, old log-probs are the current ones without gradient; else they are read from the batch.
    `shardings`, one for each leaf of the state, keep the new state laid out as the old one.

    Returns the state, unchanged but for nothing where loss or gradient is not finite, and float32[] metrics: `loss`,
    `grad_norm` before clipping, sums of the facts over the learned tokens, and `…_max` for those in PEAKS.
    """

    def micro_loss(params: Params, micro: TrainBatch) -> tuple[jax.Array, dict[str, jax.Array]]:
        current = logprobs(params, micro)
        if on_policy:
            micro = dataclasses.replace(micro, old_logprobs=jax.lax.stop_gradient(current))
        per_token, facts = loss(current, micro)
        learned = micro.weights > 0
        facts = {"entropy": -current, **facts}
        sums = {name: jnp.sum(jnp.where(learned, fact, 0.0)) for name, fact in facts.items()}
        peaks = {f"{name}_max": jnp.max(jnp.where(learned, facts[name], 0.0)) for name in PEAKS if name in facts}
        return jnp.sum(micro.weights * per_token), jax.lax.stop_gradient({**sums, **peaks})

    gradient = jax.value_and_grad(micro_loss, has_aux=True)

    def add(index: jax.Array, total: Any) -> Any:
        (value, facts), gradients = gradient(state.params, micro_batch(batch, index))
        facts = {
            name: jnp.maximum(total[1][name], fact) if name.endswith("_max") else total[1][name] + fact
            for name, fact in facts.items()
        }
        return total[0] + value, facts, jax.tree.map(jnp.add, total[2], gradients)

    (value, facts), gradients = jax.eval_shape(gradient, state.params, micro_batch(batch, 0))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (value, facts, gradients))
    total, facts, gradients = jax.lax.fori_loop(0, count, add, zeros)

    norm = optax.tree.norm(gradients)
    updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
    new = dataclasses.replace(state, params=optax.apply_updates(state.params, updates), opt_state=opt_state)
    finite = jnp.isfinite(total) & jnp.isfinite(norm)
    new = jax.tree.map(lambda after, before: jnp.where(finite, after, before), new, state)
    if shardings is not None:
        leaves, structure = jax.tree.flatten(new)
        leaves = [jax.lax.with_sharding_constraint(leaf, s) for leaf, s in zip(leaves, shardings, strict=True)]
        new = jax.tree.unflatten(structure, leaves)
    return new, {"loss": total, "grad_norm": norm, **facts}


def micro_batch(batch: TrainBatch, index: jax.Array | int) -> TrainBatch:
    """[M, b, T] → micro-batch `index`, [b, T]."""
    return jax.tree.map(lambda array: jax.lax.dynamic_index_in_dim(array, index, keepdims=False), batch)
