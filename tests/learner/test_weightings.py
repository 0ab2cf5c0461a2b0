"""Weightings against figures worked out by hand; packing and micro-batches keep each of them exact."""

import functools

import numpy as np
import plain_losses
import pytest

from cojax.learner.advantages import mean_centred
from cojax.learner.batch import RowShape, pack
from cojax.learner.weightings import WEIGHTINGS, check_weights, constant_length
from cojax.types import Action, Group, Task, Trajectory, Turn

LENGTHS = [np.array([3, 1]), np.array([2, 2, 4])]


def _tokens(name, lengths=LENGTHS, **settings):
    return [list(map(float, group)) for group in WEIGHTINGS[name](lengths, **settings)]


def test_a_group_averages_over_its_tokens():
    assert _tokens("group_token_mean") == [[1 / 8, 1 / 8], [1 / 16, 1 / 16, 1 / 16]]


def test_a_trajectory_averages_over_its_tokens():
    assert _tokens("sequence_mean") == [[1 / 12, 1 / 4], [1 / 12, 1 / 12, 1 / 24]]


def test_the_batch_averages_over_its_tokens():
    assert _tokens("batch_token_mean") == [[1 / 12] * 2, [1 / 12] * 3]


def test_a_constant_length_divides_whatever_was_sampled():
    assert _tokens("constant_length", length=10) == [[1 / 50] * 2, [1 / 50] * 3]


@pytest.mark.parametrize("name", ["group_token_mean", "sequence_mean", "batch_token_mean"])
def test_means_add_up_to_one(name):
    weights = WEIGHTINGS[name](LENGTHS)
    total = sum(float((w * n).sum()) for w, n in zip(weights, LENGTHS, strict=True))
    assert total == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("group_token_mean", 0.5), ("sequence_mean", 0.25), ("batch_token_mean", 1.0), ("constant_length", 0.05)],
)
def test_a_trajectory_without_a_token_divides_by_no_zero(name, expected):
    settings = {"length": 5} if name == "constant_length" else {}
    assert _tokens(name, [np.array([0, 1]), np.array([0, 0])], **settings) == [[expected] * 2] * 2


def _groups():
    draw, token, groups = np.random.default_rng(3), 1, []
    for number, size in enumerate((3, 2, 4)):
        trajectories = []
        for sample in range(size):
            turns = []
            for _ in range(int(draw.integers(1, 4))):
                count = int(draw.integers(1, 5))
                ids = tuple(range(token, token + count))
                turns.append(Turn(Action(), prompt_tokens=(0, 0), action_tokens=ids, action_logprobs=(-1.0,) * count))
                token += count
            task = Task("desk", str(number), {})
            trajectories.append(Trajectory(task, f"{number}-{sample}", turns=tuple(turns), reward=float(sample == 0)))
        groups.append(Group(task, tuple(trajectories)))
    return groups


@pytest.mark.parametrize(("row_length", "micro_rows"), [(24, 3), (60, 1)])
@pytest.mark.parametrize("name", WEIGHTINGS)
def test_packing_keeps_every_weight(name, row_length, micro_rows):
    """Against plain loops, at each token, by its id; so are the ids that the batch carries."""
    groups = _groups()
    weighting = functools.partial(constant_length, length=9) if name == "constant_length" else WEIGHTINGS[name]
    batch, _ = pack(groups, mean_centred, RowShape(row_length, micro_rows), weighting=weighting)
    counts = [[sum(len(turn.action_tokens) for turn in t.turns) for t in group.trajectories] for group in groups]
    expected, sequence = plain_losses.weights(name, counts, length=9), 0
    for number, group in enumerate(groups):
        for sample, trajectory in enumerate(group.trajectories):
            for turn_number, turn in enumerate(trajectory.turns):
                for token in turn.action_tokens:
                    place = tuple(np.argwhere(batch.tokens == token)[0])
                    assert batch.weights[place] == np.float32(expected[number][sample])
                    assert (batch.groups[place], batch.tasks[place]) == (number, number)
                    assert (batch.sequences[place], batch.turns[place]) == (sequence, turn_number)
                    assert batch.lengths[place] == counts[number][sample]
                    assert batch.group_sizes[place] == len(group.trajectories)
                    assert batch.rewards[place] == trajectory.reward
            sequence += 1


def test_one_number_a_token_is_a_weighting_too():
    lengths = [np.array([2, 1])]
    found = check_weights([[[0.25, 0.0], 1.0]], lengths)
    assert [weight.tolist() for weight in found[0]] == [[0.25, 0.0], 1.0]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([[1.0]], r"weights for groups of \[1\] trajectories; expected \[2\]"),
        ([[1.0, [1.0, 2.0]]], "for the 1 learned tokens of a trajectory; expected a number of 0 or more"),
        ([[[1.0, -1.0], 1.0]], "expected a number of 0 or more, or one for each"),
        ([[1.0, float("nan")]], "expected a number of 0 or more, or one for each"),
    ],
)
def test_what_is_no_weighting_is_an_error(weights, message):
    with pytest.raises(ValueError, match=message):
        check_weights(weights, [np.array([2, 1])])
