"""A directory with links in it: refused before anything is written or deleted behind them."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import small_runs

from cojax.storage.checkpoint import Checkpointer
from cojax.storage.evaluation_directory import EvaluationDirectory
from cojax.storage.files import StorageError
from cojax.storage.run_directory import RunDirectory

# What a run writes to, and would otherwise find elsewhere.
PLACES = (
    "checkpoints", "checkpoints/0", "episodes", "waiting", "tokenizer", "tokenizer/tokenizer.json", "base",
    "tensorboard", "tasks.jsonl", "journal.jsonl", "run.log", "wandb_id", "wandb", "weights",
)  # fmt: skip


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder with files as a run and a killed run leave them."""
    folder = tmp_path / "elsewhere"
    (folder / "1").mkdir(parents=True)
    for name in ("000001.jsonl.gz", "tokenizer.json", "events.out.tfevents.1", ".keep.tmp"):
        (folder / name).write_text("kept")
    return folder


def content(folder: Path) -> dict[str, str]:
    return {str(path): path.read_text() if path.is_file() else "" for path in sorted(folder.rglob("*"))}


@pytest.mark.parametrize("place", PLACES)
def test_a_run_directory_with_a_link_is_not_gone_on_with(tmp_path: Path, elsewhere: Path, place: str) -> None:
    small_runs.begun(tmp_path / "run").close()
    path, before = tmp_path / "run" / place, content(elsewhere)
    if path.exists():
        path.rename(tmp_path / "moved")
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(elsewhere / "tokenizer.json" if "." in place else elsewhere)
    directory = RunDirectory(tmp_path / "run")
    try:
        with pytest.raises(StorageError, match=f"{place} is a link to '.*elsewhere.*Put what it points to in its pl"):
            directory.claim(small_runs.CONFIG, {})
    finally:
        directory.close()
    assert content(elsewhere) == before


def test_a_run_that_never_began_clears_no_log_elsewhere(tmp_path: Path, elsewhere: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.json").write_text("{}")
    (elsewhere / "log").write_text('{"a":1}\n')
    (tmp_path / "run/tasks.jsonl").symlink_to(elsewhere / "log")
    directory = RunDirectory(tmp_path / "run")
    with contextlib.suppress(StorageError):
        directory.claim(small_runs.CONFIG, {})
        directory.begin()
    directory.close()
    assert (elsewhere / "log").read_text() == '{"a":1}\n'


def test_a_run_directory_may_be_a_link_and_what_wandb_keeps_in_it_too(tmp_path: Path) -> None:
    small_runs.begun(tmp_path / "run").close()
    (tmp_path / "run/wandb").mkdir()
    (tmp_path / "run/wandb/latest-run").symlink_to("run-1")
    (tmp_path / "linked").symlink_to("run")
    directory = RunDirectory(tmp_path / "linked")
    found = directory.claim(small_runs.CONFIG, {})
    directory.close()
    assert found is not None
    assert found.step == 0


def test_an_evaluation_with_a_link_is_not_gone_on_with(tmp_path: Path, elsewhere: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/tokenizer").symlink_to(elsewhere)
    with EvaluationDirectory(tmp_path / "out") as directory, pytest.raises(StorageError, match="tokenizer is a link"):
        directory.claim({"policy": "p"}, {})


def test_a_sweep_removes_only_what_a_killed_save_left(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path)
    for name in (".7.123.tmp", ".7.123.old.tmp", ".notes.tmp", ".7.tmp"):
        (tmp_path / name).mkdir()
    checkpointer.save(8, small_runs.LIKE, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == [".7.tmp", ".notes.tmp", "8"]
