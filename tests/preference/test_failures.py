"""The failure agent learns from failures alone: what cannot become one of them, and which pairs they make."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing

import pytest
from played_episodes import episode, group

from cojax.learner.batch import Pair
from cojax.preference import agents, failures
from cojax.preference.failures import Failure, list_failures, make_pairs, mark_unsampled
from cojax.types import Group, Trajectory


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (episode("a", 1.0, reward=1.0), "episode 'a' is a success (reward 1); expected a failure"),
        (episode("a", version=-1), "episode 'a' was not sampled from a policy; expected a failure of one"),
        (episode("a", turns=0), "episode 'a' was not sampled from a policy; expected a failure of one"),
        (episode("a", outcome="engine_error"), "episode 'a' was lost (engine_error); expected a failure of the policy"),
    ],
)
def test_neither_a_success_nor_an_expert_nor_a_lost_episode_is_a_failure(found, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Failure(found)


def test_one_turn_of_an_expert_is_enough_to_be_refused():
    mixed = episode("a", turns=2)
    turns = (mixed.turns[0], dataclasses.replace(mixed.turns[1], weights_version=-1))
    with pytest.raises(ValueError, match="was not sampled"):
        Failure(dataclasses.replace(mixed, turns=turns))


def test_the_failure_agent_can_be_given_nothing_but_failures():
    """By the types of what it learns from: no trajectory, group or pair, and no mapping that could hold an expert."""
    hints = typing.get_type_hints(agents.pair_failures)
    given = {name: hints[name] for name in inspect.signature(agents.pair_failures).parameters}
    data = {name: kind for name, kind in given.items() if name not in ("margin", "seed", "return")}
    assert {name: typing.get_args(kind) for name, kind in data.items()} == {
        "own": (Failure,),
        "other_failures": (Failure,),
    }
    text = inspect.getsource(agents.pair_failures)
    assert not any(word in text for word in ("expert_trajectories", "solutions", "Group", "Trajectory]"))
    assert not {"experts", "Expert"} & set(vars(failures))


def test_a_trajectory_in_a_failures_place_is_an_error():
    with pytest.raises(AttributeError):
        make_pairs([episode("a"), episode("ab", 0.5)], 0.0, (0,))  # type: ignore[list-item]


def test_failures_are_the_valid_episodes_without_full_reward():
    groups = [
        group(episode("a", 1.0, reward=1.0), episode("ab", 0.5), episode("ac", outcome="cut"), episode("ad", turns=0)),
        group(episode("b")),
    ]
    assert [failure.trajectory.episode for failure in list_failures(groups)] == ["ab", "b"]


def named(pairs: list[Pair]) -> list[tuple[str, str]]:
    return [(pair.better.episode, pair.worse.episode) for pair in pairs]


def test_of_two_failures_of_a_task_the_one_with_more_partial_reward_is_preferred():
    found = list_failures([group(episode("a1", 0.5), episode("a2"), episode("a3", 0.5)), group(episode("b1", 0.9))])
    pairs = make_pairs(found, 0.0, (0,), 2.0)
    assert {worse for _, worse in named(pairs)} == {"a2"}
    assert named(pairs)[0][0] in ("a1", "a3")
    assert [pair.weight for pair in pairs] == [2.0]


def test_which_better_failure_it_is_depends_on_the_seed():
    found = list_failures([group(episode("a1", 0.5), episode("a2", 0.25), episode("a3"))])
    drawn = {named(make_pairs(found, 0.0, (seed,)))[1] for seed in range(20)}
    assert drawn == {("a1", "a3"), ("a2", "a3")}
    assert named(make_pairs(found, 0.0, (3,))) == named(make_pairs(found, 0.0, (3,)))


def test_a_margin_leaves_out_what_is_too_near():
    found = list_failures([group(episode("a1", 0.5), episode("a2", 0.25), episode("a3"))])
    assert named(make_pairs(found, 0.25, (0,))) == [("a1", "a3")]
    assert make_pairs(found, 0.5, (0,)) == []


def test_episodes_of_another_policy_count_as_unsampled():
    found = list_failures([group(episode("a1", 0.5), episode("a2"))])
    (pair,) = make_pairs(found, 0.0, (0,), played_by_other=lambda trajectory: trajectory.episode == "a2")
    assert [pair.better.turns[0].weights_version, pair.worse.turns[0].weights_version] == [4, -1]
    assert pair.worse == mark_unsampled(episode("a2"))


def test_the_pairs_hold_trajectories_of_failures_only():
    found: list[Group] = [group(episode("a1", 1.0, reward=1.0), episode("a2", 0.5), episode("a3"))]
    sides: list[Trajectory] = [
        side for pair in make_pairs(list_failures(found), 0.0, (0,)) for side in (pair.better, pair.worse)
    ]
    assert [side.episode for side in sides] == ["a2", "a3"]
