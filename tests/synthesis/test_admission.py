"""Which candidates a probe keeps, and what the records say of the others."""

import collections
import dataclasses

import pytest
from records import call

from cojax.synthesis import ADMISSIONS, Synthesis, admit
from cojax.synthesis.pipeline import Probe
from cojax.types import Group, Lineage, Task, Trajectory, Turn

RATES = (0, 8, 4, 1, 7, 8, 0, 3, 8, 0, 0, 8)  # of eight episodes


def group(number: int, solved: int, lost: int = 0) -> Group:
    lineage = Lineage("", "", "", "scripted", (), "accepted", ("runs",), 10)
    task = Task("desk", f"task {number}", {}, (call("finish"),), lineage=lineage)
    turn = Turn(call("finish"), action_tokens=(1, 2, 3))
    rewards = [1.0] * solved + [0.0] * (8 - solved - lost)
    ended = [Trajectory(task, turns=(turn, turn), reward=reward) for reward in rewards]
    return Group(task, (*ended, *(Trajectory(task, outcome="engine_error") for _ in range(lost))))


GROUPS = [group(number, solved) for number, solved in enumerate(RATES)]


def chosen(probe: Probe, budget: int, seed: tuple = (0,), groups: list[Group] = GROUPS) -> list[int]:
    return [int(task.query.split()[1]) for task in probe.choose(groups, budget, seed)]


def test_the_most_learnable_are_kept_in_their_order() -> None:
    # p(1 − p): 4 of 8 is 16/64, 3 of 8 is 15/64, 1 and 7 of 8 are 7/64, and all others 0.
    probe = Probe(unselected=0.0)
    assert [chosen(probe, budget) for budget in (1, 2, 4)] == [[2], [2, 7], [2, 3, 4, 7]]
    assert {place for seed in range(20) for place in chosen(probe, 3, (seed,))} == {2, 3, 4, 7}


def test_the_hardest_that_were_solved_at_all_are_kept() -> None:
    # Solved in 1, 3, 4 and 7 of 8 episodes; then chance decides among those always or never solved.
    probe = Probe(unselected=0.0, prefer="hardest")
    assert [chosen(probe, budget) for budget in (1, 2, 3, 4)] == [[3], [3, 7], [2, 3, 7], [2, 3, 4, 7]]
    fifth = {place for seed in range(60) for place in chosen(probe, 5, (seed,))} - {2, 3, 4, 7}
    assert fifth == {0, 1, 5, 6, 8, 9, 10, 11}


@pytest.mark.parametrize(("lost", "rates"), [(1, (1, 6)), (3, (1, 4)), (3, (2, 3))])
def test_chance_decides_between_equals_whatever_the_number_of_valid_episodes(lost: int, rates: tuple[int, int]) -> None:
    groups = [group(number, solved, lost) for number, solved in enumerate(rates)]
    first = sum(chosen(Probe(unselected=0.0), 1, (seed,), groups) == [0] for seed in range(400))
    assert 150 < first < 250  # a fair coin is outside of this once in 2 million times


def test_a_budget_is_filled_by_chance_where_nothing_more_can_be_learned() -> None:
    extra = collections.Counter(
        place for seed in range(400) for place in chosen(Probe(unselected=0.0), 5, (seed,)) if RATES[place] in (0, 8)
    )
    assert set(extra) == {0, 1, 5, 6, 8, 9, 10, 11}
    assert min(extra.values()) > 30
    assert chosen(Probe(), 50) == list(range(12))


def test_half_of_the_tasks_are_drawn_from_all_candidates_alike() -> None:
    kept = [chosen(Probe(), 4, (seed,)) for seed in range(600)]
    assert {len(one) for one in kept} == {4}
    counts = collections.Counter(place for one in kept for place in one)
    # Two of twelve are drawn freely: each place with a chance of a sixth. Place 2 is always kept beside them.
    assert counts[2] == 600
    assert all(70 < counts[place] < 130 for place in (0, 1, 5, 6, 8, 9, 10, 11))
    assert chosen(Probe(unselected=1.0), 4, (3,)) == chosen(Probe(unselected=1.0), 4, (3,))


def test_episodes_that_were_lost_do_not_count() -> None:
    groups = [group(0, 0, lost=8), group(1, 2, lost=4), group(2, 8)]
    assert chosen(Probe(unselected=0.0), 1, groups=groups) == [1]


def test_records_say_what_was_tried_and_what_it_cost() -> None:
    tasks = tuple(one.task for one in GROUPS[:3])
    predicted = {"predicted": {"beliefs": 0.4, "probe": None}}
    drafts = (
        {"task": "", "verdict": {"status": "discarded", "evidence": ["a duplicate"], "difficulty": None}, **predicted},
        *(
            {"task": t.id, "verdict": {"status": "accepted", "evidence": ["runs"], "difficulty": None}, **predicted}
            for t in tasks
        ),
    )
    found = Synthesis(tasks, drafts, {"drafts": 4, "accepted": 3, "discarded": 1})
    made = admit(found, GROUPS[:3], [tasks[2]])
    assert [task.id for task in made.tasks] == [tasks[2].id]
    assert made.tasks[0].lineage is not None
    line = "probed: 4 of 8 episodes of the present policy solved it"
    assert made.tasks[0].lineage.evidence == ("runs", line)
    assert made.counts == {"drafts": 4, "accepted": 1, "discarded": 3}
    assert made.drafts[0] == drafts[0]
    assert made.drafts[1] == {
        "task": "",
        "verdict": {
            "status": "discarded",
            "evidence": [
                "runs",
                "probed: 0 of 8 episodes of the present policy solved it",
                "not admitted: no episode solved it",
            ],
            "difficulty": 1.0,
        },
        "predicted": {"beliefs": 0.4, "probe": 0.0},
    }
    assert made.drafts[3]["task"] == tasks[2].id
    assert made.drafts[3]["predicted"] == {"beliefs": 0.4, "probe": 0.5}
    assert made.drafts[3]["verdict"] == {"status": "accepted", "evidence": ["runs", line], "difficulty": 0.5}
    assert made.probe_cost == {
        "candidates": 3, "episodes": 24, "turns": 48, "tokens": 144, "live": pytest.approx(1 / 3), "live_kept": 1.0,
        "origins": {"seed": {"candidates": 3, "episodes": 24, "turns": 48}},
    }  # fmt: skip


def test_what_a_probe_cost_is_told_by_origin_and_a_candidate_that_was_lost_has_no_success() -> None:
    lost = group(0, 0, lost=8)
    other = dataclasses.replace(group(1, 8).task, origin="rare")
    groups = [lost, Group(other, tuple(dataclasses.replace(t, task=other) for t in group(1, 8).trajectories[:6]))]
    drafts = tuple(
        {
            "task": one.task.id,
            "verdict": {"status": "accepted", "evidence": ["runs"], "difficulty": None},
            "predicted": {"beliefs": None, "probe": None},
        }
        for one in groups
    )
    found = Synthesis(tuple(one.task for one in groups), drafts, {"drafts": 2, "accepted": 2, "discarded": 0})
    made = admit(found, groups, [other])
    assert made.probe_cost["origins"] == {
        "rare": {"candidates": 1, "episodes": 6, "turns": 12},
        "seed": {"candidates": 1, "episodes": 8, "turns": 0},
    }
    assert [draft["predicted"]["probe"] for draft in made.drafts] == [None, 1.0]


def test_a_group_is_live_where_its_rewards_differ_though_nothing_was_solved() -> None:
    one = group(0, 0)
    partial = (dataclasses.replace(one.trajectories[0], reward=0.6), *one.trajectories[1:])
    groups = [Group(one.task, partial), group(1, 0)]
    draft = {"verdict": {"status": "accepted", "evidence": [], "difficulty": None}, "predicted": {}}
    drafts = tuple({**draft, "task": each.task.id} for each in groups)
    found = Synthesis(tuple(each.task for each in groups), drafts, {"drafts": 2, "accepted": 2, "discarded": 0})
    probe = admit(found, groups, [one.task]).probe_cost
    assert (probe["live"], probe["live_kept"]) == (0.5, 1.0)


def test_without_a_probe_everything_is_admitted() -> None:
    assert ADMISSIONS["all"]() is None
    assert (ADMISSIONS["probe"]().candidates, ADMISSIONS["probe"]().attempts) == (10, 8)
