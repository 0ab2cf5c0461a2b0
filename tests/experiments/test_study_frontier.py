"""Expeditions that join two mastered tasks: which tools feed which, on real episodes of the desk."""

import collections
import dataclasses

import pytest
from evolving_desk import DESK, EPISODES, EXPLORER, inputs

from cojax.signals import Visit
from cojax.synthesis import reads, synthesize
from cojax.validation import Validation
from experiments.study.frontier import ORIGIN, feeding, frontier

TASKS = {episode.task.id: episode.task for episode in EPISODES.values()}


def sampled(episode):
    """The episode as one that a policy played from the first action on."""
    return dataclasses.replace(
        episode, turns=tuple(dataclasses.replace(turn, action_tokens=(1,)) for turn in episode.turns)
    )


def visited(contexts=40, solved=8, failed=0, find=sampled):
    """Inputs in which each task was visited once, with so many solved and failed episodes."""
    visits = {id: [Visit(1, solved, failed)] for id in TASKS}
    return dataclasses.replace(inputs(contexts), visits=visits, find=lambda id: find(EPISODES[id]))


def plan(expedition):
    return expedition.prepare(EXPLORER).context.plan


def calls(task):
    return [call.name for action in task.solution for call in action.calls if call.name != "finish"]


def test_a_tool_feeds_those_that_take_what_it_told():
    pairs = feeding(list(EPISODES.values()))
    assert {("contacts_find", "mail_send"), ("files_find", "files_move")} <= pairs
    assert ("mail_send", "contacts_find") not in pairs
    assert all(one != other for one, other in pairs)
    assert feeding([]) == set()
    # What one episode told is no argument of another.
    apart = [dataclasses.replace(one, turns=(turn,)) for one in EPISODES.values() for turn in one.turns]
    assert feeding(apart) == set()


def test_a_join_plans_the_tools_of_both_tasks():
    assert reads(frontier) == ()
    trips = list(frontier(visited(), floor=0.0))
    origins = collections.Counter(trip.origin for trip in trips)
    assert origins[ORIGIN] > 30
    for trip in trips:
        if trip.origin == ORIGIN:
            own = calls(trip.task)
            assert plan(trip)[: len(own)] == tuple(own)
            assert list(plan(trip)[len(own) :]) in [calls(task) for task in TASKS.values() if task.id != trip.task.id]
            assert len(own) < len(plan(trip)) <= 6
    assert [trip.signal for trip in frontier(visited(), floor=0.0)] == [trip.signal for trip in trips]
    assert max(len(plan(trip)) for trip in frontier(visited(), floor=0.0, longest=2) if trip.origin == ORIGIN) == 2


def test_a_second_task_that_the_first_one_feeds_comes_first():
    feeds = feeding([sampled(episode) for episode in EPISODES.values()])
    fed = 0
    for trip in frontier(visited(), floor=0.0):
        if trip.origin != ORIGIN:
            continue
        own = calls(trip.task)
        possible = [
            calls(task) for task in TASKS.values() if task.id != trip.task.id and len(own) + len(calls(task)) <= 6
        ]
        pairs = [any((one, other) in feeds for one in own for other in second) for second in possible]
        if any(pairs):
            fed += 1
            second = plan(trip)[len(own) :]
            assert any((one, other) in feeds for one in own for other in second)
    assert fed >= 5


@pytest.mark.parametrize(
    "given",
    [visited(solved=5, failed=3), visited(solved=0, failed=0), inputs(40), visited(find=lambda episode: episode)],
    ids=["solved too seldom", "lost", "never visited", "begun by replayed actions"],
)
def test_without_mastery_all_is_unguided(given):
    assert {trip.origin for trip in frontier(given, floor=0.0)} == {"uniform"}


def test_the_last_visit_decides_whether_a_task_is_mastered():
    given = visited()
    episodes = [f"{step}-{episode.task.id}-0" for episode in EPISODES.values() for step in (9, 10)]
    by_task = {episode.task.id: episode for episode in EPISODES.values()}

    def find(begun):
        """Finds an episode, which begins with replayed actions if its step is `begun`."""
        return lambda name: (lambda one: one if name.startswith(f"{begun}-") else sampled(one))(
            by_task[name.split("-")[1]]
        )

    def origins(begun):
        inputs = dataclasses.replace(given, episodes=episodes, find=find(begun))
        return {trip.origin for trip in frontier(inputs, floor=0.0)}

    assert ORIGIN in origins(9)
    assert origins(10) == {"uniform"}


def test_a_join_is_found_whichever_task_comes_first():
    # One task alone has few enough calls to be joined with another one.
    trips = list(frontier(visited(20), floor=0.0, longest=3))
    assert {trip.origin for trip in trips} == {ORIGIN}


def test_joined_tasks_are_valid_and_use_all_tools_of_both():
    trips = [trip for trip in frontier(visited(24), floor=0.0) if trip.origin == ORIGIN]
    found = synthesize(
        trips, DESK, EXPLORER, Validation(DESK), lambda id: False, budget=12, per_context=1, seed=(0, 10), step=10,
    )  # fmt: skip
    assert {task.origin for task in found.tasks} == {ORIGIN}
    wanted = {(trip.task.id, trip.signal): collections.Counter(plan(trip)) for trip in trips}
    assert len(found.tasks) >= 3
    for task in found.tasks:
        assert wanted[task.lineage.parent, task.lineage.signal] <= collections.Counter(calls(task))
