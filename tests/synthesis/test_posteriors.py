"""Expeditions by Thompson sampling: literal beliefs, real episodes of the desk."""

import collections

import pytest
from evolving_desk import DESK, EPISODES, EXPLORER, focus, inputs, mastered

from cojax.registry import RegistryError, find
from cojax.synthesis import EVOLUTIONS, EvolutionInputs, reads, synthesize
from cojax.synthesis.beliefs import Beliefs, posteriors, solution_tools, tool_key
from cojax.validation import Validation


def test_it_reads_beliefs_and_nothing_else():
    assert reads(posteriors) == ("beliefs",)
    others = EVOLUTIONS.keys() - {"posteriors", "credited"}
    assert [reads(find("evolve", name, EVOLUTIONS)) for name in others] == [()] * 7
    with pytest.raises(RegistryError, match="'dreams'; besides its inputs it can read beliefs, credits, and"):
        reads(lambda inputs, dreams: iter(()))


def test_a_fifth_is_unguided_and_the_same_seed_gives_the_same_expeditions():
    some = list(posteriors(inputs(200), Beliefs().init()))
    origins = collections.Counter(expedition.origin for expedition in some)
    assert origins == {"posterior": 164, "uniform": 36}
    assert [trip.signal for trip in posteriors(inputs(200), Beliefs().init())] == [trip.signal for trip in some]
    assert [trip.signal for trip in posteriors(inputs(200, (1, 10)), Beliefs().init())] != [t.signal for t in some]
    assert {trip.origin for trip in posteriors(inputs(20), Beliefs().init(), floor=1.0)} == {"uniform"}


def test_one_or_two_tools_that_the_episode_offers_are_focus_and_plan():
    numbers = collections.Counter()
    for expedition in posteriors(inputs(), Beliefs().init(), floor=0.0):
        plan = expedition.prepare(EXPLORER).context.plan
        assert plan == focus(expedition)
        assert "finish" not in plan
        numbers[len(set(plan))] += 1
        assert expedition.signal.startswith(f"success with {' and '.join(plan)} drawn as 0.")
    assert set(numbers) == {1, 2}


def test_a_tool_of_which_nothing_is_known_is_followed_rather_than_mastered_ones():
    memory = mastered({})
    del memory[tool_key("notes_write")]
    trips = list(posteriors(inputs(), memory, floor=0.0, contenders=50))
    assert sum("notes_write" in focus(trip) for trip in trips) > 30


def test_expeditions_go_where_success_is_believed_to_be_near_one_half():
    # A prior of 1000 episodes leaves little to chance: p is 1/2 with notes_write and 1 with every pair without it.
    memory = mastered({"notes_write": 0.5})
    trips = list(posteriors(inputs(), memory, floor=0.0, contenders=200, strength=1000.0))
    assert sum("notes_write" in focus(trip) for trip in trips) == 40
    # What always fails is avoided just as what always succeeds.
    memory = mastered({"notes_write": 0.5, "mail_send": 0.0})
    trips = list(posteriors(inputs(), memory, floor=0.0, contenders=200, strength=1000.0))
    assert sum("mail_send" in focus(trip) for trip in trips) == 0


def test_without_beliefs_that_differ_the_choice_is_wide():
    trips = posteriors(inputs(200), Beliefs().init(), floor=0.0)
    assert len({tool for trip in trips for tool in focus(trip)}) == 26


def test_the_tasks_found_are_valid_and_tell_where_they_come_from():
    found = synthesize(
        posteriors(inputs(10), Beliefs().init()),
        DESK, EXPLORER, Validation(DESK), lambda id: False, budget=6, per_context=1, seed=(0, 10), step=10,
    )  # fmt: skip
    assert len(found.tasks) == 6
    own = [task for task in found.tasks if task.origin == "posterior"]
    assert own
    planned = {trip.signal: set(focus(trip)) for trip in posteriors(inputs(10), Beliefs().init()) if trip.reflect}
    assert sum(bool(planned[task.lineage.signal] & set(solution_tools(task.solution))) for task in own) >= len(own) - 1
    for task in own:
        assert task.lineage.parent in {trajectory.task.id for trajectory in EPISODES.values()}
        assert task.lineage.signal.startswith("success with ")
    with pytest.raises(TypeError):
        list(posteriors(inputs(1), Beliefs().init(), 3))


def test_without_episodes_all_is_unguided():
    nothing = EvolutionInputs(DESK, EXPLORER, (), [], EPISODES.__getitem__, None, 5, (0, 1))
    assert [trip.origin for trip in posteriors(nothing, Beliefs().init(), floor=0.0)] == ["uniform"] * 5
