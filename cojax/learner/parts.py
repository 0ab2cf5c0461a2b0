"""Building blocks of losses: pure functions of arrays [b, T], for the losses here and for losses of users.

Where `learned` is false, the result is exactly 0 and has no gradient, whatever the inputs are there.
"""

import math

import jax
import jax.numpy as jnp

# In nats.
LARGEST_LOG_RATIO = 10.0


def bounded_exp(log_ratio: jax.Array) -> jax.Array:
    """e^x up to x = LARGEST_LOG_RATIO, and from there on its tangent: e^B · (1 + x − B).

    Value and slope stay finite. The slope is at most e^B ≈ 22,026 and never falls, so that a token with a large ratio
    is still pulled back. A log-ratio of 10 nats is beyond any sound update; float32's exponential is infinite at 89.
    """
    bound = LARGEST_LOG_RATIO
    # Not by a minimum, whose slope where both are equal is half of either.
    within = jnp.exp(jnp.where(log_ratio > bound, bound, log_ratio))
    return jnp.where(log_ratio > bound, math.exp(bound) * (1.0 + log_ratio - bound), within)


def where_learned(learned: jax.Array, x: jax.Array) -> jax.Array:
    """x where learned, else 0: an infinite x would make the sum NaN, even with weight 0."""
    return jnp.where(learned, x, 0.0)


def summed_by(ids: jax.Array, x: jax.Array) -> jax.Array:
    """For each token the sum of x over the tokens with the same id in this micro-batch; 0 where the id is negative.

    ids: int32[b, T], such as `sequences` or `groups` of the batch; tokens with one id must share a micro-batch.
    """
    flat = jnp.where(ids < 0, -1, ids).reshape(-1)
    _, numbers = jnp.unique(flat, size=flat.size, fill_value=-1, return_inverse=True)
    sums = jax.ops.segment_sum(jnp.where(flat < 0, 0.0, x.reshape(-1)), numbers, num_segments=flat.size)
    return jnp.where(ids < 0, 0.0, sums[numbers].reshape(ids.shape))


def sequence_mean(sequences: jax.Array, learned: jax.Array, x: jax.Array) -> jax.Array:
    """For each learned token the mean of x over the learned tokens of its sequence."""
    sums = summed_by(sequences, where_learned(learned, x))
    counts = summed_by(sequences, learned.astype(jnp.float32))
    return where_learned(learned, sums / jnp.maximum(counts, 1.0))


def two_sided_mask(log_ratio: jax.Array, low: float | None, high: float | None) -> jax.Array:
    """1 where low ≤ e^x ≤ high, else 0, without gradient; None is no bound (IcePop's mask; Ling team 2025).

    Raises ValueError for a lower bound above the upper one.
    """
    if low is not None and high is not None and low > high:
        raise ValueError(f"the mask's lower bound {low} is above its upper bound {high}; give the lower one first")
    kept = jnp.ones(log_ratio.shape, bool)
    if low is not None:
        kept &= log_ratio >= math.log(low)
    if high is not None:
        kept &= log_ratio <= math.log(high)
    return jax.lax.stop_gradient(kept.astype(jnp.float32))


def kl_estimate(kind: str, logprobs: jax.Array, towards: jax.Array) -> jax.Array:
    """KL(π_θ ‖ π) from a token drawn from π_θ, x = log π − log π_θ (Schulman 2020, "Approximating KL divergence"):

    k1 = −x: unbiased, but the mean of its gradient is 0, so that it has no effect as a loss;
    k2 = x² / 2: biased, of the right gradient;
    k3 = e^x − x − 1 ≥ 0: unbiased, with little variance; the exponential is `bounded_exp`.
    """
    x = towards - logprobs
    if kind == "k1":
        return -x
    return 0.5 * x * x if kind == "k2" else bounded_exp(x) - x - 1.0
