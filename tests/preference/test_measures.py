"""Measures of what an agent played in a round."""

from __future__ import annotations

import pytest
from played_episodes import episode, group

from cojax.preference.rounds import measure


def test_successes_failures_and_hard_negatives_are_counted():
    found = measure(
        [
            group(
                episode("a1", 1.0, reward=1.0), episode("a2", 0.6), episode("a3", 0.25), episode("a4", outcome="cut")
            ),
            group(episode("b1", 0.75)),
        ],
        0.6,
    )
    assert (found["episodes"], found["failures"], found["hard"]) == (4, 3, 2)
    assert found["success"] == 0.25
    assert found["partial"] == pytest.approx(2.6 / 4)
    assert found["turns"] == 1.0
    assert found["distinct"] == 1.0
    assert found["ends"] == pytest.approx(2 / 3)  # two of task a, which passed the same checks, and one of b
    assert 0.0 < found["sr_at_k"] <= 1.0


def test_failures_with_the_same_actions_are_one_and_lie_close():
    same = [episode("a1"), episode("a1"), episode("a1")]
    found = measure([group(*same)], 0.6)
    assert found["distinct"] == pytest.approx(1 / 3)
    assert found["sr_at_k"] == pytest.approx(1.0, abs=1e-5)


def test_without_episodes_there_are_only_counts():
    assert measure([], 0.6) == {"episodes": 0, "failures": 0, "hard": 0}
