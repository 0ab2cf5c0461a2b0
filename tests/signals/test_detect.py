import json
from types import SimpleNamespace

import pytest
from records import group, task, trajectory

from cojax import signals
from cojax.signals import SIGNALS, Boundary, Forgetting, Rare
from cojax.types import Group

A, B = task("a"), task("b")


def test_detectors_judge_on_their_own_and_one_trajectory_may_carry_several() -> None:
    detectors = {"forgetting": Forgetting(), "boundary": Boundary(), "rare": Rare(minimum=1, percent=60)}
    memory = signals.init(detectors)
    assert memory == {"forgetting": {}, "boundary": {}, "rare": {}}
    signals.apply(memory, signals.detect(detectors, memory, [group(A, 1, 1)])[0])
    now = Group(A, (trajectory(A, 1, "x", episode="won"), *[trajectory(A, 0, "y", episode="lost")] * 3))
    changes, found = signals.detect(detectors, memory, [now])
    assert [(s.kind, s.episode) for s in found] == [
        *[("forgetting", "lost")] * 3,
        ("boundary", "won"),
        *[("boundary", "lost")] * 3,
        ("rare", "won"),
    ]
    assert changes == {"forgetting": {A.id: [1.0, 0.25]}, "boundary": {}, "rare": {"x": 1, "y": 3, "(all)": 4}}


def test_the_memory_is_what_the_log_of_changes_folds_to() -> None:
    detectors = {kind: detector() for kind, detector in SIGNALS.items()}
    memory, log = signals.init(detectors), []
    for step in range(6):
        groups = [group(A, step % 2, 0), Group(B, (trajectory(B, 0, "x", "y"),))]
        changes, _ = signals.detect(detectors, memory, groups)
        signals.apply(memory, changes)
        log.append(json.dumps(changes))
    again = signals.init(detectors)
    for line in log:
        signals.apply(again, json.loads(line))
    assert again == memory
    assert memory["forgetting"][A.id] == [0.0, 0.5, 0.0, 0.5, 0.0, 0.5]
    assert memory["rare"] == {"x > y": 6, "(all)": 6}


def test_the_registry_names_each_detector_by_its_kind() -> None:
    detectors = {kind: detector() for kind, detector in SIGNALS.items()}
    memory = signals.init(detectors)
    # Twice seen, then forgotten, at the boundary and rare (N_min is 256 patterns).
    flood = Group(B, tuple(trajectory(B, 0, "x", episode="x") for _ in range(300)))
    signals.apply(memory, signals.detect(detectors, memory, [group(A, 1), flood])[0])
    now = Group(A, (trajectory(A, 1, "y"), trajectory(A, 0, "y"), trajectory(A, 0, "y")))
    _, found = signals.detect(detectors, memory, [now])
    assert {s.kind for s in found} == set(SIGNALS) == {"forgetting", "boundary", "rare"}


@pytest.mark.parametrize("remembered", [{"a": (1, 2)}, {1: 2}, {"a": {2: 1}}, {"a": float("nan")}, {"a": {1, 2}}])
def test_what_a_resumed_run_would_remember_otherwise_is_refused(remembered) -> None:
    changing = SimpleNamespace(init=dict, update=lambda memory, groups: (remembered, []))
    with pytest.raises(ValueError, match=r"signal 'mine' remembers .*which JSON changes; expected"):
        signals.detect({"mine": changing}, {"mine": {}}, [group(A, 1, 0)])
    with pytest.raises(ValueError, match="which JSON changes"):
        signals.init({"mine": SimpleNamespace(init=lambda: remembered)})
