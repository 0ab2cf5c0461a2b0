"""The arithmetic of one update: `train_step` is the only one there is, written to be jitted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from cojax.learner.batch import TrainBatch
from cojax.learner.reading import Facts
from cojax.policy.logprobs import TokenScores

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
    """A loss or gradient was not a number. `batch` and `metrics` are its causes; `state` holds no part of that update,
    but the `made` updates of the same step before it."""

    def __init__(self, state: TrainState, batch: TrainBatch, metrics: Metrics, made: int):
        self.state, self.batch, self.metrics = state, batch, metrics
        step = int(state.step) + 1
        kept = f"hold the {made} updates of this step before it" if made else "are those before the step"
        super().__init__(
            f"step {step}, update {made + 1}: loss {metrics['loss']}, gradient norm {metrics['grad_norm']}; expected "
            f"finite numbers. The update was not made: the parameters {kept}. Look at the saved batch. The same "
            f"command meets it again, so add --config.learner.skip_steps=({step},), which makes no update in that "
            "step, or lower optimizer.learning_rate or a cap of the loss."
        )

    def save(self, path: Path) -> None:
        """Writes the batch and the metrics as one .npz; `numpy.load` reads it."""
        arrays = {name: array for name, array in vars(self.batch).items() if array is not None}
        arrays |= {f"metric_{name}": np.float64(value) for name, value in self.metrics.items()}
        np.savez_compressed(path, allow_pickle=False, **arrays)


def train_step(
    state: TrainState,
    batch: TrainBatch,
    count: jax.Array,
    *,
    score: Callable[[Params, TrainBatch], TokenScores],
    loss: Callable[[TokenScores, TrainBatch], tuple[jax.Array, Facts]],
    optimizer: optax.GradientTransformation,
    on_policy: bool,
    shardings: tuple[jax.sharding.Sharding, ...] | None = None,
) -> tuple[TrainState, dict[str, jax.Array]]:
    """One optimiser update on the first `count` of M micro-batches, which add up exactly to the full batch.

    batch: arrays [M, b, T]; count: int32[], at most M, so that one compiled program serves any number of live rows.
    `score` gives the policy's log-probs and entropies. With `on_policy`, old log-probs are the current ones without
    gradient; else they are read from the batch. `shardings`, one for each leaf of the state, keep the new state laid
    out as the old one.

    Returns the new state, or the old one where loss or gradient is not finite, and float32[] metrics: `loss`,
    `grad_norm` before clipping, sums of the facts over the learned tokens, and `…_max` for those in PEAKS. Beside the
    loss's own facts there are `entropy`, in nats, and `logprob_mismatch`, |log π_old − log π_sampler| where a sampler
    acted, else 0; with routes in the batch, `routes_differing` and `routes_known` of `TokenScores`.
    """

    def micro_loss(params: Params, micro: TrainBatch) -> tuple[jax.Array, dict[str, jax.Array]]:
        current = score(params, micro)
        if on_policy:
            micro = dataclasses.replace(micro, old_logprobs=jax.lax.stop_gradient(current.logprobs))
        per_token, facts = loss(current, micro)
        learned = micro.weights > 0
        mismatch = jnp.where(micro.versions >= 0, jnp.abs(micro.old_logprobs - micro.sampler_logprobs), 0.0)
        facts = {"entropy": current.entropy, "logprob_mismatch": mismatch, **facts}
        if current.routes_differing is not None and current.routes_known is not None:
            facts |= {"routes_differing": current.routes_differing, "routes_known": current.routes_known}
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


def averaged(raw: Mapping[str, np.ndarray], tokens: float) -> Metrics:
    """Sums over the learned tokens → means; loss, norm and maxima stay. `routes_differing` is the mean over those whose
    routes are known."""
    whole = {name for name in raw if name in ("loss", "grad_norm") or name.endswith("_max")}
    counts = {"routes_differing": max(1.0, float(raw.get("routes_known", 0.0)))}
    return {
        name: float(value) if name in whole else float(value) / counts.get(name, tokens) for name, value in raw.items()
    }
