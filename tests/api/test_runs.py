"""`cojax.open_run`: records and frames of a run directory, in one whose content is known."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from small_runs import finished, task

import cojax


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> cojax.OpenRun:
    return cojax.open_run(finished(tmp_path_factory.mktemp("a run") / "here"))


def test_records(run: cojax.OpenRun) -> None:
    assert [record["success"] for record in run.metrics()] == [0.125, 0.25, 0.375, 0.5, 0.625, 0.75]
    assert [record["query"] for record in run.tasks()] == [f"count to {name}" for name in (0, 1, 2, "new 3", "new 6")]
    assert [(record["step"], record["draft"]["query"]) for record in run.drafts()] == [
        (3, "count"), (3, "up"), (6, "count"), (6, "up"),
    ]  # fmt: skip
    assert [(record["step"], record["kind"]) for record in run.signals()] == [(step, "rare") for step in range(1, 7)]
    assert run.episode_steps() == [1, 2, 3, 4, 5, 6]
    assert run.episodes(2)[0]["episode"] == f"2-{task('1').id}-0"
    assert len(run.episodes()) == 6 * len(run.episodes(2)) == 24
    assert (run.config()["steps"], run.summary()["steps"]) == (6, 6)


def test_the_lineage_of_a_task(tmp_path: Path) -> None:
    run = cojax.open_run(finished(tmp_path / "run"))
    (run.workdir / "drafts.jsonl").unlink()
    history = run.lineage(task("1").id[:8])
    assert (history.query, len(history.visits), history.visits[0].reward) == ("count to 1", 6, 0.5)
    with pytest.raises(KeyError, match="not among 5 tasks"):
        run.lineage("ffff")


def test_what_is_no_run_and_a_run_that_has_not_ended(run: cojax.OpenRun, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is not a folder; expected the workdir of a run"):
        cojax.open_run(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="holds no run"):
        cojax.open_run(tmp_path)
    going = finished(tmp_path / "going")
    (going / "summary.json").unlink()
    # A record that is being written is not there yet.
    with (going / "metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "succ')
    assert len(cojax.open_run(going).metrics()) == 6
    with pytest.raises(FileNotFoundError, match="the run has not ended; train on to its end"):
        cojax.open_run(going).summary()


def test_frames(run: cojax.OpenRun) -> None:
    pytest.importorskip("pandas")
    frame = run.metrics().frame()
    assert list(frame["step"]) == [1, 2, 3, 4, 5, 6]
    assert frame["seconds/total"].sum() == 6.0
    assert run.drafts().frame()["draft/query"].tolist() == ["count", "up"] * 2
    assert run.episodes(1).frame()["task/query"].nunique() == 2


def test_without_pandas_the_error_names_the_extra(run: cojax.OpenRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'cojax\[pandas\]'"):
        run.metrics().frame()
