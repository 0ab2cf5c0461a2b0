"""Rules by which others choose tasks: literal weights, and expeditions around real episodes of the desk."""

import collections

from evolving_desk import EXPLORER, inputs, mastered

from cojax.synthesis.beliefs import tool_key
from experiments.study.pools import difficulty_pools, least_seen, review


def test_a_task_that_was_mastered_and_is_lost_is_drawn_more_often():
    assert [review(scores) for scores in ((), (0.2,), (0.75, 1.0), (0.75, 0.5), (0.75, 0.4), (0.7, 0.0))] == [
        1.0, 1.0, 1.0, 1.0, 4.0, 1.0,
    ]  # fmt: skip
    assert review((1.0, 0.6), weight=9.0, lost=0.7) == 9.0
    assert review((0.6, 0.0), mastered=0.5) == 4.0


def test_pools_of_difficulty_go_by_the_latest_group():
    assert [difficulty_pools(scores) for scores in ((), (1.0, 0.5), (0.5, 1.0), (0.5, 0.0))] == [1.0, 1.0, 0.1, 0.1]
    assert difficulty_pools((0.8,), easy=0.25, solved=0.8) == 0.25
    assert difficulty_pools((0.2,), hard=0.5, failed=0.2) == 0.5


def test_expeditions_go_to_the_tools_with_the_fewest_episodes_and_to_each_of_them_once():
    """The policy knows all tools of the desk but two."""
    unseen = {"notes_write", "calendar_add"}
    seen = {key: value for key, value in mastered({}).items() if key not in map(tool_key, unseen)}
    expeditions = list(least_seen(inputs(contexts=12), seen, floor=0.0))
    plans = [expedition.reflect(EXPLORER).plan for expedition in expeditions]
    assert {expedition.origin for expedition in expeditions} == {"least-seen"}
    assert {tool for (tool,) in plans[:2]} == unseen
    assert set(collections.Counter(plans).values()) == {1}
    again = [expedition.reflect(EXPLORER).plan for expedition in least_seen(inputs(contexts=12), seen, floor=0.0)]
    assert again == plans
    assert {expedition.origin for expedition in least_seen(inputs(contexts=12), seen, floor=1.0)} == {"uniform"}
