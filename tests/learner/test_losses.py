"""Losses against figures worked out by hand, and gradients against their formulas."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cojax.learner.batch import TrainBatch
from cojax.learner.losses import LOSSES, grpo, sft


def _batch(*, advantages, old, sampler, reference=None, weights=None):
    row = lambda values: jnp.array([values], jnp.float32)  # noqa: E731
    count = len(advantages)
    return TrainBatch(
        tokens=jnp.zeros((1, count), jnp.int32),
        segment_ids=jnp.ones((1, count), jnp.int32),
        positions=jnp.arange(count, dtype=jnp.int32)[None],
        advantages=row(advantages),
        sampler_logprobs=row(sampler),
        versions=jnp.zeros((1, count), jnp.int32),
        reference_logprobs=row(reference or [0.0] * count),
        old_logprobs=row(old),
        weights=row(weights or [1.0] * count),
    )


def _of_ratios(ratios, advantages, **settings):
    """Per-token GRPO loss where π_old = π_sampler = 1/2."""
    half = [math.log(0.5)] * len(ratios)
    batch = _batch(advantages=advantages, old=half, sampler=half)
    loss, facts = grpo(jnp.log(jnp.array([ratios]) * 0.5), batch, **settings)
    return loss[0], {name: fact[0] for name, fact in facts.items()}


def test_grpo_clips_above_for_good_and_below_for_bad_tokens():
    # A = 2: min(r·2, clip(r, .8, 1.28)·2);  A = −1: min(−r, −clip(r, .8, 1.28)).
    loss, facts = _of_ratios([1.0, 1.2, 1.5, 0.5, 1.0, 0.9, 0.5, 1.5], [2.0] * 4 + [-1.0] * 4)
    assert loss == pytest.approx([-2.0, -2.4, -2.56, -1.0, 1.0, 0.9, 0.8, 1.5], rel=1e-6)
    assert list(facts["clip_fraction"]) == [0, 0, 1, 0, 0, 0, 1, 0]
    assert facts["ratio"] == pytest.approx([1.0, 1.2, 1.5, 0.5, 1.0, 0.9, 0.5, 1.5], rel=1e-6)


def test_grpo_clip_bounds_are_settings():
    loss, _ = _of_ratios([1.5, 0.5], [1.0, -1.0], clip_low=0.4, clip_high=0.1)
    assert loss == pytest.approx([-1.1, 0.6], rel=1e-6)


def test_grpo_gradient_is_advantage_times_ratio_and_zero_where_clipped():
    half = [math.log(0.5)] * 3
    batch = _batch(advantages=[2.0, 2.0, -3.0], old=half, sampler=half)
    gradient = jax.grad(lambda logprobs: grpo(logprobs, batch)[0].sum())(jnp.log(jnp.array([[0.55, 0.9, 0.5]])))
    # ratios 1.1, 1.8 (above 1.28, A > 0: clipped), 1.0
    assert gradient[0] == pytest.approx([-2.2, 0.0, 3.0], rel=1e-6)


def test_grpo_weighs_by_truncated_importance_without_gradient():
    # π_old/π_sampler = 0.6/0.5 = 1.2, 0.2/0.5 = 0.4, 0.9/0.3 = 3 → capped at 2
    old, sampler = np.log([0.6, 0.2, 0.9]).tolist(), np.log([0.5, 0.5, 0.3]).tolist()
    batch = _batch(advantages=[1.0, 1.0, 1.0], old=old, sampler=sampler)
    loss, facts = grpo(batch.old_logprobs, batch)
    assert loss[0] == pytest.approx([-1.2, -0.4, -2.0], rel=1e-6)
    assert facts["importance"][0] == pytest.approx([1.2, 0.4, 2.0], rel=1e-6)
    assert facts["logprob_mismatch"][0] == pytest.approx([math.log(1.2), math.log(2.5), math.log(3.0)], rel=1e-5)
    gradient = jax.grad(lambda logprobs: grpo(logprobs, batch)[0].sum())(batch.old_logprobs)
    assert gradient[0] == pytest.approx([-1.2, -0.4, -2.0], rel=1e-6)


def test_grpo_kl_is_k3_towards_the_reference():
    # π_θ = 0.5; π_ref = 0.5, 0.25, 1.0 → x = 1, 1/2, 2; k3 = x − ln x − 1 = 0, 0.5 + ln 2 − 1, 2 − ln 2 − 1
    half = [math.log(0.5)] * 3
    batch = _batch(advantages=[0.0] * 3, old=half, sampler=half, reference=np.log([0.5, 0.25, 1.0]).tolist())
    loss, facts = grpo(jnp.array([half]), batch, kl_coefficient=0.1)
    assert facts["kl"][0] == pytest.approx([0.0, 0.19314718, 0.30685282], abs=1e-6)
    assert loss[0] == pytest.approx([0.0, 0.019314718, 0.030685282], abs=1e-7)
    # d k3 / d log π_θ = 1 − π_ref/π_θ
    gradient = jax.grad(lambda logprobs: grpo(logprobs, batch, kl_coefficient=1.0)[0].sum())(jnp.array([half]))
    assert gradient[0] == pytest.approx([0.0, 0.5, -1.0], abs=1e-6)


def test_without_coefficient_the_reference_is_not_read():
    half = [math.log(0.5)]
    batch = _batch(advantages=[1.0], old=half, sampler=half, reference=[float("nan")])
    loss, facts = grpo(jnp.array([half]), batch)
    assert loss[0, 0] == -1.0
    assert "kl" not in facts


@pytest.mark.parametrize("name", LOSSES)
def test_tokens_that_are_not_learned_cannot_poison_the_sum(name):
    """A prompt token the reference finds likely and the policy does not: e^990 would be infinite, 0 · ∞ NaN."""
    settings = {"kl_coefficient": 0.1} if name == "grpo" else {}
    batch = _batch(
        advantages=[1.0, 1.0], old=[-1.0, 0.0], sampler=[-1.0, -2000.0], reference=[-1.0, 0.0], weights=[1.0, 0.0]
    )

    def total(logprobs):
        return jnp.sum(batch.weights * LOSSES[name](logprobs, batch, **settings)[0])

    value, gradient = jax.value_and_grad(total)(jnp.array([[-1.0, -990.0]]))
    assert float(value) == pytest.approx({"grpo": -1.0, "sft": 1.0}[name])
    assert gradient[0].tolist() == [-1.0, 0.0]


def test_sft_is_the_negative_log_likelihood():
    batch = dataclasses.replace(_batch(advantages=[0.0] * 2, old=[0.0] * 2, sampler=[0.0] * 2))
    assert sft(jnp.array([[-0.5, -2.0]]), batch)[0][0].tolist() == [0.5, 2.0]
