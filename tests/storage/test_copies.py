"""A run is copied as it was at a checkpoint: whole or not at all, and nothing of the original is touched."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from small_runs import LIKE, finished, tree

from cojax.storage.checksums import has_valid_checksum
from cojax.storage.copies import copy_run
from cojax.storage.files import CheckpointError, Log, RunDirectoryError, StorageError, lock_folder
from cojax.storage.run_directory import RunDirectory
from cojax.storage.run_files import verify_run

ROOT = Path(__file__).parents[2]
RECORDS = {"config.json": {"config": {"seed": 0}}, "fork.json": {"forks": [], "seed": None}}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of six steps with all its checkpoints: 0, 2, 4, 6."""
    return finished(tmp_path_factory.mktemp("copies") / "run", checkpoints_kept=9)


def stamps(folder: Path) -> dict[str, tuple[bytes, int]]:
    """The bytes and the time of every file, and the times of folders."""
    paths = sorted(folder.rglob("*"))
    return {str(path): (b"" if path.is_dir() else path.read_bytes(), path.stat().st_mtime_ns) for path in paths}


def test_a_copy_holds_what_the_checkpoint_covers_and_the_original_stays_as_it_is(run: Path, tmp_path: Path) -> None:
    before = stamps(run)
    copy_run(run, 4, tmp_path / "copy", RECORDS)
    assert stamps(run) == before
    files = tree(tmp_path / "copy")
    assert {name.partition("/")[2] for name in files if name.startswith("episodes/")} == {
        f"00000{step}.jsonl.gz" for step in (1, 2, 3, 4)
    }
    assert {name.split("/")[1] for name in files if name.startswith("checkpoints/")} == {"4"}
    assert "waiting/000004.jsonl.gz" in files
    assert not files.keys() & {"summary.json", "final.json", "report.html", "run.log"}
    assert [row["step"] for row in Log(tmp_path / "copy/metrics.jsonl").read()] == [1, 2, 3, 4]
    # Replies of a model were paid for: all of them come along.
    assert files["journal.jsonl"] == (run / "journal.jsonl").read_bytes()
    assert has_valid_checksum(json.loads(files["fork.json"]))
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def test_a_copy_can_be_resumed_and_copied_again(run: Path, tmp_path: Path) -> None:
    copy_run(run, 4, tmp_path / "copy", RECORDS)
    copy_run(tmp_path / "copy", 4, tmp_path / "again", RECORDS)
    directory = RunDirectory(tmp_path / "again")
    checkpoint = directory.resume(LIKE, {"forgetting": {}})
    directory.close()
    assert checkpoint is not None
    assert (checkpoint.step, len(checkpoint.pool), checkpoint.arrays["w"].tolist()) == (4, 4, [4.0, 4.0, 4.0])
    assert len(checkpoint.waiting) == 1


def test_a_lost_record_is_missed(run: Path, tmp_path: Path) -> None:
    copy_run(run, 2, tmp_path / "copy", RECORDS)
    (tmp_path / "copy/fork.json").unlink()
    with pytest.raises(StorageError, match=r"fork\.json is missing; the run wrote it"):
        verify_run(tmp_path / "copy")


def test_episodes_dropped_since_are_not_missed(tmp_path: Path) -> None:
    run = finished(tmp_path / "run", checkpoints_kept=2, episodes_kept=1)
    assert sorted(path.name for path in (run / "episodes").iterdir()) == [
        "000004.jsonl.gz",
        "000005.jsonl.gz",
        "000006.jsonl.gz",
    ]
    copy_run(run, 4, tmp_path / "copy", RECORDS)
    assert [path.name for path in (tmp_path / "copy/episodes").iterdir()] == ["000004.jsonl.gz"]


@pytest.mark.parametrize("name", ["tasks.jsonl", "checkpoints/4/arrays/manifest.ocdbt", "episodes/000003.jsonl.gz"])
def test_damage_of_the_original_is_named_and_leaves_nothing(name: str, run: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(run, tmp_path / "damaged")
    content = (damaged / name).read_bytes()
    (damaged / name).write_bytes(content[:20] + b"123456789" + content[29:])
    with pytest.raises((StorageError, CheckpointError), match=str(damaged)):
        copy_run(damaged, 4, tmp_path / "copy", RECORDS)
    assert [path.name for path in tmp_path.iterdir()] == ["damaged"]


def test_a_link_is_not_followed(run: Path, tmp_path: Path) -> None:
    linked = shutil.copytree(run, tmp_path / "linked")
    (tmp_path / "secret").write_text("{}")
    (linked / "initial.json").unlink()
    (linked / "initial.json").symlink_to(tmp_path / "secret")
    with pytest.raises(StorageError, match="is a link"):
        copy_run(linked, 4, tmp_path / "copy", RECORDS)
    assert not (tmp_path / "copy").exists()


def test_two_copies_to_one_place_do_not_mix(run: Path, tmp_path: Path) -> None:
    with lock_folder(tmp_path / ".copy.fork", "--workdir"), pytest.raises(RunDirectoryError, match="another process"):
        copy_run(run, 4, tmp_path / "copy", RECORDS)
    (tmp_path / ".copy.fork/half").write_text("of a copy that was killed")
    copy_run(run, 4, tmp_path / "copy", RECORDS)
    assert not (tmp_path / "copy/half").exists()
    with pytest.raises(StorageError, match=r"cannot write .*/copy"):
        copy_run(run, 2, tmp_path / "copy", RECORDS)
    assert verify_run(tmp_path / "copy").step == 4


_KILLED = """
import os, signal, sys
from pathlib import Path
from cojax.storage import copies
def dying(function, calls):
    def die(*arguments):
        calls.append(0)
        return function(*arguments) if len(calls) < int(sys.argv[4]) else os.kill(os.getpid(), signal.SIGKILL)
    return die
setattr(copies, sys.argv[3], dying(getattr(copies, sys.argv[3]), []))
copies.copy_run(Path(sys.argv[1]), 4, Path(sys.argv[2]), {"config.json": {"config": {}}, "fork.json": {"forks": []}})
"""


@pytest.mark.parametrize(("function", "call"), [("_copy_file", "5"), ("write_json", "2"), ("sync_tree", "1")])
def test_a_killed_copy_is_no_run_and_the_next_one_succeeds(function: str, call: str, run: Path, tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", _KILLED, str(run), str(tmp_path / "copy"), function, call]
    done = subprocess.run(arguments, cwd=ROOT, env={**os.environ}, check=False)
    assert done.returncode == -9
    assert [path.name for path in tmp_path.iterdir()] == [".copy.fork"]
    copy_run(run, 4, tmp_path / "copy", RECORDS)
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]
    assert verify_run(tmp_path / "copy").step == 4
