"""Packing: which tokens go where, and what they weigh."""

import dataclasses

import numpy as np
import pytest

from cojax.learner.advantages import mean_centred, success
from cojax.learner.batch import (
    DTYPES,
    RowShape,
    TrainBatch,
    assert_columns,
    count_rows,
    measure_staleness,
    pack,
    pack_sequences,
)
from cojax.types import Action, Group, Task, Trajectory, Turn


def trajectory(*turns, reward=0.0, outcome="finished", episode="0-ab-0"):
    """`turns` are (prompt tokens, action tokens); the sampler's log-probs are −token/10."""
    return Trajectory(
        Task("desk", "query", {}),
        episode,
        turns=tuple(
            Turn(Action(), prompt_tokens=p, action_tokens=a, action_logprobs=tuple(-token / 10 for token in a))
            for p, a in turns
        ),
        reward=reward,
        outcome=outcome,
    )


def group(*trajectories):
    return Group(Task("desk", "query", {}), trajectories)


TWO_TURNS = trajectory(((1, 2), (3, 4)), ((5,), (6,)), reward=1.0)  # 3 action tokens, 6 in all
ONE_TURN = trajectory(((7,), (8,)), reward=0.0)  # 1 action token, 2 in all


def test_two_trajectories_share_a_row_longest_first():
    batch, facts = pack([group(ONE_TURN, TWO_TURNS)], mean_centred, RowShape(10))
    assert batch.tokens.tolist() == [[1, 2, 3, 4, 5, 6, 7, 8, 0, 0], [0] * 10]
    assert batch.segment_ids.tolist() == [[1, 1, 1, 1, 1, 1, 2, 2, 0, 0], [0] * 10]
    assert batch.positions.tolist() == [[0, 1, 2, 3, 4, 5, 0, 1, 0, 0], [0] * 10]
    assert batch.advantages[0].tolist() == [0.5] * 6 + [-0.5] * 2 + [0.0] * 2
    assert batch.sampler_logprobs[0] == pytest.approx([0, 0, -0.3, -0.4, 0, -0.6, 0, -0.8, 0, 0])
    # One group, 3 + 1 action tokens.
    assert batch.weights[0].tolist() == [0, 0, 0.25, 0.25, 0, 0.25, 0, 0.25, 0, 0]
    assert {batch.tokens.dtype, batch.segment_ids.dtype, batch.positions.dtype} == {np.dtype("int32")}
    assert {batch.weights.dtype, batch.advantages.dtype, batch.old_logprobs.dtype} == {np.dtype("float32")}
    assert facts == {
        "groups": 1.0, "groups_live": 1.0, "groups_dropped": 0.0, "trajectories_invalid": 0.0,
        "tokens_trained": 4.0, "tokens_processed": 8.0, "rows": 1.0, "fill": 0.8,
    }  # fmt: skip


def test_groups_weigh_the_same_whatever_their_length():
    # Two groups: 1 / (2 · 4) and 1 / (2 · 2) a token.
    other = group(dataclasses.replace(ONE_TURN, reward=1.0), ONE_TURN)
    batch, _ = pack([group(ONE_TURN, TWO_TURNS), other], mean_centred, RowShape(6))
    assert sorted(batch.weights[batch.weights > 0].tolist()) == [0.125] * 4 + [0.25] * 2
    assert batch.weights.sum() == 1.0


def test_a_group_without_variance_counts_but_is_skipped_only_without_kl():
    flat = group(ONE_TURN, ONE_TURN)
    batch, facts = pack([group(ONE_TURN, TWO_TURNS), flat], mean_centred, RowShape(6))
    assert (facts["groups"], facts["groups_live"]) == (2.0, 1.0)
    assert batch.weights.sum() == 0.5
    assert facts["tokens_trained"] == 4.0
    batch, facts = pack([group(ONE_TURN, TWO_TURNS), flat], mean_centred, RowShape(6), skip_flat=False)
    assert batch.weights.sum() == 1.0
    assert facts["tokens_trained"] == 6.0


def test_a_group_that_always_succeeds_is_learned_where_successes_are_imitated():
    solved, failed = [trajectory(((1,), (2,)), reward=reward) for reward in (1.0, 0.0)]
    _, facts = pack([group(solved, solved), group(failed, failed)], success, RowShape(6))
    assert (facts["groups"], facts["groups_live"], facts["tokens_trained"]) == (2.0, 0.0, 2.0)


@pytest.mark.parametrize("outcome", ["environment_error", "engine_error"])
def test_a_failure_of_the_machinery_enters_nothing(outcome):
    failed = trajectory(((1,), (2, 2, 2, 2)), reward=0.0, outcome=outcome)
    clean, _ = pack([group(ONE_TURN, TWO_TURNS)], mean_centred, RowShape(6))
    batch, facts = pack([group(failed, ONE_TURN, failed, TWO_TURNS)], mean_centred, RowShape(6))
    assert facts["trajectories_invalid"] == 2.0
    for name in DTYPES:
        assert np.array_equal(getattr(batch, name)[:2], getattr(clean, name)[:2])
    assert count_rows(batch) == count_rows(clean) == 2


def test_a_group_left_with_one_valid_trajectory_is_dropped_and_not_counted():
    failed = dataclasses.replace(ONE_TURN, outcome="engine_error")
    batch, facts = pack([group(failed, TWO_TURNS), group(ONE_TURN, TWO_TURNS)], mean_centred, RowShape(6))
    assert (facts["groups"], facts["groups_dropped"]) == (1.0, 1.0)
    assert batch.weights.sum() == 1.0


def test_timeout_and_truncation_are_valid():
    late = dataclasses.replace(ONE_TURN, outcome="timeout")
    cut = dataclasses.replace(TWO_TURNS, outcome="truncated")
    assert pack([group(late, cut)], mean_centred, RowShape(6))[1]["groups_live"] == 1.0


def test_an_episode_without_an_action_moves_the_baseline_only():
    batch, facts = pack([group(trajectory(), TWO_TURNS)], mean_centred, RowShape(6))
    assert batch.advantages[0].tolist() == [0.5] * 6
    assert facts["tokens_trained"] == 3.0


def test_nothing_to_learn_is_an_empty_batch():
    batch, facts = pack([group(ONE_TURN, ONE_TURN), group(trajectory(), trajectory())], mean_centred, RowShape(6))
    assert count_rows(batch) == 0
    assert facts["rows"] == facts["fill"] == 0.0
    assert batch.tokens.shape == (4, 6)


def test_the_shape_depends_on_what_was_asked_for_only():
    groups = [group(ONE_TURN, ONE_TURN, TWO_TURNS), group(TWO_TURNS, TWO_TURNS, TWO_TURNS)]
    assert pack(groups, mean_centred, RowShape(6, 4))[0].tokens.shape == (8, 6)
    assert pack(groups[1:], mean_centred, RowShape(6, 4))[0].tokens.shape == (4, 6)


def test_first_fit_decreasing_is_deterministic_and_tight():
    # Lengths 5, 4, 3, 2, 2 into rows of 8: [5, 3], [4, 2, 2]; the second 2 comes after the first.
    rows = [([n] * n, [True] * n) for n in (2, 5, 4)] + [([9, 9], [True] * 2), ([3] * 3, [True] * 3)]
    batch = pack_sequences(rows, RowShape(8))
    assert batch.tokens[:3].tolist() == [[5, 5, 5, 5, 5, 3, 3, 3], [4, 4, 4, 4, 2, 2, 9, 9], [0] * 8]
    assert count_rows(batch) == 2


def test_a_trajectory_longer_than_a_row_names_the_fix():
    with pytest.raises(ValueError, match=r"episode '0-ab-0' has 6 tokens, but a row holds 5; raise row_length"):
        pack([group(ONE_TURN, TWO_TURNS)], mean_centred, RowShape(5))


def test_every_token_keeps_the_weights_that_sampled_it():
    """Versions 3 and 4 within one turn, 4 in the next, 2 in the other trajectory."""
    first, second = TWO_TURNS.turns
    turns = (
        dataclasses.replace(first, weights_version=4, spans=((3, 1), (4, 1))),
        dataclasses.replace(second, weights_version=4),
    )
    other = dataclasses.replace(ONE_TURN, turns=(dataclasses.replace(ONE_TURN.turns[0], weights_version=2),))
    batch, _ = pack([group(other, dataclasses.replace(TWO_TURNS, turns=turns))], mean_centred, RowShape(10))
    assert batch.versions[0].tolist() == [-1, -1, 3, 4, -1, 4, -1, 2, -1, -1]
    assert measure_staleness(batch, 5) == {"staleness": 1.75, "staleness_max": 3.0}  # 2, 1, 1 and 3 updates ago


def test_spans_that_leave_a_token_out_are_an_error():
    broken = dataclasses.replace(TWO_TURNS.turns[0], spans=((3, 1),))
    broken = dataclasses.replace(TWO_TURNS, turns=(broken, TWO_TURNS.turns[1]))
    with pytest.raises(ValueError, match="spans cover 5 of 6 tokens"):
        pack([group(ONE_TURN, broken)], mean_centred, RowShape(10))


def test_missing_log_probs_are_an_error_not_a_zero():
    broken = dataclasses.replace(ONE_TURN.turns[0], action_logprobs=())
    broken = dataclasses.replace(ONE_TURN, turns=(broken,))
    with pytest.raises(ValueError, match=r"episode '0-ab-0', turn 0: 1 action tokens but 0 log-probs"):
        pack([group(broken, TWO_TURNS)], mean_centred, RowShape(6))


def test_demonstrations_share_one_mean():
    # Three learned tokens in all; nothing predicts the first token of a sequence.
    batch = pack_sequences([([1, 2, 3], [False, True, True]), ([4, 5], [True, True])], RowShape(6, 2))
    assert batch.tokens.tolist() == [[1, 2, 3, 4, 5, 0], [0] * 6]
    assert batch.weights[0] == pytest.approx([0, 1 / 3, 1 / 3, 0, 1 / 3, 0])
    assert batch.group_sizes[0].tolist() == [1, 1, 1, 1, 1, 0]
    assert batch.lengths[0].tolist() == [2, 2, 2, 1, 1, 0]


@pytest.mark.parametrize(
    ("name", "column", "message"),
    [
        ("tokens", np.zeros((1, 1, 1), np.float32), "int32"),
        ("weights", np.ones((1, 1, 1), np.int32), "float32"),
        ("turns", np.zeros((1, 1, 2), np.int32), "shape"),
        ("rewards", np.zeros((1, 1), np.float32), "rank"),
        ("routes", np.zeros((1, 1, 1, 2), np.int8), "shape"),
        ("routes", np.zeros((1, 1, 1, 2, 2), np.float32), "int"),
    ],
)
def test_a_column_of_another_dtype_or_shape_is_an_error(name, column, message):
    columns = {name: np.zeros((1, 1, 1), dtype) for name, dtype in DTYPES.items()}
    columns["routes"] = np.zeros((1, 1, 1, 2, 2), np.int8)
    assert_columns(TrainBatch(**columns), axis_count=3)
    with pytest.raises(AssertionError, match=message):
        assert_columns(TrainBatch(**{**columns, name: column}), axis_count=3)


def test_demonstrations_without_a_learned_token_are_an_error():
    with pytest.raises(ValueError, match="none of 2 sequences has a token to learn"):
        pack_sequences([([1, 2], [False, False]), ([3], [True])], RowShape(4))
