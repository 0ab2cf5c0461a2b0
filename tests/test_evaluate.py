"""Scores of fixed task lists."""

import pytest

from cojax.evaluate import pass_at_k, score, success_by
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
    result = score([group(0, 1.0, 1.0), group(1, 0.0, None), group(2, 1.0, 0.0)])
    assert result.success == pytest.approx(0.5)
    assert result.error == pytest.approx(0.2886751)  # standard deviation 0.5 of (1, 0, 0.5), over √3
    assert result.partial == pytest.approx((1.0 + 0.5 + 0.75) / 3)
    assert result.tasks == 3
    assert result.outcomes == {"environment_error": 1, "finished": 5}


def test_a_task_without_a_valid_episode_is_left_out():
    assert score([group(0, 1.0), group(1, None)]).tasks == 1
    with pytest.raises(ValueError, match="no valid episode to score"):
        score([group(0, None)])


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
    assert success_by(groups, "classes") == {"a": 0.25, "b": 0.5, "c": 1.0}
    assert list(success_by(groups, "classes")) == ["a", "b", "c"]


def test_a_key_that_no_setup_has_is_named():
    with pytest.raises(ValueError, match="no 'room' in its setup to score it by; it has classes"):
        success_by([kind("a", 1.0)], "room")
