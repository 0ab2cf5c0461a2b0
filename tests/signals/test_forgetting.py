import copy
import dataclasses

from records import group, task, trajectory

from cojax.signals import Forgetting
from cojax.types import Group

A = task("a")


def visits(detector: Forgetting, *scores: tuple[float, ...]) -> tuple[dict, list]:
    """One visit of A after another; the memory at the end and the signals of the last visit."""
    memory, signals = detector.init(), []
    for rewards in scores:
        changes, signals = detector.update(memory, [group(A, *rewards)])
        memory |= changes
    return memory, signals


def test_a_task_solved_before_and_failed_now_marks_the_failing_trajectories() -> None:
    memory, signals = visits(Forgetting(), (1, 1, 1, 0), (0, 0, 0, 0), (0, 1, 0.5, 0))
    assert memory == {A.id: [0.75, 0.0, 0.375]}
    assert [(s.kind, s.task, s.episode) for s in signals] == [("forgetting", A.id, e) for e in ("e0", "e3")]
    assert {s.evidence for s in signals} == {"solved 2 visits ago at 0.75, now 0.38"}


def test_the_last_success_is_the_one_quoted() -> None:
    _, signals = visits(Forgetting(), (1,), (0.5,), (0,))
    assert [s.evidence for s in signals] == ["solved 1 visit ago at 0.50, now 0.00"]


def test_a_success_in_the_same_visit_is_not_history() -> None:
    assert visits(Forgetting(), (1, 0, 0, 0))[1] == []


def test_a_task_still_solved_is_not_forgotten() -> None:
    assert visits(Forgetting(), (1, 1), (1, 0))[1] == []  # 0.5 is not below 0.5


def test_the_window_forgets() -> None:
    assert len(visits(Forgetting(window=3), (1,), (0,), (0,), (0,))[1]) == 1
    memory, signals = visits(Forgetting(window=3), (1,), (0,), (0,), (0,), (0,))
    assert signals == []
    assert memory == {A.id: [0.0, 0.0, 0.0]}
    assert len(visits(Forgetting(), *[(1,)] * 12)[0][A.id]) == 10


def test_lost_trajectories_are_no_visit_and_no_failure() -> None:
    detector = Forgetting()
    lost = dataclasses.replace(trajectory(A, 0, episode="lost"), outcome="environment_error")
    memory = {A.id: [1.0]}
    assert detector.update(memory, [Group(A, (lost, lost))]) == ({}, [])
    changes, signals = detector.update(memory, [Group(A, (lost, trajectory(A, 0, episode="e")))])
    assert changes == {A.id: [1.0, 0.0]}
    assert [s.episode for s in signals] == ["e"]


def test_update_leaves_its_memory_alone_and_reports_changed_keys_only() -> None:
    memory = {A.id: [1.0], "other": [0.0]}
    before = copy.deepcopy(memory)
    changes, _ = Forgetting().update(memory, [group(A, 0)])
    assert memory == before
    assert changes == {A.id: [1.0, 0.0]}


def test_a_task_twice_in_one_step_is_two_visits() -> None:
    changes, signals = Forgetting().update({}, [group(A, 1), group(A, 0)])
    assert changes == {A.id: [1.0, 0.0]}
    assert len(signals) == 1
