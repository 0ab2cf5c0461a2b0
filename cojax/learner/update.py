"""The arithmetic of an optimiser update: `update`, a pure function from one `TrainState` to the next."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from cojax.learner.batch import TrainBatch, assert_columns
from cojax.learner.objective import BoundLoss
from cojax.policy.gradient_sums import Summed, reach
from cojax.policy.logprobs import TokenScores

Params = Any  # a nested dict of jax.Array
Metrics = dict[str, float]
LossAndFacts = tuple[jax.Array, dict[str, jax.Array]]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """The state that an update takes and from which the next one starts.

    step: int32[], steps of learning taken so far; params: nested dict of arrays; opt_state: optax's.
    """

    step: Any
    params: Params
    opt_state: Any


def join_states(state: TrainState, second_state: TrainState | None) -> Any:
    """The content of a checkpoint: the state, and a second agent's state under its own name."""
    return state if second_state is None else {**vars(state), "second": second_state}


def split_states(arrays: Any) -> tuple[TrainState, TrainState | None]:
    """The states in the content of a checkpoint."""
    if not isinstance(arrays, Mapping):
        return arrays, None
    return TrainState(**{name: value for name, value in arrays.items() if name != "second"}), arrays["second"]


# Facts whose largest value is reported too, not only their mean.
PEAK_FACTS = ("logprob_mismatch", "ratio")


class NonFiniteUpdate(RuntimeError):
    """The loss or the gradient of an update was not finite, so the update was not made.

    `state` is the state before that update and includes the `count` earlier updates of the step. `batch` is the batch
    of the failed update, and `metrics` holds its loss and gradient norm.
    """

    def __init__(self, state: TrainState, batch: TrainBatch, metrics: Metrics, count: int):
        self.state, self.batch, self.metrics = state, batch, metrics
        step = int(state.step) + 1
        status = f"hold the {count} updates of this step before it" if count else "are those before the step"
        super().__init__(
            f"step {step}, update {count + 1}: loss {metrics['loss']}, gradient norm {metrics['grad_norm']}; expected "
            f"finite numbers. The update was not made: the parameters {status}. Look at the saved batch. The same "
            f"command fails at this step again, so add --config.learner.skip_steps=({step},), which makes no update in "
            "that step, or lower optimizer.learning_rate (of a method of rounds, preference.learning_rate) or a cap of "
            "the loss."
        )

    def save(self, path: Path) -> None:
        """Writes the batch and the metrics as one .npz file, which `numpy.load` reads."""
        arrays = {column_name: array for column_name, array in vars(self.batch).items() if array is not None}
        arrays |= {f"metric_{column_name}": np.float64(value) for column_name, value in self.metrics.items()}
        np.savez_compressed(path, allow_pickle=False, **arrays)


def update(
    state: TrainState,
    base: Params | None,
    batch: TrainBatch,
    micro_count: jax.Array,
    pairs: tuple[TrainBatch, jax.Array] | None = None,
    *,
    score: Callable[[Params | None, Params, TrainBatch], TokenScores],
    loss: BoundLoss,
    optimizer: optax.GradientTransformation,
    on_policy: bool,
    cast: Callable[[Params], Params] = lambda params: params,
    pair_loss: BoundLoss | None = None,
    shardings: tuple[jax.sharding.Sharding, ...] | None = None,
) -> tuple[TrainState, dict[str, jax.Array]]:
    """One optimiser update from the sum of the gradients of the first `micro_count` of M micro-batches.

    batch: arrays [M, b, T]; count: int32[], at most M, so that one compiled program serves any number of live rows.
    `score` gives the log-probs and entropies of the policy, `cast(state.params)` upon `base`: parameters are cast for
    their products once, and their gradients are summed in float32 (`cojax.policy.gradient_sums`). With `on_policy` the
    old log-probs are the current ones without gradient; without it they are read from the batch. `pairs` is another
    batch and the number of its live micro-batches; their `pair_loss` is added, and is the metric `hard_loss`.
    `shardings` holds one sharding for each leaf of the state, and the new state keeps them.

    Returns the new state, or the old one where loss or gradient is not finite; and float32[] metrics: `loss`,
    `grad_norm` before clipping, the sum of each fact of `score_micro` over the learned tokens, and its largest value as
    `…_max` for the facts in PEAK_FACTS.
    """
    terms = [(batch, micro_count, loss, on_policy)]
    if pairs is not None and pair_loss is not None:
        terms.append((*pairs, pair_loss, True))
    params, term_sums = cast(state.params), list[LossAndFacts]()
    gradients = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), params)
    for term_batch, live_count, term, current in terms:
        assert_columns(term_batch, axis_count=3)
        term_loss = functools.partial(score_micro, score=functools.partial(score, base), loss=term, on_policy=current)
        shapes = jax.eval_shape(term_loss, gradients, params, take_micro_batch(term_batch, 0))
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        add_micro_batch = functools.partial(_add_micro_batch, term_loss, params, term_batch)
        sums, gradients = jax.lax.fori_loop(0, live_count, add_micro_batch, (zeros, gradients))
        term_sums.append(sums)
    loss_sum, fact_sums = term_sums[0]
    for pair_sum, _ in term_sums[1:]:
        loss_sum, fact_sums = loss_sum + pair_sum, {**fact_sums, "hard_loss": pair_sum}
    gradient_norm = optax.tree.norm(gradients)
    updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
    new_state = dataclasses.replace(state, params=optax.apply_updates(state.params, updates), opt_state=opt_state)
    is_finite = jnp.isfinite(loss_sum) & jnp.isfinite(gradient_norm)
    new_state = jax.tree.map(lambda new_leaf, old_leaf: jnp.where(is_finite, new_leaf, old_leaf), new_state, state)
    if shardings is not None:
        layout = jax.tree.unflatten(jax.tree.structure(new_state), shardings)
        new_state = jax.tree.map(jax.lax.with_sharding_constraint, new_state, layout)
    return new_state, {"loss": loss_sum, "grad_norm": gradient_norm, **fact_sums}


def _add_micro_batch(
    loss: Callable[[Params, Params, TrainBatch], LossAndFacts],
    params: Params,
    batch: TrainBatch,
    index: jax.Array,
    sums: tuple[LossAndFacts, Params],
) -> tuple[LossAndFacts, Params]:
    """Adds micro-batch `index` to the sums of loss, facts and gradient."""
    (loss_sum, fact_sums), totals = sums
    # The gradient with respect to the sums is the new sums.
    compute_gradients = jax.value_and_grad(loss, has_aux=True)
    (micro_loss, micro_facts), totals = compute_gradients(totals, params, take_micro_batch(batch, index))
    micro_facts = {
        name: jnp.maximum(fact_sums[name], fact) if name.endswith("_max") else fact_sums[name] + fact
        for name, fact in micro_facts.items()
    }
    return (loss_sum + micro_loss, micro_facts), totals


def score_micro(
    totals: Params,
    params: Params,
    batch: TrainBatch,
    *,
    score: Callable[[Params, TrainBatch], TokenScores],
    loss: BoundLoss,
    on_policy: bool,
) -> LossAndFacts:
    """The loss of one micro-batch [b, T], and the sums and maxima of its facts over the learned tokens.

    The facts are the loss's own; `entropy` in nats; `logprob_mismatch`, which is |log π_old − log π_sampler| where a
    sampler acted and 0 elsewhere; and, if the batch holds routes, `routes_differing` and `routes_known` of
    `TokenScores`. Only the loss has a gradient, which goes to the `totals` of the parameters.
    """
    scores = score(jax.tree.map(Summed, params, totals), batch)
    if on_policy:
        batch = dataclasses.replace(batch, old_logprobs=jax.lax.stop_gradient(scores.logprobs))
    per_token, facts = loss.function(*loss.select_inputs(scores, batch), **loss.settings)
    mask = batch.weights > 0
    mismatch = jnp.where(batch.versions >= 0, jnp.abs(batch.old_logprobs - batch.sampler_logprobs), 0.0)
    facts = {"entropy": scores.entropy, "logprob_mismatch": mismatch, **facts}
    chex.assert_shape([per_token, scores.logprobs, *facts.values()], batch.tokens.shape)
    if scores.routes_differing is not None and scores.routes_known is not None:
        facts |= {"routes_differing": scores.routes_differing, "routes_known": scores.routes_known}
    sums = {name: jnp.sum(jnp.where(mask, fact, 0.0)) for name, fact in facts.items()}
    peaks = {f"{name}_max": jnp.max(jnp.where(mask, facts[name], 0.0)) for name in PEAK_FACTS if name in facts}
    return reach(jnp.sum(batch.weights * per_token), scores.logprobs), jax.lax.stop_gradient({**sums, **peaks})


def compute_logprobs(score: Callable[[TrainBatch], TokenScores], batch: TrainBatch, count: jax.Array) -> jax.Array:
    """float32[M, b, T]: log-probs of the first `count` of M micro-batches, 0 beyond."""
    assert_columns(batch, axis_count=3)

    def fill_micro_batch(index: jax.Array, logprobs: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_index_in_dim(logprobs, score(take_micro_batch(batch, index)).logprobs, index, 0)

    return jax.lax.fori_loop(0, count, fill_micro_batch, jnp.zeros(batch.tokens.shape, jnp.float32))


def take_micro_batch(batch: TrainBatch, index: jax.Array | int) -> TrainBatch:
    """[M, b, T] → micro-batch `index`, [b, T]."""
    return jax.tree.map(lambda array: jax.lax.dynamic_index_in_dim(array, index, keepdims=False), batch)


def combine_updates(update_metrics: Sequence[Metrics]) -> Metrics:
    """Combines the metrics of a step's updates: their number as `updates`, the largest `…_max`, means of all others.

    Each is over the updates that have it.
    """
    metrics: Metrics = {"updates": float(len(update_metrics))}
    for metric_name in dict.fromkeys(metric_name for update in update_metrics for metric_name in update):
        values = [update[metric_name] for update in update_metrics if metric_name in update]
        metrics[metric_name] = max(values) if metric_name.endswith("_max") else sum(values) / len(values)
    return metrics


def mean_metrics(sums: Mapping[str, np.ndarray], batch: TrainBatch) -> Metrics:
    """Turns the sums in the metrics of `update` into means over the learned tokens of this batch on the host.

    Loss, gradient norm and maxima stay. The mean of `routes_differing` is over the tokens whose routes are known, that
    of `logprob_mismatch` over the tokens that a sampler drew; without such tokens, it and its maximum are left out.
    """
    mask = np.asarray(batch.weights) > 0
    token_count, sampled_count = float(mask.sum()), float((mask & (np.asarray(batch.versions) >= 0)).sum())
    unaveraged_names = {name for name in sums if name in ("loss", "grad_norm", "hard_loss") or name.endswith("_max")}
    divisors = {"routes_differing": max(1.0, float(sums.get("routes_known", 0.0))), "logprob_mismatch": sampled_count}
    return {
        name: float(value) if name in unaveraged_names else float(value) / divisors.get(name, token_count)
        for name, value in sums.items()
        if sampled_count or not name.startswith("logprob_mismatch")
    }
