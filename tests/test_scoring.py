"""Scores of fixed task lists."""

import pytest

from cojax.scoring import (
    compute_average_at_k,
    compute_pass_at_k,
    compute_score,
    estimate_mean,
    measure_success_by,
    pass_at_k,
)
from cojax.types import Check, Group, Task, Trajectory


def group(number: int, *rewards: float | None) -> Group:
    """None stands for an episode lost to the machinery."""
    task = Task("desk", f"task {number}", {})
    return Group(
        task,
        tuple(
            Trajectory(task, outcome="environment_error")
            if reward is None
            else Trajectory(task, reward=reward, checks=(Check("a", True), Check("b", reward == 1.0)))
            for reward in rewards
        ),
    )


def test_success_is_the_mean_over_tasks_of_the_mean_over_valid_episodes():
    result = compute_score([group(0, 1.0, 1.0), group(1, 0.0, None), group(2, 1.0, 0.0)])
    assert result.success == pytest.approx(0.5)
    assert result.error == pytest.approx(0.2886751)  # standard deviation 0.5 of (1, 0, 0.5), over √3
    assert result.partial == pytest.approx((1.0 + 0.5 + 0.75) / 3)
    assert result.tasks == 3
    assert result.outcomes == {"environment_error": 1, "finished": 5}


def test_what_was_lost_is_told_with_bounds():
    """Rewards (1, 1), (0, lost), (lost, lost): 0.5 over two tasks; were the lost failures, 1/3; successes, 5/6."""
    result = compute_score([group(0, 1.0, 1.0), group(1, 0.0, None), group(2, None, None)])
    assert result.success == pytest.approx(0.5)
    assert result.lost == pytest.approx(0.5)
    assert result.bounds == pytest.approx((1 / 3, 5 / 6))


def test_without_losses_the_bounds_are_the_success():
    result = compute_score([group(0, 1.0, 0.0), group(1, 1.0, 1.0)])
    assert (result.lost, result.bounds) == (0.0, (0.75, 0.75))


def test_a_task_without_a_valid_episode_is_left_out():
    assert compute_score([group(0, 1.0), group(1, None)]).tasks == 1
    with pytest.raises(ValueError, match="no valid episode to score"):
        compute_score([group(0, None)])


@pytest.mark.parametrize(
    ("successes", "samples", "k", "expected"), [(0, 4, 2, 0.0), (1, 4, 1, 0.25), (1, 4, 2, 0.5), (3, 4, 2, 1.0)]
)
def test_pass_at_k(successes, samples, k, expected):
    assert pass_at_k(successes, samples, k) == pytest.approx(expected)


def test_pass_at_k_needs_k_samples():
    with pytest.raises(ValueError, match="0 < k ≤ samples"):
        pass_at_k(1, 4, 5)


def kind(names: str | list[str], *rewards: float | None) -> Group:
    made = group(0, *rewards)
    return Group(Task("desk", "x", {"classes": names}), made.trajectories)


def test_success_is_told_by_what_a_key_of_the_setup_holds():
    groups = [kind(["b", "a"], 1.0, 0.0), kind(["a"], 0.0), kind("c", 1.0), kind("d", None)]
    assert measure_success_by(groups, "classes") == {"a": 0.25, "b": 0.5, "c": 1.0}
    assert list(measure_success_by(groups, "classes")) == ["a", "b", "c"]


def test_a_key_that_no_setup_has_is_named():
    with pytest.raises(ValueError, match="no 'room' in its setup to score it by; it has classes"):
        measure_success_by([kind("a", 1.0)], "room")


def test_an_interval_of_zeros_and_ones_is_wilsons():
    found = estimate_mean([1.0] * 10 + [0.0] * 30)
    # Newcombe 1998, Table I: 81/263, and by hand for 10/40: (0.25 + 1.9208/40 ± …) / (1 + 3.8416/40).
    assert (found["value"], found["count"]) == (0.25, 40)
    assert (found["low"], found["high"]) == (pytest.approx(0.14187, abs=1e-4), pytest.approx(0.40194, abs=1e-4))
    known = estimate_mean([1.0] * 81 + [0.0] * 182)
    assert (round(known["low"], 4), round(known["high"], 4)) == (0.2553, 0.3662)
    assert estimate_mean([0.0] * 200)["low"] == 0.0
    assert estimate_mean([0.0] * 200)["high"] == pytest.approx(0.018845, abs=1e-6)
    assert estimate_mean([1.0] * 200)["high"] == 1.0


def test_more_samples_of_a_task_narrow_its_interval_but_never_beyond_their_number():
    alike = estimate_mean([0.5] * 10, episode_count=40)  # as 20 of 40
    assert (alike["low"], alike["high"]) == (pytest.approx(0.3520, abs=1e-4), pytest.approx(0.6480, abs=1e-4))
    mixed, coarse = (
        estimate_mean([0.0, 0.5, 0.5, 1.0], episode_count=8),
        estimate_mean([0.0, 0.0, 1.0, 1.0], episode_count=8),
    )
    assert mixed["high"] - mixed["low"] < coarse["high"] - coarse["low"]
    with pytest.raises(ValueError, match="no value to estimate from"):
        estimate_mean([])


def test_avg_and_pass_at_k_leave_lost_episodes_out():
    groups = [group(0, 1.0, 0.0, None), group(1, 0.0, 0.0, 0.0), group(2, None, None, None)]
    assert compute_average_at_k(groups)["value"] == pytest.approx(0.25)
    assert compute_average_at_k(groups)["count"] == 2
    two, three = compute_pass_at_k(groups, 2), compute_pass_at_k(groups, 3)
    assert (two["value"], two["count"]) == (0.5, 2)
    assert (three["value"], three["count"]) == (0.0, 1)
    assert compute_pass_at_k(groups, 4) is None
