"""What the target learns from in a round: experts, kinds of pairs and their weights."""

from __future__ import annotations

import dataclasses

from played_episodes import episode, group

from cojax.learner.batch import Pair
from cojax.preference import count_second_episodes
from cojax.preference.agents import agent_pairs, group_experts, select_successes
from cojax.settings.tree import RoundsSettings

EXPERT = episode("a0", 1.0, reward=1.0, version=-1, turns=2)
OWN = [group(episode("a1"), episode("a2", 0.5), episode("a3", 1.0, reward=1.0)), group(episode("b1"))]
OTHER = [group(episode("a4", 0.75))]
SETTINGS = RoundsSettings(dpo=0.5, own=1.0, other=2.0, failures=0.25)


def named(pairs: list[Pair]) -> list[tuple[str, str, float]]:
    return [(pair.better.episode, pair.worse.episode, pair.weight) for pair in pairs]


def test_each_kind_has_its_pairs_with_its_weight():
    """a4 is the only failure that is better than a2; a1 may be compared with either."""
    pairs = agent_pairs(SETTINGS, {EXPERT.task.id: [EXPERT]}, OWN, OTHER, (0, 0))
    assert named(pairs["own"]) == [("a0", "a1", 0.5), ("a0", "a2", 0.5)]
    assert named(pairs["other"]) == [("a0", "a4", 1.0)]
    assert {(worse, weight) for _, worse, weight in named(pairs["failures"])} == {("a1", 0.125), ("a2", 0.125)}
    assert ("a4", "a2", 0.125) in named(pairs["failures"])


def test_a_kind_of_weight_0_is_left_out_and_a_task_without_expert_has_only_failures():
    settings = dataclasses.replace(SETTINGS, other=0.0, failures=0.0)
    pairs = agent_pairs(settings, {EXPERT.task.id: [EXPERT]}, OWN, OTHER, (0, 0))
    assert {kind: len(found) for kind, found in pairs.items()} == {"own": 2, "other": 0, "failures": 0}
    assert agent_pairs(SETTINGS, {}, OWN, OTHER, (0, 0))["own"] == []


def test_only_what_the_agent_played_itself_has_log_probs_to_compare():
    pairs = agent_pairs(SETTINGS, {EXPERT.task.id: [EXPERT]}, OWN, OTHER, (0, 0))
    versions = {
        side.episode: side.turns[0].weights_version
        for found in pairs.values()
        for pair in found
        for side in (pair.better, pair.worse)
    }
    assert versions == {"a0": -1, "a1": 4, "a2": 4, "a4": -1}


def test_a_long_failure_is_cut_to_the_experts_turns_and_a_few_more():
    wandering = [group(episode("a1", turns=12))]
    pairs = agent_pairs(SETTINGS, {EXPERT.task.id: [EXPERT]}, wandering, [], (0, 0))
    assert len(pairs["own"][0].worse.turns) == 2 + 5
    few = dataclasses.replace(SETTINGS, extra_turns=0)
    assert len(agent_pairs(few, {EXPERT.task.id: [EXPERT]}, wandering, [], (0, 0))["own"][0].worse.turns) == 2


def test_experts_are_solutions_or_successes_or_these_where_there_is_no_solution():
    solutions = {EXPERT.task.id: EXPERT}
    own = [OWN[0], group(episode("b2", 1.0, reward=1.0))]
    other = [group(episode("b3", 1.0, reward=1.0))]

    def names(experts: str) -> dict[str, list[str]]:
        found = group_experts(dataclasses.replace(SETTINGS, experts=experts), solutions, own, other)
        return {some[0].task.query: [one.episode for one in some] for some in found.values()}

    assert names("solutions") == {"a": ["a0"]}
    assert names("successes") == {"a": ["a3"], "b": ["b2", "b3"]}
    assert names("both") == {"a": ["a0"], "b": ["b2", "b3"]}


def test_equal_successes_are_imitated_once():
    twice = dataclasses.replace(episode("a3", 1.0, reward=1.0), episode="a9")
    assert [t.episode for t in select_successes([*OWN, group(twice)])] == ["a3"]


def test_the_second_agent_plays_its_share_and_never_all_or_nothing():
    assert [count_second_episodes(RoundsSettings(share=share), 8) for share in (0.01, 0.25, 0.5, 1.0)] == [1, 2, 4, 7]
    assert count_second_episodes(RoundsSettings(share=0.5), 2) == 1
    assert count_second_episodes(RoundsSettings(agent="none"), 8) == 0
