"""Expeditions that join mastered skills: which tools feed which, on real episodes of the desk."""

import collections

import pytest
from test_posteriors import DESK, EPISODES, EXPLORER, focus, inputs, mastered

from cojax.prefixes import ORIGIN
from cojax.synthesis import EVOLUTIONS, reads, synthesize
from cojax.synthesis.beliefs import Beliefs, solution_tools
from cojax.synthesis.frontier import feeding
from cojax.validation import Validation

frontier = EVOLUTIONS["frontier"]


def test_a_tool_feeds_those_that_take_what_it_told():
    pairs = feeding(list(EPISODES.values()))
    assert ("contacts_find", "mail_send") in pairs
    assert ("files_find", "files_move") in pairs
    assert ("mail_send", "contacts_find") not in pairs
    assert all(one != other for one, other in pairs)
    assert pairs == sorted(pairs)
    assert feeding([]) == []


def test_joins_are_of_mastered_tools_around_tasks_of_mastered_tools():
    assert reads(frontier) == ("beliefs",)
    trips = list(frontier(inputs(), mastered({"contacts_find": 0.5}), floor=0.0))
    assert collections.Counter(trip.origin for trip in trips) == {ORIGIN: 40}
    feeds = feeding(list(EPISODES.values()))
    for trip in trips:
        assert focus(trip) in feeds
        assert set(focus(trip)) & set(solution_tools(trip.task))
        assert "contacts_find" not in (*focus(trip), *solution_tools(trip.task))
    assert [trip.signal for trip in frontier(inputs(), mastered({"contacts_find": 0.5}), floor=0.0)] == [
        trip.signal for trip in trips
    ]


@pytest.mark.parametrize("memory", [Beliefs().init(), mastered({}, episodes=4.0)], ids=["none", "few episodes"])
def test_without_mastery_all_is_unguided(memory):
    assert {trip.origin for trip in frontier(inputs(), memory, floor=0.0)} == {"uniform"}


def test_joined_tasks_are_valid_and_often_use_both_tools():
    trips = list(frontier(inputs(24), mastered({}), floor=0.0))
    found = synthesize(
        trips, DESK, EXPLORER, Validation(DESK), lambda id: False, budget=12, per_context=1, seed=(0, 10), step=10,
    )  # fmt: skip
    assert {task.origin for task in found.tasks} == {ORIGIN}
    wanted = {trip.task.id: set(focus(trip)) for trip in trips}
    both = [task for task in found.tasks if wanted[task.lineage.parent] <= set(solution_tools(task))]
    assert len(both) >= 3
