"""Which tasks a step wants, and how they are drawn."""

from collections import Counter

import pytest
from records import group, task, trajectory

from cojax.pool import RecentScores, TaskPool, learnability, uniform, unmastered, weigh_task
from cojax.types import Group


def test_learnability_is_greatest_where_success_is_even_and_unknown():
    # p = 1/2; (1 + 2)/(2 + 2) = 3/4; (1 + 0)/(2 + 2) = 1/4; (1 + 10)/(2 + 10) = 11/12
    assert learnability(()) == 0.25
    assert learnability((1.0, 1.0)) == 0.1875
    assert learnability((0.0, 0.0)) == 0.1875
    assert learnability((0.5,) * 8) == 0.25
    assert learnability((1.0,) * 10) == pytest.approx(11 / 144)


def test_the_mastered_retire_and_come_back_when_forgotten():
    assert unmastered((1.0, 1.0)) == 1.0
    assert unmastered((0.0, 1.0, 1.0, 1.0)) == 0.1
    assert unmastered((1.0, 1.0, 1.0, 0.875)) == 1.0
    assert uniform((1.0,) * 5) == 1.0


def test_curricula_have_settings():
    # A sharper prior: p = (4 + 2)/(8 + 2)
    assert learnability((1.0, 1.0), prior=4.0) == pytest.approx(0.24)
    assert unmastered((1.0,), visits=1, weight=0.25) == 0.25
    assert unmastered((0.0, 1.0), visits=2, weight=0.25) == 1.0


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_a_weight_that_nothing_can_be_drawn_by_is_refused(weight):
    with pytest.raises(
        ValueError, match=r"gives a task with the scores \[0.5\] the weight .*; expected above 0, finite"
    ):
        weigh_task(lambda scores: weight, (0.5,))


def test_visits_remember_the_last_ten_and_only_valid_ones():
    memory, (one, other) = {}, (task("one"), task("other"))
    for step in range(12):
        changes, signals = RecentScores().update(memory, [group(one, step / 16, step / 16)])
        memory |= changes
        assert signals == []
    assert memory == {one.id: [step / 16 for step in range(2, 12)]}
    lost = Group(other, (trajectory(other, 1.0, outcome="engine_error"), trajectory(other, 0.5)))
    assert RecentScores().update(memory, [lost])[0] == {other.id: [0.5]}
    assert RecentScores().update(memory, [Group(other, (lost.trajectories[0],))])[0] == {}


def test_tasks_are_drawn_in_proportion_to_their_weights():
    tasks = [task(str(number)) for number in range(4)]
    pool, weights = TaskPool.of(tasks), {tasks[0].id: 6.0, tasks[1].id: 3.0, tasks[2].id: 1.0, tasks[3].id: 1e-9}
    first = Counter(pool.sample(1, (seed,), weigh=weights.__getitem__)[0].query for seed in range(4_000))
    assert {name: round(count / 400) for name, count in first.items()} == {"0": 6, "1": 3, "2": 1}
    assert pool.sample(3, (7,), weigh=weights.__getitem__) == pool.sample(3, (7,), weigh=weights.__getitem__)
    assert {task.query for task in pool.sample(3, (7,), weigh=weights.__getitem__)} == {"0", "1", "2"}
    assert len(set(pool.sample(9, (7,), weigh=weights.__getitem__))) == 4


def test_the_newest_come_first_whatever_they_weigh():
    old, new = [task(f"old {n}") for n in range(8)], [task(f"new {n}") for n in range(4)]
    pool = TaskPool.of(old).add(new)
    weights = {**{t.id: 1.0 for t in old}, **{t.id: 1e-12 for t in new}}
    for seed in range(20):
        drawn = pool.sample(4, (seed,), 0.5, weights.__getitem__)
        assert Counter(t.query.split()[0] for t in drawn) == {"new": 2, "old": 2}
