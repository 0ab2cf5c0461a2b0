"""Hard negatives beside GRPO: which pairs, and that both losses are added."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tiny_learner import GROUPS, PARAMS, SGD, bits, flat_array, make_learner

from cojax.learner.batch import Pair, RowShape, draw_pairs
from cojax.learner.learner import learn_round
from cojax.learner.objective import HardNegatives
from cojax.learner.rehearsal import rehearse
from cojax.types import Group


def graded(group: Group) -> Group:
    """The group, whose failures have partial rewards 0.5 and 0.75."""
    partial = iter((0.5, 0.75))
    return Group(
        group.task,
        tuple(t if t.reward >= 1.0 else dataclasses.replace(t, partial=next(partial)) for t in group.trajectories),
    )


GRADED = [graded(group) for group in GROUPS]
PLAIN = make_learner(optimizer=SGD)
BOTH = make_learner(optimizer=SGD, hard=HardNegatives(0.5, beta=0.4))


def test_a_hard_negative_is_a_failure_of_enough_partial_reward_in_a_group_with_a_success():
    hard = HardNegatives(0.5)
    batch, facts = hard.pack(GRADED, (0, 0), RowShape(16, 2))
    assert facts == {"failures": 6.0, "hard_negatives": 3.0, "hard_pairs": 3.0}
    assert batch.weights.sum() == pytest.approx(0.5)
    assert [worse.partial for group in GRADED for _, worse in draw_pairs(group, (0, 0), 0.6)] == [0.75] * 3
    _, facts = HardNegatives(0.5, min_partial=0.8).pack(GRADED, (0, 0), RowShape(16, 2))
    assert facts == {"failures": 6.0, "hard_negatives": 0.0, "hard_pairs": 0.0}


def test_an_update_is_that_of_both_losses_together():
    """With plain gradient descent the steps of the two losses add up."""
    rounds = make_learner(
        loss="dpo", loss_settings={"beta": 0.4}, optimizer=SGD, round_reference="round", row_length=16
    )
    pairs = [Pair(*pair, weight=0.5) for group in GRADED for pair in draw_pairs(group, (0, 0), 0.6)]
    one, metrics = PLAIN.update(PLAIN.init(PARAMS), GRADED)
    other, of_pairs = learn_round(rounds, rounds.init(PARAMS), pairs, 1, 4, (0,))
    joint, found = BOTH.update(BOTH.init(PARAMS), GRADED)
    start = flat_array(PARAMS)
    expected = (flat_array(one.params) - start) + (flat_array(other.params) - start)
    np.testing.assert_allclose(flat_array(joint.params) - start, expected, atol=1e-5)
    assert np.abs(flat_array(other.params) - start).max() > 1e-3
    assert found["hard_loss"] == pytest.approx(of_pairs["loss"], rel=1e-5)
    assert found["loss"] == pytest.approx(metrics["loss"] + of_pairs["loss"], rel=1e-5, abs=1e-6)


def test_without_hard_negatives_the_update_is_that_of_the_groups():
    one, _ = PLAIN.update(PLAIN.init(PARAMS), GROUPS)
    other, found = BOTH.update(BOTH.init(PARAMS), GROUPS)
    np.testing.assert_allclose(flat_array(other.params), flat_array(one.params), atol=1e-7)
    assert (found["hard_loss"], found["hard_pairs"]) == (0.0, 0.0)


def test_a_rehearsal_runs_both_and_changes_nothing():
    state = rehearse(BOTH, BOTH.init(PARAMS), [4] * 3)
    assert bits(state.params) == bits(PARAMS)
