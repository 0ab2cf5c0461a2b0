"""Losses: functions from log-probs and columns of the batch, arrays [b, T], to a loss for each token, float32[b, T].

The positional parameters of a loss name its inputs: scores of the policy (objective.py) or columns of the batch
(batch.py). The keyword-only ones are its settings. A loss returns the per-token loss and *facts*: per-token figures
that are reported as means over the learned tokens. Where the weight is 0, loss and facts are ignored, but they and the
gradient must be finite.
"""

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, get_type_hints

import jax
import jax.numpy as jnp

from cojax.registry import Range

Facts = dict[str, jax.Array]
Loss = Callable[..., tuple[jax.Array, Facts]]


def learns_from(*, pairs: bool = False, flat_groups: bool | Callable[..., bool] = False) -> Callable[[Loss], Loss]:
    """Declares what a loss learns from, where that is not groups with advantages other than 0.

    `pairs`: it learns from pairs of a success and a failure instead of groups. `flat_groups`: it also learns from
    groups whose advantages are all 0, either always or when a function of its settings says so. `flat_groups` need not
    be declared for a loss that uses no advantages, nor for one that uses reference log-probs or the entropy: terms of
    these do not depend on advantages.
    """
    learns_from_flat = flat_groups if callable(flat_groups) else (lambda **settings: bool(flat_groups))

    def declare(loss: Loss) -> Loss:
        vars(loss)["learns_from"] = pairs, learns_from_flat
        return loss

    return declare


# Building blocks for the losses here and for users' losses: pure functions of arrays [b, T]. Where `learned` is false,
# the result is exactly 0 and has no gradient, whatever the inputs are there.
LARGEST_LOG_RATIO = 10.0  # nats


def bounded_exp(log_ratio: jax.Array) -> jax.Array:
    """e^x up to x = LARGEST_LOG_RATIO, and from there on its tangent: e^B · (1 + x − B).

    Value and slope stay finite. The slope is at most e^B ≈ 22,026 and never falls, so that a token with a large ratio
    is still pulled back. A log-ratio of 10 nats is beyond any sound update; float32's exponential is infinite at 89.
    """
    limit = LARGEST_LOG_RATIO
    # Not by a minimum: where its arguments are equal, it halves the slope.
    bounded_ratio = jnp.exp(jnp.where(log_ratio > limit, limit, log_ratio))
    return jnp.where(log_ratio > limit, math.exp(limit) * (1.0 + log_ratio - limit), bounded_ratio)


def where_learned(learned: jax.Array, x: jax.Array) -> jax.Array:
    """x where learned, else 0: an infinite x would make the sum NaN even with weight 0."""
    return jnp.where(learned, x, 0.0)


def summed_by(ids: jax.Array, x: jax.Array) -> jax.Array:
    """For each token, the sum of x over the tokens with its id in this micro-batch; 0 where the id is negative.

    ids: int32[b, T], such as `sequences` or `groups` of the batch; tokens with one id must share a micro-batch.
    """
    flat_ids = jnp.where(ids < 0, -1, ids).reshape(-1)
    _, id_numbers = jnp.unique(flat_ids, size=flat_ids.size, fill_value=-1, return_inverse=True)
    sums = jax.ops.segment_sum(jnp.where(flat_ids < 0, 0.0, x.reshape(-1)), id_numbers, num_segments=flat_ids.size)
    return jnp.where(ids < 0, 0.0, sums[id_numbers].reshape(ids.shape))


def sequence_mean(sequences: jax.Array, learned: jax.Array, x: jax.Array) -> jax.Array:
    """For each learned token, the mean of x over the learned tokens of its sequence."""
    sums = summed_by(sequences, where_learned(learned, x))
    token_counts = summed_by(sequences, learned.astype(jnp.float32))
    return where_learned(learned, sums / jnp.maximum(token_counts, 1.0))


def two_sided_mask(log_ratio: jax.Array, low: float | None, high: float | None) -> jax.Array:
    """1 where low ≤ e^x ≤ high, else 0, without gradient; None is no bound (IcePop's mask; Ling team 2025).

    Raises ValueError for a lower bound above the upper one.
    """
    if low is not None and high is not None and low > high:
        raise ValueError(f"the mask's lower bound {low} is above its upper bound {high}; give the lower one first")
    mask = jnp.ones(log_ratio.shape, bool)
    if low is not None:
        mask &= log_ratio >= math.log(low)
    if high is not None:
        mask &= log_ratio <= math.log(high)
    return jax.lax.stop_gradient(mask.astype(jnp.float32))


def kl_estimate(kind: str, logprobs: jax.Array, towards: jax.Array) -> jax.Array:
    """KL(π_θ ‖ π) from a token drawn from π_θ, x = log π − log π_θ (Schulman 2020, "Approximating KL divergence"):

    k1 = −x: unbiased, but the mean of its gradient is 0, so that it has no effect as a loss;
    k2 = x² / 2: biased, of the right gradient;
    k3 = e^x − x − 1 ≥ 0: unbiased, with little variance; the exponential is `bounded_exp`.
    """
    log_ratio = towards - logprobs
    if kind == "k1":
        return -log_ratio
    return 0.5 * log_ratio * log_ratio if kind == "k2" else bounded_exp(log_ratio) - log_ratio - 1.0


_Clip = Annotated[float, Range(0.0)]
_Share = Annotated[float, Range(0.0, 1.0)]
_Bound = Annotated[float | None, Range(0.0, low_open=True)]
Term = Callable[..., tuple[jax.Array, Facts]]


def policy_gradient(term: Term) -> Loss:
    """Makes a loss of a surrogate `term(log_ratio, logprobs, advantages, sequences, learned, *, …)` → (loss, facts).

        loss_t = M_t · min(π_old/π_sampler, importance_cap) · term_t + kl_coefficient · KL_t − entropy_coefficient · H_t

    `ratio` chooses log_ratio. "old": log π_θ/π_old. With one update a step π_old is the policy itself, so this ratio is
    1, no clip binds, and only `importance_cap` acts on stale samples. "sampler": log π_θ/π_sampler. Then clips bind,
    and the factor min(…) is left out (arXiv 2110.00641 calls the former decoupled). The factor corrects for an engine
    that computes slightly differently (truncated importance sampling, arXiv 1802.01561, Yao et al. 2025). M_t is 0
    where π_old/π_sampler of a token is outside `token_low`, `token_high` (IcePop), or its geometric mean over a
    sequence outside `sequence_low`, `sequence_high`; else 1. None: no bound. KL is an estimate of `kl_estimate`,
    H the entropy. A term that is off reads no input.
    """

    def loss(
        logprobs: jax.Array,
        advantages: jax.Array,
        old_logprobs: jax.Array,
        sampler_logprobs: jax.Array,
        reference_logprobs: jax.Array,
        entropy: jax.Array,
        sequences: jax.Array,
        weights: jax.Array,
        *,
        ratio: Literal["old", "sampler"] = "old",
        importance_cap: Annotated[float, Range(0.0, low_open=True)] = 2.0,
        token_low: _Bound = None,
        token_high: _Bound = None,
        sequence_low: _Bound = None,
        sequence_high: _Bound = None,
        kl_coefficient: Annotated[float, Range(0.0)] = 0.0,
        kl: Literal["k1", "k2", "k3"] = "k3",
        kl_towards: Literal["reference", "sampler"] = "reference",
        entropy_coefficient: Annotated[float, Range(0.0)] = 0.0,
        **term_settings: Any,
    ) -> tuple[jax.Array, Facts]:
        learned = weights > 0
        old_to_sampler = where_learned(learned, old_logprobs - sampler_logprobs)
        log_ratio = where_learned(learned, logprobs - (old_logprobs if ratio == "old" else sampler_logprobs))
        per_token, facts = term(log_ratio, logprobs, advantages, sequences, learned, **term_settings)
        facts = {"ratio": bounded_exp(log_ratio), **facts}
        if ratio == "old":
            importance = jax.lax.stop_gradient(jnp.minimum(bounded_exp(old_to_sampler), importance_cap))
            per_token, facts["importance"] = importance * per_token, importance
        if (token_low, token_high) != (None, None):
            facts["token_masked"] = 1.0 - (mask := two_sided_mask(old_to_sampler, token_low, token_high))
            per_token = mask * per_token
        if (sequence_low, sequence_high) != (None, None):
            mean = sequence_mean(sequences, learned, old_to_sampler)
            facts["sequence_masked"] = 1.0 - (mask := two_sided_mask(mean, sequence_low, sequence_high))
            per_token = mask * per_token
        if kl_coefficient > 0:
            towards = reference_logprobs if kl_towards == "reference" else sampler_logprobs
            facts["kl"] = kl_estimate(kl, where_learned(learned, logprobs), where_learned(learned, towards))
            per_token = per_token + kl_coefficient * facts["kl"]
        if entropy_coefficient > 0:
            per_token = per_token - entropy_coefficient * where_learned(learned, entropy)
        return per_token, facts

    return learns_from(flat_groups=_has_regulariser)(_with_settings_of(loss, term))


def _has_regulariser(kl_coefficient: float = 0.0, entropy_coefficient: float = 0.0, **other_settings: Any) -> bool:
    return kl_coefficient > 0 or entropy_coefficient > 0


def _with_settings_of(loss: Loss, term: Term) -> Loss:
    """Gives the loss the term's name, and a signature that lists the term's settings, then its own.

    They replace **term_settings.
    """
    loss_parameters = [parameter for parameter in _list_parameters(loss) if parameter.kind != parameter.VAR_KEYWORD]
    term_settings = [parameter for parameter in _list_parameters(term) if parameter.kind == parameter.KEYWORD_ONLY]
    inputs = [parameter for parameter in loss_parameters if parameter.kind != parameter.KEYWORD_ONLY]
    functools.update_wrapper(loss, term)
    vars(loss)["__signature__"] = inspect.Signature([*inputs, *term_settings, *loss_parameters[len(inputs) :]])
    return loss


def _list_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The function's parameters, with annotations resolved in its own module."""
    hints = get_type_hints(function, include_extras=True)
    return [arg.replace(annotation=hints.get(arg.name, Any)) for arg in inspect.signature(function).parameters.values()]


@policy_gradient
def grpo(
    log_ratio: jax.Array,
    logprobs: jax.Array,
    advantages: jax.Array,
    sequences: jax.Array,
    learned: jax.Array,
    *,
    clip_low: _Share = 0.20,
    clip_high: _Clip = 0.28,
) -> tuple[jax.Array, Facts]:
    """The clipped surrogate (CoEvolve, §2.2): −min(r·Â, clip(r, 1−ε_low, 1+ε_high)·Â)."""
    ratio = bounded_exp(log_ratio)
    clipped_ratio = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    gain = jnp.minimum(ratio * advantages, clipped_ratio * advantages)
    return -gain, {"clip_fraction": (clipped_ratio * advantages < ratio * advantages).astype(jnp.float32)}


@policy_gradient
def gspo(
    log_ratio: jax.Array,
    logprobs: jax.Array,
    advantages: jax.Array,
    sequences: jax.Array,
    learned: jax.Array,
    *,
    form: Literal["sequence", "token"] = "sequence",
    clip_low: _Share = 3e-4,
    clip_high: _Clip = 4e-4,
) -> tuple[jax.Array, Facts]:
    """−min(s·Â, clip(s, 1−ε_low, 1+ε_high)·Â) of the sequence's ratio s = (Π_t r_t)^(1/|τ|) (GSPO, arXiv 2507.18071).

    With `form="token"` s_t = sg[s] · π_θ/sg[π_θ], of the same value, whose gradient at a token carries that token's
    advantage alone (Eq. 14 there). The paper's mean is the weighting `sequence_mean`.
    """
    mean_log_ratio = sequence_mean(sequences, learned, log_ratio)
    if form == "token":
        token_logprobs = where_learned(learned, logprobs)
        mean_log_ratio = jax.lax.stop_gradient(mean_log_ratio - token_logprobs) + token_logprobs
    ratio = bounded_exp(mean_log_ratio)
    clipped_s = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    gain = jnp.minimum(ratio * advantages, clipped_s * advantages)
    return -gain, {"ratio": ratio, "clip_fraction": (clipped_s * advantages < ratio * advantages).astype(jnp.float32)}


@policy_gradient
def cispo(
    log_ratio: jax.Array,
    logprobs: jax.Array,
    advantages: jax.Array,
    sequences: jax.Array,
    learned: jax.Array,
    *,
    clip_low: _Share = 1.0,
    clip_high: _Clip = 0.28,
) -> tuple[jax.Array, Facts]:
    """−sg[clip(r, 1−ε_low, 1+ε_high)] · Â · log π_θ: the clip bounds a token's weight, and no token loses its gradient
    (CISPO, arXiv 2506.13585, Eq. 4). ε_low = 1 is no lower bound, as in the paper; ε_high is not published."""
    ratio = bounded_exp(log_ratio)
    clipped_ratio = jax.lax.stop_gradient(jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high))
    per_token = -clipped_ratio * advantages * where_learned(learned, logprobs)
    return per_token, {"clip_fraction": (clipped_ratio != ratio).astype(jnp.float32)}


@policy_gradient
def dual_clip(
    log_ratio: jax.Array,
    logprobs: jax.Array,
    advantages: jax.Array,
    sequences: jax.Array,
    learned: jax.Array,
    *,
    clip_low: _Share = 0.20,
    clip_high: _Clip = 0.28,
    clip_bad: Annotated[float, Range(1.0, low_open=True)] = 3.0,
) -> tuple[jax.Array, Facts]:
    """As grpo, but where Â < 0 the gain is at least c·Â, with c = `clip_bad` (arXiv 1912.09729, Eq. 5).

    A ratio above c then has no gradient.
    """
    ratio = bounded_exp(log_ratio)
    clipped_ratio = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    gain = jnp.minimum(ratio * advantages, clipped_ratio * advantages)
    bounded_gain = jnp.where(advantages < 0, jnp.maximum(gain, clip_bad * advantages), gain)
    return -bounded_gain, {"clip_fraction": (bounded_gain != ratio * advantages).astype(jnp.float32)}


def sft(logprobs: jax.Array, weights: jax.Array) -> tuple[jax.Array, Facts]:
    """−log π_θ(token): supervised learning, which imitates all trajectories, whatever their reward."""
    return -where_learned(weights > 0, logprobs), {}


@learns_from(pairs=True)
def dpo(
    logprobs: jax.Array,
    reference_logprobs: jax.Array,
    advantages: jax.Array,
    rewards: jax.Array,
    groups: jax.Array,
    weights: jax.Array,
    *,
    beta: Annotated[float, Range(0.0, low_open=True)] = 0.1,
    dpo_coefficient: Annotated[float, Range(0.0)] = 1.0,
    sft_coefficient: Annotated[float, Range(0.0)] = 0.0,
) -> tuple[jax.Array, Facts]:
    """Direct preference optimisation plus imitation of the better trajectory of a pair (DPO, arXiv 2305.18290, Eq. 7;
    the sum of both as in arXiv 2511.22254, §4.2):

        λ_DPO · −log σ(β · [log π_θ/π_ref(better) − log π_θ/π_ref(worse)]) + λ_SFT · −log π_θ(better)

    Log-probs are sums over action tokens. A failure of a group is compared with one of its successes, drawn by the
    seed. Where both are failures the second term is 0: only a success is imitated. Every token of a pair has the pair's
    loss; the weights of a pair's tokens add up to 1 / pairs, so that the weighted sum is the mean over pairs.
    """
    learned = weights > 0
    signed_log_ratio = where_learned(learned, (logprobs - reference_logprobs) * advantages)
    margin = beta * summed_by(groups, signed_log_ratio)
    better_logprobs = where_learned(learned & (advantages > 0) & (rewards >= 1.0), logprobs)
    per_token = dpo_coefficient * jax.nn.softplus(-margin) - sft_coefficient * summed_by(groups, better_logprobs)
    return where_learned(learned, per_token), {"preferred": (margin > 0).astype(jnp.float32), "margin": margin}


LOSSES: Mapping[str, Loss] = {
    "grpo": grpo,
    "gspo": gspo,
    "cispo": cispo,
    "dual_clip": dual_clip,
    "sft": sft,
    "dpo": dpo,
}
