import dataclasses

from records import group, task, trajectory

from cojax.signals import Boundary
from cojax.types import Group

A = task("a")


def test_a_group_with_both_outcomes_marks_all_its_trajectories() -> None:
    changes, signals = Boundary().update({}, [group(A, 1, 0, 0.4, 1)])
    assert changes == {}
    assert [s.episode for s in signals] == ["e0", "e1", "e2", "e3"]
    assert signals[2].evidence == "2 of 4 solved, 2 failed, this one at 0.40"


def test_one_outcome_or_a_reward_of_one_half_is_no_boundary() -> None:
    same = [group(A, 1, 1), group(A, 0, 0), group(A, 0.5, 0), group(A, 1, 0.5)]
    assert Boundary().update({}, same) == ({}, [])


def test_a_lost_trajectory_neither_fails_nor_is_marked() -> None:
    won = trajectory(A, 1, episode="won")
    lost = dataclasses.replace(trajectory(A, 0, episode="lost"), outcome="engine_error")
    assert Boundary().update({}, [Group(A, (won, lost))]) == ({}, [])
    failed = trajectory(A, 0, episode="failed")
    _, signals = Boundary().update({}, [Group(A, (won, lost, failed))])
    assert [s.episode for s in signals] == ["won", "failed"]


def test_a_timeout_is_the_policys_own_failure() -> None:
    late = dataclasses.replace(trajectory(A, 0, episode="late"), outcome="timeout")
    assert len(Boundary().update({}, [Group(A, (trajectory(A, 1), late))])[1]) == 2


def test_the_focus_is_what_tells_success_from_failure() -> None:
    won = [trajectory(A, 1, "contacts_find", "mail_send", "finish") for _ in range(2)]
    lost = [trajectory(A, 0, "mail_send", "finish"), trajectory(A, 0, "mail_send", "mail_flag", "finish")]
    _, signals = Boundary().update({}, [Group(A, (*won, *lost))])
    # contacts_find: 2 of 2 against 0 of 2; mail_flag: 0 of 2 against 1 of 2; the others are everywhere.
    assert {s.focus for s in signals} == {("contacts_find", "mail_flag")}


def test_without_a_difference_the_focus_is_what_was_called() -> None:
    both = (trajectory(A, 1, "a", "b", "a"), trajectory(A, 0, "b", "a"))
    _, signals = Boundary().update({}, [Group(A, both)])
    assert [s.focus for s in signals] == [("a", "b"), ("b", "a")]
