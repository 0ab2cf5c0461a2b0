"""Advantages against figures worked out by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from cojax.learner.advantages import (
    ADVANTAGES,
    group_relative,
    leave_one_out,
    mean_centred,
    overlong_penalty,
    spread_entries,
    success,
    truncated_masked,
    turn_level,
)
from cojax.types import Action, Observation, Task, Trajectory, Turn

RELATIVE = ["group_relative", "mean_centred", "leave_one_out"]


def _episodes(*rewards, turns=(2,), outcome="finished"):
    """Trajectories whose turns have so many action tokens, after one token of prompt each."""
    made = tuple(Turn(Action(), prompt_tokens=(1,), action_tokens=(2,) * count) for count in turns)
    return [Trajectory(Task("desk", "q", {}), str(r), turns=made, reward=r, outcome=outcome) for r in rewards]


GROUP = _episodes(1.0, 0.0, 0.0, 0.0)  # mean 1/4; Σ(r − mean)² = 9/16 + 3/16 = 3/4; std = √(3/4 / 3) = 1/2


def test_group_relative_divides_by_the_sample_deviation():
    assert group_relative(GROUP, epsilon=0.0) == pytest.approx([1.5, -0.5, -0.5, -0.5])
    assert group_relative(GROUP, epsilon=0.5) == pytest.approx([0.75, -0.25, -0.25, -0.25])


def test_group_relative_of_equal_rewards_is_zero():
    assert list(group_relative(_episodes(1.0, 1.0, 1.0))) == [0.0, 0.0, 0.0]


def test_mean_centred():
    assert list(mean_centred(GROUP)) == [0.75, -0.25, -0.25, -0.25]


def test_leave_one_out_compares_with_the_others():
    # 1 − 0 = 1;  0 − (1 + 0 + 0) / 3 = −1/3
    assert leave_one_out(GROUP) == pytest.approx([1.0, -1 / 3, -1 / 3, -1 / 3])


def test_success_imitates_what_was_solved_whole():
    assert list(success(_episodes(1.0, 0.99, 0.0, 1.0))) == [1.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize("name", RELATIVE)
@pytest.mark.parametrize("reward", [0.1, 1 / 3, 0.7, 1.0])
def test_equal_rewards_teach_nothing_to_the_last_bit(name, reward):
    assert not ADVANTAGES[name](_episodes(*[reward] * 7)).any()


@pytest.mark.parametrize("name", RELATIVE)
def test_every_relative_form_sums_to_zero_and_keeps_the_order(name):
    values = ADVANTAGES[name](_episodes(0.1, 0.9, 0.4))
    assert values.sum() == pytest.approx(0.0, abs=1e-12)
    assert values[1] > values[2] > values[0]


# From trajectories ------------------------------------------------------------------------------------------------


def test_the_overlong_penalty_falls_within_its_margin():
    """Lengths 6, 8, 10, 14 with longest 10 and margin 4: penalties 0, −½, −1, −1, and all solved: r = 1, ½, 0, 0."""
    episodes = [t for n in (6, 8, 10, 14) for t in _episodes(1.0, turns=(n - 2, 2))]
    values = overlong_penalty(episodes, longest=10, margin=4, epsilon=0.0)
    centred = np.array([0.625, 0.125, -0.375, -0.375])
    assert values == pytest.approx(centred / np.sqrt((centred**2).sum() / 3))


def test_truncated_episodes_are_neither_learned_from_nor_compared_with():
    episodes = [*_episodes(1.0, 0.0), *_episodes(0.0, outcome="truncated"), *_episodes(0.0, 0.0)]
    values = truncated_masked(episodes, epsilon=0.0)
    assert values.mask.tolist() == [False, False, True, False, False]
    assert values.compressed() == pytest.approx([1.5, -0.5, -0.5, -0.5])


def test_of_one_episode_that_ended_by_itself_nothing_is_said():
    values = truncated_masked([*_episodes(1.0), *_episodes(0.0, 0.0, outcome="truncated")])
    assert (values.mask.tolist(), values.compressed().tolist()) == ([False, True, True], [0.0])


def test_a_turn_is_credited_for_what_it_did():
    """Rewards 1, 0: ±1/√2 each. Turns that worked: (1, 0), (1, 1): mean ¾, deviation ½ → ½, −3/2, ½, ½, times 0.2."""
    worked, failed = Observation(ok=True), Observation(ok=False)
    first = (Turn(Action(), worked), Turn(Action(), failed))
    second = (Turn(Action(), worked), Turn(Action(), worked))
    task = Task("desk", "q", {})
    episodes = [Trajectory(task, turns=first, reward=1.0), Trajectory(task, turns=second, reward=0.0)]
    values = turn_level(episodes, coefficient=0.2, epsilon=0.0)
    half = 0.70710678
    assert values[0] == pytest.approx([half + 0.1, half - 0.3])
    assert values[1] == pytest.approx([-half + 0.1, -half + 0.1])


def test_turn_level_without_a_coefficient_is_group_relative():
    episodes = _episodes(1.0, 0.0, 0.0, turns=(2, 3))
    values = turn_level(episodes, coefficient=0.0)
    assert [list(turns) for turns in values] == [[value] * 2 for value in group_relative(episodes)]


# To tokens --------------------------------------------------------------------------------------------------------


def test_numbers_stand_for_trajectories_turns_or_tokens():
    episodes = _episodes(1.0, 0.0, 0.0, turns=(2, 1))
    (whole, _), (turns, _), (tokens, _) = spread_entries([0.5, [1.0, -1.0], [[0.1, 0.2], 3.0]], episodes)
    assert whole.tolist() == [0.5] * 5
    assert turns.tolist() == [1.0, 1.0, 1.0, -1.0, -1.0]
    assert tokens.tolist() == [0.0, 0.1, 0.2, 3.0, 3.0]


def test_an_advantage_may_compute_with_jax():
    episodes = _episodes(1.0, 0.0, turns=(2, 1))
    found = spread_entries(jnp.array([1.5, -0.5]), episodes)
    assert [values.tolist() for values, _ in found] == [[1.5] * 5, [-0.5] * 5]
    found = spread_entries([jnp.array([1.0, -1.0]), [jnp.array([0.25, 0.5]), jnp.float32(3.0)]], episodes)
    assert [values.tolist() for values, _ in found] == [[1.0, 1.0, 1.0, -1.0, -1.0], [0.0, 0.25, 0.5, 3.0, 3.0]]


def test_what_is_masked_is_kept_out():
    episodes = _episodes(1.0, 0.0, 0.0, turns=(2, 1))
    turns = np.ma.masked_array([1.0, -1.0], mask=[True, False])
    tokens = [np.ma.masked_array([0.1, 0.2], mask=[False, True]), 3.0]
    found = spread_entries([np.ma.masked, turns, tokens], episodes)
    assert [kept.tolist() for _, kept in found] == [
        [False] * 5, [False, False, False, True, True], [True, True, False, True, True],
    ]  # fmt: skip
    assert found[1][0].tolist() == [0.0, 0.0, 0.0, -1.0, -1.0]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0], "returned 1 entries for 2 trajectories"),
        ([1.0, [1.0, 2.0, 3.0]], r"of episode '0.0' has 3 entries for 2 turns; expected a number, or one a turn"),
        (
            [1.0, [[1.0], 2.0]],
            r"of episode '0.0' has 1 entries for 2 tokens of a turn; expected a number, or one a token",
        ),
        ([float("nan"), 1.0], r"of episode '1.0' is not finite: .*; mask .* with numpy.ma"),
    ],
)
def test_what_is_no_advantage_is_an_error(values, message):
    with pytest.raises(ValueError, match=message):
        spread_entries(values, _episodes(1.0, 0.0, turns=(2, 1)))
