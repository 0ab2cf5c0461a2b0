"""Advantages against figures worked out by hand."""

import numpy as np
import pytest

from cojax.learner.advantages import ADVANTAGES, group_relative, leave_one_out, mean_centred, success

RELATIVE = [name for name in ADVANTAGES if name != "success"]
REWARDS = np.array([1.0, 0.0, 0.0, 0.0])  # mean 1/4; Σ(r − mean)² = 9/16 + 3/16 = 3/4; std = √(3/4 / 3) = 1/2


def test_group_relative_divides_by_the_sample_deviation():
    assert group_relative(REWARDS, epsilon=0.0) == pytest.approx([1.5, -0.5, -0.5, -0.5])
    assert group_relative(REWARDS, epsilon=0.5) == pytest.approx([0.75, -0.25, -0.25, -0.25])


def test_group_relative_of_equal_rewards_is_zero():
    assert list(group_relative(np.array([1.0, 1.0, 1.0]))) == [0.0, 0.0, 0.0]


def test_mean_centred():
    assert list(mean_centred(REWARDS)) == [0.75, -0.25, -0.25, -0.25]


def test_leave_one_out_compares_with_the_others():
    # 1 − 0 = 1;  0 − (1 + 0 + 0) / 3 = −1/3
    assert leave_one_out(REWARDS) == pytest.approx([1.0, -1 / 3, -1 / 3, -1 / 3])


def test_success_imitates_what_was_solved_whole():
    assert list(success(np.array([1.0, 0.99, 0.0, 1.0]))) == [1.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize("name", RELATIVE)
@pytest.mark.parametrize("reward", [0.1, 1 / 3, 0.7, 1.0])
def test_equal_rewards_teach_nothing_to_the_last_bit(name, reward):
    assert not ADVANTAGES[name](np.full(7, reward)).any()


@pytest.mark.parametrize("name", RELATIVE)
def test_every_relative_form_sums_to_zero_and_keeps_the_order(name):
    values = ADVANTAGES[name](np.array([0.1, 0.9, 0.4]))
    assert values.sum() == pytest.approx(0.0, abs=1e-12)
    assert values[1] > values[2] > values[0]
