"""The record of a step: its means over episodes, which a step that played nothing does not have."""

from types import SimpleNamespace

import pytest
from records import group, task

from cojax.learner.batch import count_groups
from cojax.loop import State
from cojax.loop.records import make_step_record

MEANS = {"success", "reward", "partial", "turns", "live_groups"}


def recorded(groups, dynamic_sampling=0):
    loop = SimpleNamespace(dynamic_sampling=dynamic_sampling, kinds={}, detectors={})
    return make_step_record(loop, State(3, None, (), {}), groups, (), count_groups(groups), ())


def test_a_step_has_the_means_over_its_episodes():
    found = recorded([group(task("a"), 1.0, 0.0), group(task("b"), 0.0, 0.0)])
    assert {name: found[name] for name in ("success", "reward", "live_groups")} == {
        "success": 0.25, "reward": 0.25, "live_groups": 0.5,
    }  # fmt: skip
    assert found.keys() >= MEANS
    assert found["origins"] == {"seed": {"groups": 2, "live": 1}}


@pytest.mark.parametrize("dynamic_sampling", [0, 8])
def test_a_step_that_played_nothing_has_no_success_of_0(dynamic_sampling):
    """A run that has used up its environment steps would look as if it had forgotten everything."""
    found = recorded([], dynamic_sampling)
    assert not found.keys() & MEANS
    assert found["origins"] == {}
    assert (found["step"], found["tokens_sampled"], sum(found["outcomes"].values())) == (3, 0, 0)
