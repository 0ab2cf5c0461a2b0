"""Losses against figures worked out by hand, and gradients against their formulas."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cojax.learner.batch import DTYPES, TrainBatch
from cojax.learner.losses import LOSSES, bounded_exp, summed_by, two_sided_mask
from cojax.learner.objective import bind_loss
from cojax.policy.logprobs import TokenScores


def _batch(*, advantages, old, sampler, reference=None, weights=None, reward=0.0):
    """One row of numpy arrays, which is one sequence."""
    count = len(advantages)
    given = {
        "advantages": advantages,
        "sampler_logprobs": sampler,
        "reference_logprobs": reference or [0.0] * count,
        "old_logprobs": old,
        "weights": weights or [1.0] * count,
        "segment_ids": [1] * count,
        "positions": range(count),
        "rewards": [reward * (advantage > 0) for advantage in advantages],
    }
    return TrainBatch(**{name: np.array([list(given.get(name, [0] * count))], dtype) for name, dtype in DTYPES.items()})


def _loss(name, logprobs, batch, **settings):
    """(per-token loss, facts); the entropy is 1 nat everywhere. A row of 8 tokens, as programs of one shape suffice."""
    bound, count = bind_loss(name, LOSSES, settings), logprobs.shape[1]
    padding = (0, 0), (0, 8 - count)
    scores = TokenScores(jnp.pad(logprobs, padding), jnp.ones((1, 8)))
    padded = jax.tree.map(lambda column: np.pad(column, padding), batch)
    return jax.tree.map(lambda x: x[:, :count], bound.function(*bound.select_inputs(scores, padded), **bound.settings))


grpo, sft = functools.partial(_loss, "grpo"), functools.partial(_loss, "sft")


def _of_ratios(ratios, advantages, name="grpo", **settings):
    """Per-token loss where π_old = π_sampler = 1/2."""
    half = [math.log(0.5)] * len(ratios)
    batch = _batch(advantages=advantages, old=half, sampler=half)
    loss, facts = _loss(name, jnp.log(jnp.array([ratios]) * 0.5), batch, **settings)
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
    loss, facts = grpo(jnp.array(batch.old_logprobs), batch)
    assert loss[0] == pytest.approx([-1.2, -0.4, -2.0], rel=1e-6)
    assert facts["importance"][0] == pytest.approx([1.2, 0.4, 2.0], rel=1e-6)
    gradient = jax.grad(lambda logprobs: grpo(logprobs, batch)[0].sum())(jnp.array(batch.old_logprobs))
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


REGULARISED = {
    "kl_coefficient": 0.1, "entropy_coefficient": 0.0, "sequence_low": 0.5, "sequence_high": 2.0, "token_high": 2.0,
}  # fmt: skip
EXPECTED = {  # at log π = −1 = log π_old = log π_ref, advantage 1: value and slope
    "grpo": (-1.0, -1.0), "gspo": (-1.0, -1.0), "cispo": (1.0, -1.0), "dual_clip": (-1.0, -1.0), "sft": (1.0, -1.0),
    "dpo": (math.log(2.0), -0.05),
}  # fmt: skip


@pytest.mark.compiles
@pytest.mark.parametrize("name", LOSSES)
def test_tokens_that_are_not_learned_cannot_poison_the_sum(name):
    """A prompt token the reference finds likely and the policy does not: e^990 would be infinite, 0 · ∞ NaN."""
    settings = {} if name in ("sft", "dpo") else REGULARISED
    batch = _batch(
        advantages=[1.0, 1.0], old=[-1.0, 0.0], sampler=[-1.0, -2000.0], reference=[-1.0, 0.0], weights=[1.0, 0.0]
    )

    def total(logprobs):
        return jnp.sum(batch.weights * _loss(name, logprobs, batch, **settings)[0])

    value, gradient = jax.value_and_grad(total)(jnp.array([[-1.0, -990.0]]))
    assert float(value) == pytest.approx(EXPECTED[name][0])
    assert gradient[0].tolist() == pytest.approx([EXPECTED[name][1], 0.0])


def test_sft_is_the_negative_log_likelihood_of_what_is_learned():
    batch = _batch(advantages=[0.0] * 3, old=[0.0] * 3, sampler=[0.0] * 3, weights=[1.0, 1.0, 0.0])
    assert sft(jnp.array([[-0.5, -2.0, -3.0]]), batch)[0][0].tolist() == [0.5, 2.0, 0.0]


# The others, by hand ----------------------------------------------------------------------------------------------


def test_gspo_takes_the_geometric_mean_of_a_sequence():
    """r = (1.2, 0.9, 1.0): s = 1.08^(1/3) = 1.0259856, with Â = 2 clipped at 1 + 0.02, with Â = −1 not."""
    loss, facts = _of_ratios([1.2, 0.9, 1.0], [2.0, 2.0, -1.0], "gspo", clip_low=0.02, clip_high=0.02)
    assert loss == pytest.approx([-2.04, -2.04, 1.0259856], rel=1e-6)
    assert facts["ratio"] == pytest.approx([1.0259856] * 3, rel=1e-6)
    assert list(facts["clip_fraction"]) == [1, 1, 0]


@pytest.mark.parametrize(("form", "expected"), [("sequence", [-1.0, -1.0]), ("token", [-3.0, 1.0])])
def test_gspo_of_tokens_credits_each_with_its_own_advantage(form, expected):
    """Two tokens at ratio 1, Â = 3 and −1: the sequence's form gives both s · (3 − 1) / 2."""
    half = [math.log(0.5)] * 2
    batch = _batch(advantages=[3.0, -1.0], old=half, sampler=half)
    gradient = jax.grad(lambda x: _loss("gspo", x, batch, form=form)[0].sum())(jnp.array([half]))
    assert gradient[0] == pytest.approx(expected, rel=1e-6)


def test_cispo_bounds_the_weight_and_keeps_the_gradient():
    """r = 1.5 and 0.5, Â = 2: weights 1.28 and 0.5 on −Â · log π."""
    half = [math.log(0.5)] * 2
    batch = _batch(advantages=[2.0, 2.0], old=half, sampler=half)
    logprobs = jnp.log(jnp.array([[0.75, 0.25]]))
    loss, facts = _loss("cispo", logprobs, batch)
    assert loss[0] == pytest.approx([-2.56 * math.log(0.75), -1.0 * math.log(0.25)], rel=1e-6)
    assert list(facts["clip_fraction"][0]) == [1, 0]
    gradient = jax.grad(lambda x: _loss("cispo", x, batch)[0].sum())(logprobs)
    assert gradient[0] == pytest.approx([-2.56, -1.0], rel=1e-6)


def test_dual_clip_ends_the_pull_of_bad_tokens():
    """Â = −1: gain −r down to −3, and no gradient beyond."""
    loss, _ = _of_ratios([0.5, 2.0, 4.0], [-1.0] * 3, "dual_clip")
    assert loss == pytest.approx([0.8, 2.0, 3.0], rel=1e-6)
    half = [math.log(0.5)]
    batch = _batch(advantages=[-1.0], old=half, sampler=half)
    gradient = jax.grad(lambda x: _loss("dual_clip", x, batch)[0].sum())(jnp.log(jnp.array([[2.0]])))
    assert gradient[0, 0] == 0.0


def test_against_the_sampler_clips_bind_with_one_update_a_step():
    """π = π_old = 0.6, π_sampler = 0.4: r = 1.5 clips at 1.28 with Â = 1, and there is no further importance."""
    off = math.log(0.6)
    batch = _batch(advantages=[1.0], old=[off], sampler=[math.log(0.4)])
    decoupled, _ = grpo(jnp.array([[off]]), batch)
    loss, facts = grpo(jnp.array([[off]]), batch, ratio="sampler")
    assert (float(decoupled[0, 0]), float(loss[0, 0])) == pytest.approx((-1.5, -1.28), rel=1e-6)
    assert (float(facts["clip_fraction"][0, 0]), "importance" in facts) == (1.0, False)


def test_masks_leave_out_tokens_and_whole_sequences():
    """π_old/π_sampler = 3, 1, 1: the first is above 2; its geometric mean over the sequence, 1.442, above 1.4."""
    sampler = [math.log(0.1), math.log(0.3), math.log(0.3)]
    batch = _batch(advantages=[1.0] * 3, old=[math.log(0.3)] * 3, sampler=sampler)
    loss, facts = grpo(jnp.array(batch.old_logprobs), batch, token_low=0.5, token_high=2.0)
    assert loss[0] == pytest.approx([0.0, -1.0, -1.0])
    assert facts["token_masked"][0].tolist() == [1.0, 0.0, 0.0]
    assert grpo(jnp.array(batch.old_logprobs), batch, sequence_high=1.5)[0][0] == pytest.approx([-2.0, -1.0, -1.0])
    loss, facts = grpo(jnp.array(batch.old_logprobs), batch, sequence_high=1.4)
    assert loss[0].tolist() == [0.0, 0.0, 0.0]
    assert facts["sequence_masked"][0].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(("kind", "expected"), [("k1", math.log(0.5)), ("k2", 0.24022651), ("k3", 0.30685282)])
def test_estimates_of_the_divergence(kind, expected):
    """π = ½, π_ref = 1: x = ln 2; −x, x²/2, 2 − x − 1."""
    batch = _batch(advantages=[0.0], old=[0.0], sampler=[0.0], reference=[0.0])
    facts = grpo(jnp.array([[math.log(0.5)]]), batch, kl_coefficient=1.0, kl=kind)[1]
    assert float(facts["kl"][0, 0]) == pytest.approx(expected, rel=1e-6)


def test_the_entropy_bonus_is_taken_off():
    batch = _batch(advantages=[1.0], old=[-1.0], sampler=[-1.0])
    assert float(grpo(jnp.array([[-1.0]]), batch, entropy_coefficient=0.25)[0][0, 0]) == pytest.approx(-1.25)


def test_preferences_hold_the_loss_of_their_pair_at_every_token():
    """β = 0.5; log π − log π_ref: better 0.2 + 0.1, worse −0.3: margin 0.5 · 0.6; log(1 + e^−0.3) = 0.55435524."""
    given = {"advantages": [1.0, 1.0, -1.0], "old": [0.0] * 3, "sampler": [0.0] * 3, "reference": [-1.0, -2.0, -1.0]}
    batch = _batch(**given, reward=1.0)
    logprobs = jnp.array([[-0.8, -1.9, -1.3]])
    loss, facts = _loss("dpo", logprobs, batch, beta=0.5)
    assert loss[0] == pytest.approx([0.55435524] * 3, rel=1e-6)
    assert facts["preferred"][0].tolist() == [1.0, 1.0, 1.0]
    # −log π(better) = 2.7, half of each.
    loss, _ = _loss("dpo", logprobs, batch, beta=0.5, dpo_coefficient=0.5, sft_coefficient=0.5)
    assert loss[0] == pytest.approx([0.5 * 0.55435524 + 1.35] * 3, rel=1e-6)
    # Of two failures the better one is preferred, but not imitated.
    loss, _ = _loss("dpo", logprobs, _batch(**given, reward=0.75), beta=0.5, dpo_coefficient=0.5, sft_coefficient=0.5)
    assert loss[0] == pytest.approx([0.5 * 0.55435524] * 3, rel=1e-6)


# Parts ------------------------------------------------------------------------------------------------------------


def test_sums_are_those_of_an_id_over_all_rows():
    ids = jnp.array([[4, 4, 9, -1], [9, 4, 0, -1]])
    x = jnp.array([[1.0, 2.0, 3.0, 50.0], [4.0, 5.0, 6.0, 50.0]])
    assert summed_by(ids, x).tolist() == [[8.0, 8.0, 7.0, 0.0], [7.0, 8.0, 6.0, 0.0]]
    gradient = jax.grad(lambda x: (summed_by(ids, x) * jnp.array([[1.0, 0, 0, 1], [0, 0, 2.0, 1]])).sum())(x)
    assert gradient.tolist() == [[1.0, 1.0, 0.0, 0.0], [0.0, 1.0, 2.0, 0.0]]


def test_a_bound_that_is_none_masks_nothing():
    x = jnp.log(jnp.array([0.01, 1.0, 100.0]))
    assert two_sided_mask(x, None, 2.0).tolist() == [1.0, 1.0, 0.0]
    assert two_sided_mask(x, 0.5, None).tolist() == [0.0, 1.0, 1.0]


# Far off the policy -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("log_ratio", [30.0, 89.0, 2000.0])
def test_k3_pulls_back_with_a_bounded_slope(log_ratio):
    """Beyond B = 10: k3 = e^B · (1 + x − B) − x − 1, and its slope in log π_θ is 1 − e^B = −22,025.47."""
    batch = _batch(advantages=[0.0], old=[-1.0 - log_ratio], sampler=[-1.0 - log_ratio], reference=[-1.0])

    def total(logprobs):
        return grpo(logprobs, batch, kl_coefficient=1.0)[0].sum()

    value, gradient = jax.value_and_grad(total)(jnp.array([[-1.0 - log_ratio]]))
    assert float(value) == pytest.approx(22_026.4658 * (log_ratio - 9.0) - log_ratio - 1.0, rel=1e-5)
    assert float(gradient[0, 0]) == pytest.approx(-22_025.4658, rel=1e-5)


@pytest.mark.parametrize("log_ratio", [30.0, 89.0, 2000.0])
@pytest.mark.parametrize(("advantage", "expected"), [(0.0, 0.0), (1.0, 0.0), (-1.0, 22_026.4658)])
def test_a_ratio_far_off_is_finite_whatever_the_advantage(log_ratio, advantage, expected):
    """Clipped where it is good; where it is bad, min(r·Â, clip·Â) is unbounded below, and its slope is e^B."""
    batch = _batch(advantages=[advantage], old=[-1.0 - log_ratio], sampler=[-1.0 - log_ratio])
    loss, gradient = jax.value_and_grad(lambda logprobs: grpo(logprobs, batch)[0].sum())(jnp.array([[-1.0]]))
    assert np.isfinite(float(loss))
    assert float(gradient[0, 0]) == pytest.approx(expected, rel=1e-5)


def test_the_bounded_exponential_is_the_exponential_up_to_its_bound():
    x = jnp.array([-200.0, -1.0, 0.0, 9.99, 12.0])
    assert bounded_exp(x).tolist() == pytest.approx([0.0, 0.36787944, 1.0, 21_807.299, 66_079.397], rel=1e-5)
    slopes = jax.vmap(jax.grad(bounded_exp))(x)
    assert slopes.tolist() == pytest.approx([0.0, 0.36787944, 1.0, 21_807.299, 22_026.466], rel=1e-5)
    assert float(jax.grad(bounded_exp)(10.0)) == pytest.approx(22_026.466, rel=1e-5)  # at the bound too
