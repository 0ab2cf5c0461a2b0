"""What the learner's tests share."""

import chex
import pytest

from cojax.learner import update as arithmetic


@pytest.fixture
def traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All learners of the test together may compile the update once: a second trace raises AssertionError."""
    chex.clear_trace_counter()
    monkeypatch.setattr(arithmetic, "update", chex.assert_max_traces(arithmetic.update, n=1))
