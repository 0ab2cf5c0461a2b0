"""TGC and SGC of played tasks, and the intervals that the evaluation command gives them."""

import pytest

from cojax.evaluation.evaluate import measure_split
from cojax.types import Group, Task, Trajectory
from environments.appworld import measures
from experiments import appworld


def of_scenario(name: str, *rewards: float | None) -> Group:
    """None stands for an episode lost to the machinery."""
    task = Task("appworld", name, {"task": name})
    return Group(
        task,
        tuple(
            Trajectory(task, outcome="environment_error") if reward is None else Trajectory(task, reward=reward)
            for reward in rewards
        ),
    )


def figures(groups: list[Group]) -> tuple[float, float]:
    found = measure_split(appworld.get_config(), groups)
    return found["TGC"]["value"] / 100, found["SGC"]["value"] / 100


def test_goal_completion_is_over_tasks_and_over_scenarios() -> None:
    groups = [
        of_scenario("a_1", 1.0), of_scenario("a_2", 1.0), of_scenario("a_3", 1.0),
        of_scenario("b_1", 1.0), of_scenario("b_2", 0.0), of_scenario("b_3", 1.0),
    ]  # fmt: skip
    assert figures(groups) == (pytest.approx(5 / 6), 0.5)
    found = measure_split(appworld.get_config(), groups)
    tgc, sgc = found["TGC"], found["SGC"]
    assert (tgc["value"], sgc["value"]) == (pytest.approx(100 * 5 / 6), 50.0)
    assert (tgc["count"], sgc["count"]) == (6, 2)
    assert 0 < tgc["low"] < tgc["value"] < tgc["high"] <= 100
    assert (sgc["low"], sgc["high"]) == (pytest.approx(9.4531, abs=1e-3), pytest.approx(90.5469, abs=1e-3))  # 1 of 2


def test_goal_completion_of_several_samples_counts_scenarios_sample_by_sample() -> None:
    groups = [of_scenario("a_1", 1.0, 0.0), of_scenario("a_2", 0.0, 1.0), of_scenario("b_1", 1.0, 1.0)]
    assert figures(groups) == (pytest.approx(2 / 3), 0.5)  # no sample solves all of a


def test_goal_completion_counts_a_lost_episode_as_the_benchmark_does() -> None:
    assert figures([of_scenario("a_1", 1.0), of_scenario("a_2", None)]) == (0.5, 0.0)
    with pytest.raises(ValueError, match="no task has 'task' in its setup"):
        measures([Group(Task("desk", "x", {}), of_scenario("a_1", 1.0).trajectories)])
