"""Rounds of learning: what they compute, in which batches, and against which reference."""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import numpy as np
import optax
import pytest
from tiny_learner import CONFIG, PARAMS, SGD, bits, flat_array, make_learner, make_trajectory, sampled_logprobs

from cojax.learner.batch import Pair
from cojax.learner.learner import Learner, StepBatches, get_log_ratio, learn_round
from cojax.types import Trajectory

BETTER = [make_trajectory([3 + n, 7, 9], 1.0, sample=n) for n in range(8)]
WORSE = [make_trajectory([5, 4 + n], 0.0, sample=9 + n) for n in range(8)]
PAIRS = [Pair(better, worse) for better, worse in zip(BETTER, WORSE, strict=True)]
BETA, SFT = 0.5, 0.3
SIZE = 4  # pairs of a batch, which programs are compiled for


@functools.cache
def learner(reference: str = "round") -> Learner:
    settings = {"beta": BETA, "sft_coefficient": SFT}
    kept = PARAMS if reference == "initial" else None
    return make_learner(
        loss="dpo", loss_settings=settings, optimizer=SGD, reference=kept, round_reference=reference, row_length=16
    )


@functools.cache
def imitator() -> Learner:
    return make_learner(loss="sft", optimizer=SGD, round_reference="round", row_length=16)


def logprob(params: object, trajectory: Trajectory) -> float:
    """log π of the whole action, in float64 from the tokens' log-probs."""
    return float(np.sum(sampled_logprobs(trajectory.turns[0].action_tokens, params), dtype=np.float64))


def plain_loss(params: object, reference: object, pairs: list[Pair]) -> float:
    total = 0.0
    for pair in pairs:
        better, worse = (logprob(params, t) - logprob(reference, t) for t in (pair.better, pair.worse))
        own = -logprob(params, pair.better) if pair.better.reward >= 1.0 else 0.0
        total += pair.weight * (math.log1p(math.exp(-BETA * (better - worse))) + SFT * own)
    return total / len(pairs)


def test_the_loss_is_the_weighted_mean_over_pairs_and_only_successes_are_imitated():
    half = dataclasses.replace(BETTER[1], reward=0.5)
    pairs = [dataclasses.replace(PAIRS[0], weight=0.5), Pair(half, WORSE[1], 2.0), PAIRS[2]]
    start = learner()
    _, metrics = learn_round(start, start.init(PARAMS), pairs, 1, SIZE, (0,))
    assert metrics["loss"] == pytest.approx(plain_loss(PARAMS, PARAMS, pairs), rel=1e-5)
    assert metrics["margin"] == pytest.approx(0.0, abs=1e-5)


def test_an_update_follows_the_gradient_of_that_loss():
    start = learner()
    learned, metrics = learn_round(start, start.init(PARAMS), PAIRS[:2], 1, SIZE, (0,))
    step = jax.tree.map(lambda after, before: np.asarray(after) - np.asarray(before), learned.params, PARAMS)
    size = 1e-2 / metrics["grad_norm"]
    losses = [
        plain_loss(jax.tree.map(lambda p, d, s=sign: np.asarray(p) + s * size * d, PARAMS, step), PARAMS, PAIRS[:2])
        for sign in (1.0, -1.0)
    ]
    # SGD at rate 1 moves by minus the gradient, along which the loss falls by its squared norm.
    assert (losses[1] - losses[0]) / (2 * size) == pytest.approx(metrics["grad_norm"] ** 2, rel=2e-2)


def test_a_round_makes_its_passes_and_counts_as_one_step():
    start = learner()
    state, metrics = learn_round(start, start.init(PARAMS), PAIRS, 3, SIZE, (0,))
    assert (metrics["updates"], metrics["tokens_trained"], int(state.step)) == (6.0, 3 * 40.0, 1)
    again, _ = learn_round(start, start.init(PARAMS), PAIRS, 3, SIZE, (0,))
    other, _ = learn_round(start, start.init(PARAMS), PAIRS, 3, SIZE, (1,))
    assert bits(again) == bits(state) != bits(other)


@pytest.mark.parametrize(("reference", "margin"), [("round", 0.0), ("initial", None)])
def test_the_reference_is_the_policy_at_the_beginning_of_the_round_or_the_initial_one(reference, margin):
    start = learner(reference)
    state, _ = learn_round(start, start.init(PARAMS), PAIRS[:2], 1, SIZE, (0,))
    middle = jax.tree.map(np.asarray, state.params)
    _, metrics = learn_round(start, state, PAIRS[:2], 1, SIZE, (1,))
    expected = plain_loss(middle, middle if margin == 0.0 else PARAMS, PAIRS[:2])
    assert metrics["loss"] == pytest.approx(expected, rel=1e-5)
    assert (metrics["margin"] == pytest.approx(0.0, abs=1e-5)) is (margin == 0.0)


def test_packing_does_not_change_a_round():
    wide = dataclasses.replace(learner(), row_length=64, micro_rows=1)
    one, _ = learn_round(learner(), learner().init(PARAMS), PAIRS[:4], 2, SIZE, (0,))
    other, _ = learn_round(wide, wide.init(PARAMS), PAIRS[:4], 2, SIZE, (0,))
    np.testing.assert_allclose(flat_array(one.params), flat_array(other.params), rtol=1e-3, atol=1e-5)


def test_imitation_is_the_mean_over_tokens():
    start = imitator()
    _, metrics = learn_round(start, start.init(PARAMS), BETTER[:3], 1, SIZE, (0,))
    assert metrics["loss"] == pytest.approx(-sum(logprob(PARAMS, t) for t in BETTER[:3]) / 9, rel=1e-5)


def test_without_examples_the_policy_stays_and_the_step_counts():
    start = learner()
    state, metrics = learn_round(start, start.init(PARAMS), [], 3, SIZE, (0,))
    assert bits(state.params) == bits(PARAMS)
    assert (int(state.step), metrics) == (1, {"updates": 0.0, "tokens_trained": 0.0, "tokens_processed": 0.0})


def test_steps_to_be_skipped_learn_nothing():
    start = dataclasses.replace(learner(), skip_steps=(1,))
    state, metrics = learn_round(start, start.init(PARAMS), PAIRS, 3, SIZE, (0,))
    assert (bits(state.params), metrics["updates"]) == (bits(PARAMS), 0.0)


def test_all_batches_have_one_shape():
    shapes = {learner().pack_examples(PAIRS[:count], 3).tokens.shape for count in (1, 2, 3)}
    assert shapes == {(6, 16)}
    assert {imitator().pack_examples(BETTER[:count], 3).tokens.shape for count in (1, 3)} == {(4, 16)}


def test_the_mismatch_is_that_of_the_sampling_policy_alone():
    """Tokens that the policy did not sample have no log-probs to compare, and do not make the mean smaller."""

    def foreign(one):
        logprobs = (-9.0,) * len(one.turns[0].action_tokens)
        turn = dataclasses.replace(one.turns[0], weights_version=-1, action_logprobs=logprobs)
        return dataclasses.replace(one, turns=(turn,))

    def shifted(one):
        turn = one.turns[0]
        logprobs = tuple(x - 0.25 for x in turn.action_logprobs)
        return dataclasses.replace(one, turns=(dataclasses.replace(turn, action_logprobs=logprobs),))

    def learned(*pairs):
        """From one after another."""
        start = learner()
        batches = [start.pack_examples([pair], SIZE) for pair in pairs]
        return start.update(start.init(PARAMS), StepBatches(batches, range(len(batches))))[1]

    assert learned(Pair(BETTER[0], foreign(WORSE[0])))["logprob_mismatch"] < 1e-5
    # Of the two sampled actions and the two others of a pair, and of a second update without any.
    known, unknown = Pair(shifted(BETTER[0]), foreign(WORSE[0])), Pair(foreign(BETTER[1]), foreign(WORSE[1]))
    for pairs in ([known], [known, unknown]):
        assert learned(*pairs)["updates"] == len(pairs)
        assert learned(*pairs)["logprob_mismatch"] == pytest.approx(0.25, abs=1e-5)
    assert "logprob_mismatch" not in learned(unknown)


def test_the_distance_to_a_policy_is_the_mean_log_ratio():
    shifted = [
        make_trajectory(t.turns[0].action_tokens, 0.0, logprobs=tuple(x + 0.25 for x in t.turns[0].action_logprobs))
        for t in WORSE[:5]
    ]
    start = learner()
    assert get_log_ratio(start, start.init(PARAMS), shifted, SIZE) == pytest.approx(0.25, rel=1e-4)
    assert get_log_ratio(start, start.init(PARAMS), [], SIZE) == 0.0


def test_an_unknown_reference_is_refused():
    with pytest.raises(ValueError, match="round_reference 'last' not found; available: , initial, round"):
        Learner(CONFIG, optax.sgd(1.0), round_reference="last")
