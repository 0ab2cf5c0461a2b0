"""Feedback weighted by what it led to: literal evidence, and expeditions around real episodes of the desk."""

import collections
import dataclasses

import pytest
from evolving_desk import EPISODES, focus, inputs, mastered

from cojax import signals
from cojax.synthesis import reads
from cojax.synthesis.beliefs import Beliefs
from cojax.types import Action, Call, Group, Lineage, Signal, Task, Trajectory
from experiments.study.credits import Credits, credit, credited

NOTHING = Beliefs().init()
NO_TOOL_IS_MASTERED = mastered({}, episodes=1.0)


def group(origin, tools, *rewards, lost=0):
    solution = tuple(Action(calls=(Call(tool),)) for tool in tools)
    task = Task("desk", " ".join(tools), {}, solution, origin, None if origin == "seed" else Lineage())
    ended = [Trajectory(task, f"1-{task.id}-{i}", reward=reward) for i, reward in enumerate(rewards)]
    failed = [Trajectory(task, f"1-{task.id}-{9 + i}", outcome="environment_error") for i in range(lost)]
    return Group(task, (*ended, *failed))


def after(*steps, discount=0.5):
    detector = Credits(discount)
    memory = {"credits": detector.init()}
    for groups in steps:
        changes, found = signals.detect({"credits": detector}, memory, groups)
        signals.apply(memory, changes)
        assert not found
    return memory["credits"]


def test_live_and_dead_groups_are_counted_by_kind_and_by_its_tools():
    memory = after([
        group("rare", ("a", "b"), 1.0, 0.0), group("rare", ("a",), 0.0, 0.0), group("boundary", ("a",), 1.0, 1.0),
        group("seed", ("a",), 1.0, 0.0), group("rare", ("b",), lost=2), group("rare", ("c",), 1.0, 1.0, lost=1),
        group("rare", ("d",), 1.0, lost=1),
    ])  # fmt: skip
    assert memory == {
        "steps": 1,
        "discount": 0.5,
        "rare/": [1.0, 2.0, 1],
        "rare/a": [1.0, 1.0, 1],
        "rare/b": [1.0, 0.0, 1],
        "rare/c": [0.0, 1.0, 1],
        "boundary/": [0.0, 1.0, 1],
        "boundary/a": [0.0, 1.0, 1],
    }


def test_older_groups_count_less():
    memory = after([group("rare", ("a",), 1.0, 0.0)], [], [group("rare", ("a",), 1.0, 1.0)])
    assert memory["rare/a"] == [0.25, 1.0, 3]


def test_credit_is_the_believed_share_of_live_groups():
    def of(kind, *tools, memory):
        return credit(memory, kind, tools, strength=2.0)

    assert of("rare", "a", memory=after()) == of("rare", memory=after()) == 0.5
    memory = after([group("rare", ("a",), 1.0, 0.0), group("rare", ("b",), 0.0, 0.0), group("rare", ("b",), 1.0, 1.0)])
    kind = (1 + 1) / (2 + 3)
    assert of("rare", memory=memory) == pytest.approx(kind)
    assert of("rare", "unseen", memory=memory) == pytest.approx(kind)
    a, b = (2 * kind + 1) / (2 + 1), 2 * kind / (2 + 2)
    assert of("rare", "a", memory=memory) == pytest.approx(a)
    assert of("rare", "a", "b", memory=memory) == pytest.approx((a + b) / 2)
    assert of("boundary", "a", memory=memory) == 0.5


def marked(*marks, contexts=40, seed=(0, 10)):
    """Inputs with a signal for each (kind, number of an episode, tools in focus)."""
    found = [Signal(kind, EPISODES[f"e{n}"].task.id, f"e{n}", f"{kind} {n}", tools) for kind, n, tools in marks]
    return dataclasses.replace(inputs(contexts, seed), signals=found)


EACH = [("rare", number, ("mail_send",)) for number in range(20)]


def test_it_follows_each_task_once_and_then_goes_anywhere():
    assert reads(credited) == ("beliefs", "credits")
    trips = list(credited(marked(*EACH, *EACH, EACH[0]), NOTHING, after(), floor=0.0))
    assert collections.Counter(trip.origin for trip in trips) == {"rare": 20, "uniform": 20}
    followed = trips[:20]
    assert len({trip.task.id for trip in followed}) == 20
    assert {focus(trip) for trip in followed} == {("mail_send",)}
    assert [trip.signal for trip in credited(marked(*EACH, *EACH, EACH[0]), NOTHING, after(), floor=0.0)] == [
        trip.signal for trip in trips
    ]
    assert [trip.signal for trip in credited(marked(*EACH, seed=(1, 10)), NOTHING, after(), floor=0.0)] != [
        trip.signal for trip in trips
    ]


def test_a_share_is_unguided():
    trips = list(credited(marked(*EACH, contexts=20), NOTHING, after()))
    assert 0 < collections.Counter(trip.origin for trip in trips)["uniform"] < 10
    assert {trip.origin for trip in credited(marked(*EACH), NOTHING, after(), floor=1.0)} == {"uniform"}
    assert {trip.origin for trip in credited(inputs(5), NOTHING, after(), floor=0.0)} == {"uniform"}


def test_mastered_tools_are_left_out_and_a_focus_of_which_one_is_not_stays():
    memory = mastered({"mail_send": 0.5})
    marks = [("rare", 0, ("mail_send",)), ("rare", 1, ("notes_add",)), ("rare", 2, ("notes_add", "mail_send")),
             ("rare", 3, ())]  # fmt: skip
    trips = credited(marked(*marks, contexts=10), memory, after(), floor=0.0)
    assert {trip.signal for trip in trips if trip.origin == "rare"} == {"rare 0", "rare 2", "rare 3"}
    trips = credited(marked(*marks, contexts=10), NO_TOOL_IS_MASTERED, after(), floor=0.0)
    assert sum(trip.origin == "rare" for trip in trips) == 4


def test_the_ending_and_tools_that_do_not_exist_do_not_keep_a_focus_from_being_mastered():
    memory = mastered({"mail_send": 0.5})
    marks = [("rare", 0, ("finish", "mail_send")), ("rare", 1, ("notes_add", "no_such_tool")), ("rare", 2, ("finish",))]
    for episodes in (8.0, 0.0):
        trips = list(credited(marked(*marks, contexts=10), memory, after(), floor=0.0, episodes=episodes))
        assert {trip.signal for trip in trips if trip.origin == "rare"} == {"rare 0", "rare 2"}


def test_signals_are_drawn_in_proportion_to_their_credit():
    # Of what rare led to all groups were live, and of what boundary led to one in four: credits of 0.98 and 0.26.
    live = [group("rare", ("a",), 1.0, 0.0)] * 50
    memory = after([*live, *(group("boundary", ("a",), 1.0, float(i % 4 > 0)) for i in range(50))])
    rates = {kind: credit(memory, kind, (), 2.0) for kind in ("rare", "boundary")}
    both = [("rare", 0, ()), ("boundary", 1, ())]
    trips = [next(credited(marked(*both, contexts=1, seed=(n,)), NOTHING, memory, floor=0.0)) for n in range(400)]
    first = collections.Counter(trip.origin for trip in trips)
    expected = rates["rare"] / sum(rates.values())
    assert abs(first["rare"] / 400 - expected) < 3 * (expected * (1 - expected) / 400) ** 0.5
    assert expected > 0.7
