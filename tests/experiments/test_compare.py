"""Two runs side by side: paired differences, and what is said of a run that has not ended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_runs import finished

from cojax.report.command import compare
from cojax.report.comparison import run_sign_test


def ended(folder: Path, scores: dict[str, float]) -> Path:
    finished(folder)
    (folder / "drafts.jsonl").unlink()  # too short for a page
    (folder / "final.json").write_text(json.dumps({"success": 0.5, "tasks": scores}))
    return folder


def test_equal_tasks_do_not_count_in_the_sign_test() -> None:
    assert run_sign_test(2, 0) == pytest.approx(0.5)  # both better: 2 · ½²
    assert run_sign_test(3, 1) == pytest.approx(10 / 16)
    assert run_sign_test(0, 0) == 1.0


def test_the_command_shows_the_figures_and_the_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = ended(tmp_path / "a", {"gained": 0.0, "unchanged": 0.0, "solved": 1.0})
    second = ended(tmp_path / "b", {"gained": 1.0, "unchanged": 0.0, "solved": 1.0})
    page = tmp_path / "page.html"
    assert compare([str(first), str(second), "--tasks", f"--out={page}"]) == 0
    shown = capsys.readouterr().out
    assert str(page) in shown
    assert "gained" in page.read_text()
    assert "+33.3" in shown
    assert "gained" in shown
    assert "unchanged" not in shown


def test_a_run_that_has_not_ended_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = ended(tmp_path / "a", {})
    assert compare([str(first), str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.startswith(
        f"error: no summary.json in {tmp_path}/none; expected the folder of a finished run"
    )
    (first / "final.json").write_text("{")
    assert compare([str(first), str(tmp_path / "none")]) == 2
    assert "Restore it from a copy" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("again", "said"),
    [
        ("a", "a is named twice; name each run once"),
        ("a/", "a is named twice; name each run once"),
        ("./b/../a", "a is named twice, also as b/../a; name each run once"),
        ("link", "a is named twice, also as link; name each run once"),
    ],
)
def test_a_run_that_is_named_twice_is_refused_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], again: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("b").mkdir()
    Path("a").mkdir()  # holds no run: reading it would say so
    Path("link").symlink_to("a")
    with pytest.raises(SystemExit) as ended:
        compare(["a", "b", again])
    assert ended.value.code == 2
    assert capsys.readouterr() == ("", f"error: {said}\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "link"]


def test_more_runs_than_the_page_has_colours_are_refused_early(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        compare([f"r{number}" for number in range(13)])
    assert capsys.readouterr() == ("", "error: 13 runs to compare; name at most 12\n")
