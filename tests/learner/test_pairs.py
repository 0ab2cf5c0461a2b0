"""Pairs of a success and a failure: which ones, and how they are packed."""

import dataclasses

import numpy as np
import pytest
from test_batch import group, trajectory

from cojax.learner.batch import Pair, RowShape, draw_pairs, pack_examples, pack_pairs
from cojax.learner.losses import LOSSES
from cojax.learner.objective import bind_loss, objective

GOOD = [trajectory(((1,), (n, n)), reward=1.0, episode=f"good {n}") for n in (3, 4, 5)]
BAD = [trajectory(((1,), (n,)), reward=0.5 * (n == 6), episode=f"bad {n}") for n in (6, 7)]


def test_each_failure_is_compared_with_one_success_of_its_group():
    mixed = group(GOOD[0], BAD[0], GOOD[1], BAD[1], GOOD[2])
    pairs = draw_pairs(mixed, (0, 0))
    assert [worse for _, worse in pairs] == BAD
    assert all(better in GOOD for better, _ in pairs)


def test_which_success_it_is_depends_on_the_seed_and_the_step_alone():
    mixed = group(*GOOD, *BAD)
    drawn = {
        seed: [better.episode for better, _ in draw_pairs(mixed, seed)]
        for seed in [(s, t) for s in (0, 1) for t in range(9)]
    }
    assert {name for pair in drawn.values() for name in pair} == {"good 3", "good 4", "good 5"}
    assert drawn[0, 3] == [better.episode for better, _ in draw_pairs(mixed, (0, 3))]
    assert len({tuple(pair) for pair in drawn.values()}) > 2


def test_groups_of_one_kind_and_lost_episodes_make_no_pair():
    lost = dataclasses.replace(GOOD[0], outcome="engine_error")
    assert draw_pairs(group(*GOOD), (0, 0)) == []
    assert draw_pairs(group(*BAD), (0, 0)) == []
    assert draw_pairs(group(lost, *BAD), (0, 0)) == []
    assert draw_pairs(group(trajectory(reward=0.0), *GOOD), (0, 0)) == []


def test_every_pair_weighs_the_same_and_is_a_group_of_its_own():
    """Three pairs of 2 + 1 tokens: 1 / (3 · 3) each."""
    batch, facts = pack_pairs([group(GOOD[0], *BAD), group(GOOD[1], BAD[0])], (0, 0), RowShape(8, 2), 6)
    assert facts["pairs"] == 3.0
    assert (facts["groups"], facts["groups_live"]) == (2.0, 2.0)
    learned = batch.weights > 0
    assert batch.weights[learned] == pytest.approx([1 / 9] * 9)
    assert sorted(batch.groups[learned].tolist()) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert set(batch.tasks[learned].tolist()) == {0}  # one query
    assert sorted(np.unique(batch.sequences[learned]).tolist()) == [0, 1, 2, 3, 4, 5]
    assert batch.advantages[learned].tolist().count(1.0) == 6
    assert batch.rewards[learned & (batch.tokens == 6)].tolist() == [0.5, 0.5]


def test_a_pair_averages_over_its_tokens_and_trajectories_alone_over_those_of_all():
    """Pairs of 3 and 4 tokens: 1 / (2 · 3) and 1 / (2 · 4); alone, 3 tokens in all."""
    pairs = [Pair(GOOD[0], BAD[0]), Pair(GOOD[1], GOOD[2])]
    batch = pack_examples(pairs, RowShape(8, 2), 4)
    for number, weights in enumerate(([1 / 6] * 3, [1 / 8] * 4)):
        assert batch.weights[(batch.weights > 0) & (batch.groups == number)] == pytest.approx(weights)
    batch = pack_examples([GOOD[0], BAD[0]], RowShape(8, 2), 2)
    assert batch.weights[batch.weights > 0] == pytest.approx([1 / 3] * 3)


def test_without_a_pair_the_batch_is_empty():
    batch, facts = pack_pairs([group(*GOOD)], (0, 0), RowShape(8, 2), 4)
    assert (batch.tokens.any(), facts["pairs"], facts["groups_live"]) == (False, 0.0, 0.0)


def test_the_shape_does_not_depend_on_rewards():
    wanted = objective(bind_loss("dpo", LOSSES, {}), "group_relative", {}, "group_token_mean", {}, split_count=1)
    shapes = {
        wanted.pack_batches([group(*some), group(*some)], (0, 0), RowShape(8, 2))[0][0].tokens.shape
        for some in ((GOOD[0], *BAD), (BAD[0], *GOOD[:2]), GOOD)
    }
    assert shapes == {(12, 8)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"weighting": "sequence_mean"},
            "loss 'dpo' gives every pair the same weight; remove weighting='sequence_mean'",
        ),
        (
            {"advantage": "success"},
            "loss 'dpo' learns from pairs, whose advantages are 1 and -1; remove advantage='success'",
        ),
    ],
)
def test_other_weightings_and_advantages_are_refused(changes, message):
    given = {"advantage": "group_relative", "weighting": "group_token_mean", **changes}
    with pytest.raises(ValueError, match=message):
        objective(bind_loss("dpo", LOSSES, {}), given["advantage"], {}, given["weighting"], {}, split_count=1)
