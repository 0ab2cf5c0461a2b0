import dataclasses

from records import task, trajectory

from cojax.signals import Rare
from cojax.types import Group, Trajectory

A = task("a")


def many(count: int, *tools: str) -> list[Trajectory]:
    return [trajectory(A, 0, *tools, episode=f"{'+'.join(tools)} {i}") for i in range(count)]


def test_a_pattern_below_the_share_is_rare() -> None:
    rare = Rare(percent=5, minimum=100)
    groups = [Group(A, (*many(96, "a", "b"), *many(4, "b", "a")))]
    counts, signals = rare.update({}, groups)
    assert counts == {"a > b": 96, "b > a": 4, "(all)": 100}
    assert [s.episode for s in signals] == ["b+a 0", "b+a 1", "b+a 2", "b+a 3"]
    assert signals[0].evidence == "b > a: 4 of 100 patterns (4.00%, below 5%)"
    assert signals[0].focus == ("b", "a")


def test_exactly_the_share_is_not_rare() -> None:
    groups = [Group(A, (*many(95, "a"), *many(5, "b")))]
    assert Rare(percent=5, minimum=100).update({}, groups)[1] == []
    nearly = [Group(A, (*many(101, "a"), *many(100, "b")))]  # 49.75 % are b
    assert len(Rare(percent=50, minimum=1).update({}, nearly)[1]) == 100


def test_nothing_is_rare_before_the_minimum() -> None:
    groups = [Group(A, (*many(98, "a"), *many(1, "b")))]
    counts, signals = Rare(minimum=100).update({}, groups)
    assert signals == []
    assert len(Rare(minimum=100).update(counts, [Group(A, tuple(many(1, "c")))])[1]) == 1


def test_counts_go_on_over_training_and_only_changes_are_reported() -> None:
    memory = {"a": 90, "b": 9, "(all)": 99}
    counts, signals = Rare(percent=10, minimum=1).update(memory, [Group(A, tuple(many(2, "b")))])
    assert counts == {"b": 11, "(all)": 101}
    assert signals == []  # 11 of 101 is above 10 %
    assert memory == {"a": 90, "b": 9, "(all)": 99}


def test_n_grams_mark_the_trajectory_once_by_its_rarest() -> None:
    rare = Rare(percent=10, minimum=1, pattern=2)
    assert rare.patterns(trajectory(A, 0, "a", "b", "a", "b")) == ["a > b", "b > a", "a > b"]
    assert rare.patterns(trajectory(A, 0, "a")) == ["a"]
    assert rare.patterns(trajectory(A, 0, "a", "b")) == ["a > b"]
    memory = {"a > b": 95, "b > c": 3, "c > d": 1, "(all)": 99}
    counts, signals = rare.update(memory, [Group(A, (trajectory(A, 0, "a", "b", "c", "d"),))])
    assert counts == {"a > b": 96, "b > c": 4, "c > d": 2, "(all)": 102}
    assert [s.focus for s in signals] == [("c", "d")]


def test_failed_actions_count_only_when_asked() -> None:
    slip = trajectory(A, 0, "a", "b", failed=["b"])
    assert Rare().patterns(slip) == ["a"]
    assert Rare(failed=True).patterns(slip) == ["a > b"]
    assert Rare().patterns(trajectory(A, 0, "a", failed=["a"])) == []


def test_lost_trajectories_are_not_counted() -> None:
    lost = dataclasses.replace(trajectory(A, 0, "a"), outcome="environment_error")
    assert Rare().update({}, [Group(A, (lost,))]) == ({"(all)": 0}, [])
