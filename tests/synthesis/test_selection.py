"""Which signals are followed where there are more than contexts: stratified, confident first, or all."""

import collections

import pytest

from cojax.signals import SIGNALS, Visit
from cojax.synthesis.selection import SELECTIONS, confidence_by, visits_of
from cojax.types import Signal

KINDS = {name: make() for name, make in SIGNALS.items()}


def confidence(signal: Signal, visits: dict[str, list[Visit]]) -> float:
    return confidence_by(KINDS, visits)(signal)


def signal(kind: str, task: str, step: int = 9) -> Signal:
    return Signal(kind, task, f"{step}-{task}-0", "line")


def test_confidence_is_the_beta_posterior() -> None:
    # One success, one failure: p ~ Beta(2, 2), whose distribution function is 3x² - 2x³.
    once = {"t": [Visit(9, 1, 1)]}
    below = 3 * 0.1**2 - 2 * 0.1**3
    assert confidence(signal("boundary", "t"), once) == pytest.approx(1 - 2 * below)
    assert confidence(signal("rare", "t"), once) == pytest.approx(1 - below)
    # Before: two successes, Beta(3, 1), x³. Since: one failure, Beta(1, 2), 1 - (1 - x)².
    forgot = {"t": [Visit(3, 2, 0), Visit(9, 0, 1)]}
    assert confidence(signal("forgetting", "t"), forgot) == pytest.approx((1 - 0.5**3) * (1 - 0.5**2))
    assert confidence(signal("rare", "unseen"), once) == 0.5


def test_more_evidence_is_more_confidence() -> None:
    def boundary(solved: int, failed: int) -> float:
        return confidence(signal("boundary", "t"), {"t": [Visit(9, solved, failed)]})

    assert boundary(1, 7) < boundary(4, 4) < boundary(40, 40)
    assert boundary(1, 79) < boundary(1, 7)

    def forgetting(before: tuple[int, int], now: tuple[int, int]) -> float:
        return confidence(signal("forgetting", "t"), {"t": [Visit(1, *before), Visit(9, *now)]})

    assert forgetting((4, 4), (3, 5)) < forgetting((8, 0), (3, 5)) < forgetting((8, 0), (0, 8))
    noise = confidence(signal("rare", "t"), {"t": [Visit(9, 0, 80)]})
    assert noise < confidence(signal("rare", "t"), {"t": [Visit(9, 40, 40)]})


def test_the_confident_come_first_within_their_kind() -> None:
    signals = [signal("boundary", f"t{i}") for i in range(8)] + [signal("rare", "t0")]
    visits = {f"t{i}": [Visit(9, i, 16 - i)] for i in range(8)}
    chosen = SELECTIONS["confident"](signals, 4, (0,), confidence_by(KINDS, visits))
    assert collections.Counter(s.kind for s in chosen) == {"boundary": 3, "rare": 1}
    assert {s.task for s in chosen if s.kind == "boundary"} == {"t7", "t6", "t5"}
    assert SELECTIONS["confident"](signals, 4, (0,), confidence_by(KINDS, visits)) == chosen
    # Without a history all are worth the same, and chance decides as it does evenly.
    unknown = confidence_by(KINDS, {})
    assert SELECTIONS["confident"](signals, 4, (0,), unknown) == SELECTIONS["even"](signals, 4, (0,), unknown)


def test_all_signals_are_all_of_them() -> None:
    signals = [signal("boundary", "t") for _ in range(5)] + [signal("rare", "t")]
    chosen = SELECTIONS["all"](signals, 2, (0,), confidence_by(KINDS, {}))
    assert collections.Counter(s.kind for s in chosen) == {"boundary": 5, "rare": 1}


def test_visits_are_counted_from_episodes_and_remembered_scores() -> None:
    def episode(reward: float, outcome: str = "finished") -> dict:
        return {"reward": reward, "outcome": outcome}

    episodes = {
        "4-a-0": episode(1.0), "4-a-1": episode(0.0), "4-a-2": episode(0.0, "environment_error"),
        "6-a-0": episode(0.25), "6-a-1": episode(0.75),
        "6-b-0": episode(0.0, "engine_error"),
    }  # fmt: skip
    visits = visits_of(episodes, {"a": [1.0, 0.25, 0.5, 0.5], "c": [1.0]}, group_size=4)
    assert visits["a"] == [Visit(0, 4.0, 0.0), Visit(0, 1.0, 3.0), Visit(4, 1, 1), Visit(6, 1, 1)]
    assert visits["b"] == [Visit(6, 0, 0)]
    assert "c" not in visits


def test_a_kind_from_outside_is_judged_by_its_own_rule() -> None:
    class Slow:
        def confidence(self, signal: Signal, visits: list[Visit]) -> float:
            return visits[-1].failed

    signals = [signal("slow", f"t{i}") for i in range(4)]
    visits = {f"t{i}": [Visit(9, 1, i)] for i in range(4)}
    chosen = SELECTIONS["confident"](signals, 2, (0,), confidence_by({"slow": Slow()}, visits))
    assert [s.task for s in chosen] == ["t3", "t2"]
