"""Losses of one token, as pure functions. Sums and means are not theirs: loss = Σ weights · per-token loss.

Each maps the policy's log-probs float32[…, T] and the batch to (per-token loss, facts), all float32[…, T]. Facts are
per-token figures worth averaging over the learned tokens. Where the weight is 0 a value means nothing, but is finite.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from cojax.learner.batch import TrainBatch

Facts = dict[str, jax.Array]
Loss = Callable[..., tuple[jax.Array, Facts]]


def grpo(
    logprobs: jax.Array,
    batch: TrainBatch,
    *,
    clip_low: float = 0.20,
    clip_high: float = 0.28,
    kl_coefficient: float = 0.0,
    importance_cap: float = 2.0,
) -> tuple[jax.Array, Facts]:
    """Group-relative policy optimisation with an asymmetric clip (CoEvolve, Eq. 1; clip: DAPO, arXiv 2503.14476).

        −w · min(r·Â, clip(r, 1 − ε_low, 1 + ε_high)·Â) + β · k3

        r  = π_θ / π_old
        w  = min(π_old / π_sampler, cap), no gradient: the sampler computes π_old in another way, and rounds
             differently (truncated importance sampling, arXiv 1802.01561 and Yao et al. 2025)
        k3 = π_ref/π_θ − log(π_ref/π_θ) − 1 ≥ 0, an unbiased estimate of KL(π_θ ‖ π_ref) (Schulman 2020)

    With `kl_coefficient` 0 the reference is not read.
    """
    learned = batch.weights > 0
    ratio = jnp.exp(_at(learned, logprobs - batch.old_logprobs))
    clipped = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    gain = jnp.minimum(ratio * batch.advantages, clipped * batch.advantages)
    importance = jax.lax.stop_gradient(
        jnp.minimum(jnp.exp(_at(learned, batch.old_logprobs - batch.sampler_logprobs)), importance_cap)
    )
    facts = {
        "ratio": ratio,
        "clip_fraction": (clipped * batch.advantages < ratio * batch.advantages).astype(jnp.float32),
        "importance": importance,
        "logprob_mismatch": jnp.abs(_at(learned, batch.old_logprobs - batch.sampler_logprobs)),
    }
    per_token = -importance * gain
    if kl_coefficient > 0:
        toward = _at(learned, batch.reference_logprobs - logprobs)
        kl = jnp.exp(toward) - toward - 1.0
        per_token = per_token + kl_coefficient * kl
        facts["kl"] = kl
    return per_token, facts


def sft(logprobs: jax.Array, batch: TrainBatch) -> tuple[jax.Array, Facts]:
    """Negative log-likelihood, −log π_θ."""
    return -_at(batch.weights > 0, logprobs), {}


LOSSES: dict[str, Loss] = {"grpo": grpo, "sft": sft}


def _at(learned: jax.Array, values: jax.Array) -> jax.Array:
    """0 at other tokens, whose values could overflow in exp and poison the sum as 0 · ∞."""
    return jnp.where(learned, values, 0.0)
