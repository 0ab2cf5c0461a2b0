"""Two runs side by side: paired differences, and what is said of a run that has not ended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scipy import stats
from small_runs import finished

from experiments import compare


def ended(folder: Path, scores: dict[str, float]) -> Path:
    finished(folder)
    (folder / "final.json").write_text(json.dumps({"success": 0.5, "tasks": scores}))
    return folder


def test_a_difference_is_paired_by_task() -> None:
    first = {"a": 0.0, "b": 1.0, "c": 0.0, "d": 0.0, "alone": 1.0}
    found = compare.paired(first, {"a": 1.0, "b": 1.0, "c": 1.0, "d": 0.0, "other": 0.0})
    assert found is not None
    # Differences 1, 0, 1, 0: mean 0.5, standard error sqrt(1/3)/2, and 3.182446 is the point of Student's t.
    assert (found.count, found.better, found.worse, found.mean) == (4, 2, 0, 0.5)
    assert found.high - found.mean == pytest.approx(3.182446 * (1 / 3) ** 0.5 / 2, abs=1e-6)
    assert found.low == pytest.approx(1.0 - found.high)
    assert found.p == pytest.approx(0.5)  # two tasks, both better: 2 · ½²
    assert compare.paired({"a": 1.0}, {"a": 0.0}) is None


def test_equal_runs_do_not_differ() -> None:
    same = {"a": 1.0, "b": 0.0}
    assert compare.paired(same, same) == compare.Paired(2, 0.0, 0.0, 0.0, 0, 0, 1.0)


def test_the_interval_is_that_of_scipy() -> None:
    first, second = {str(n): n % 2 for n in range(40)}, {str(n): n % 3 / 2 for n in range(40)}
    found = compare.paired(first, second)
    assert found is not None
    expected = stats.ttest_rel([second[n] for n in first], [first[n] for n in first]).confidence_interval()
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_the_command_shows_the_figures_and_the_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = ended(tmp_path / "a", {"gained": 0.0, "unchanged": 0.0, "solved": 1.0})
    second = ended(tmp_path / "b", {"gained": 1.0, "unchanged": 0.0, "solved": 1.0})
    assert compare.main([str(first), str(second), "--tasks"]) == 0
    shown = capsys.readouterr().out
    assert "+33.3" in shown
    assert "gained" in shown
    assert "unchanged" not in shown


def test_a_run_that_has_not_ended_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = ended(tmp_path / "a", {})
    assert compare.main([str(first), str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.startswith(
        f"error: no summary.json in {tmp_path}/none; expected the folder of a run"
    )
    (first / "final.json").write_text("{")
    assert compare.main([str(first), str(first)]) == 2
    assert "Restore it from a copy" in capsys.readouterr().err
