"""What is written into a folder from somebody else reaches no file outside it, and a pipe there holds nobody."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import small_runs

from cojax.durable import open_own_file, open_regular_file, replacing, sweep
from cojax.policy.config import ModelConfig
from cojax.policy.pretrained import write_arrays
from cojax.report.pieces import replace_text
from cojax.rollout.sglang.engine import WeightsFolder
from cojax.run.processes import log_to
from cojax.storage.evaluation_directory import EvaluationDirectory
from cojax.storage.files import Log, RunDirectoryError, lock_folder, write_json
from cojax.storage.run_directory import RunDirectory

# Every way to write a file into a run directory: its name there, and the call.
WRITERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "append": ("log.jsonl", lambda path: Log(path).append([{"a": 1}])),
    "truncate": ("log.jsonl", lambda path: Log(path).truncate(0)),
    "lock": (".lock", lambda path: lock_folder(path.parent, "--config.workdir").close()),
    "weights lock": ("weights.lock", lambda path: WeightsFolder(path.parent).close()),
    "run.log": ("run.log", log_to),
    "json": ("config.json", lambda path: write_json(path, {})),
    "page": ("report.html", lambda path: replace_text(path, "")),
}


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    file = tmp_path / "elsewhere"
    file.write_text("kept\n")
    return file


@pytest.fixture
def closed_handlers() -> Iterator[None]:
    root = logging.getLogger()
    before = list(root.handlers)
    yield
    for handler in set(root.handlers) - set(before):
        root.removeHandler(handler)
        handler.close()


@pytest.mark.usefixtures("closed_handlers")
@pytest.mark.parametrize("there", [True, False], ids=["to a file", "to nothing"])
@pytest.mark.parametrize("name", WRITERS)
def test_no_writer_follows_a_link(elsewhere: Path, name: str, there: bool) -> None:
    file, write = WRITERS[name]
    path = elsewhere.parent / "run" / file
    path.symlink_to(elsewhere)
    if not there:
        elsewhere.unlink()
    with contextlib.suppress(OSError, RunDirectoryError):
        write(path)
    assert elsewhere.exists() == there
    assert not there or elsewhere.read_text() == "kept\n"


def test_nobody_can_foresee_the_name_of_a_file_on_its_way(elsewhere: Path) -> None:
    folder = elsewhere.parent / "run"
    for name in ("report.html", "config.json"):
        for guess in (f".{name}.{os.getpid()}.tmp", Path(name).with_suffix(".partial")):
            (folder / guess).symlink_to(elsewhere)
    replace_text(folder / "report.html", "page")
    write_json(folder / "config.json", {})
    config = ModelConfig(8, 4, 4, 1, 1, 1, 2)
    (folder / f".model.safetensors.{os.getpid()}.tmp").symlink_to(elsewhere)
    with pytest.raises(StopIteration):  # at its first array
        write_arrays(folder, config, iter(()))
    assert elsewhere.read_text() == "kept\n"
    assert (folder / "report.html").read_text() == "page"


def test_a_name_that_is_taken_is_not_written_to(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "token_hex", lambda size: "0" * 2 * size)
    planted = elsewhere.parent / f".page.{'0' * 16}.tmp"
    planted.symlink_to(elsewhere)
    with pytest.raises(FileExistsError), replacing(elsewhere.parent / "page") as file:
        file.write(b"page")
    assert (elsewhere.read_text(), planted.is_symlink()) == ("kept\n", True)


def test_a_block_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "page").write_text("old")
    with pytest.raises(TypeError), replacing(tmp_path / "page") as file:
        file.writelines([b"new", None])
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("page", "old")]


def test_a_pipe_or_a_folder_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link", "."):
        with pytest.raises(OSError, match="is not a regular file"):
            open(tmp_path / name, "rb", opener=open_regular_file)  # noqa: SIM115
    with pytest.raises(OSError, match="No such device"):
        open(tmp_path / "pipe", "ab", opener=open_own_file)  # noqa: SIM115


# Writes to every path, then stands still in the middle.
_WRITER = """
import contextlib, sys, time
from pathlib import Path
from cojax.durable import replacing
with contextlib.ExitStack() as writing:
    for path in map(Path, sys.argv[1:]):
        writing.enter_context(replacing(path)).write(b"half")
    print("begun", flush=True)
    time.sleep(1_000)
"""


@contextlib.contextmanager
def writer(*paths: Path) -> Iterator[subprocess.Popen[str]]:
    """A process in the middle of writing these files, which is killed when the block ends."""
    command = [sys.executable, "-c", _WRITER, *map(str, paths)]
    root = Path(__file__).parents[1]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "begun\n"
            yield process
        finally:
            process.send_signal(signal.SIGKILL)


def passing(folder: Path) -> list[str]:
    return sorted(path.name.rsplit(".", 2)[0] for path in folder.rglob(".*.tmp"))


def claimed(folder: Path) -> None:
    with contextlib.closing(RunDirectory(folder)) as directory:
        directory.claim(small_runs.CONFIG, {})


def evaluated(folder: Path) -> None:
    with EvaluationDirectory(folder) as directory:
        directory.claim({}, {})


@pytest.mark.parametrize("owns", [claimed, evaluated])
def test_the_next_command_removes_what_a_killed_writer_left(tmp_path: Path, owns: Callable[[Path], None]) -> None:
    (tmp_path / "run").mkdir()
    if owns is claimed:
        small_runs.finished(tmp_path / "run", steps=2)
    names = ["config.json", "report.html", "report_files/tasks-0000.js", "tokenizer/tokenizer.json"]
    names += ["episodes/000003.jsonl.gz"] if owns is claimed else []
    for name in names:
        (tmp_path / "run" / name).parent.mkdir(exist_ok=True)
    with writer(*(tmp_path / "run" / name for name in names)):
        pass
    assert passing(tmp_path) == sorted(f".{Path(name).name}" for name in names)
    owns(tmp_path / "run")
    assert passing(tmp_path) == []


def test_a_sweep_leaves_what_is_being_written_and_what_is_not_ours(
    elsewhere: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, ours = elsewhere.parent / "run", "0123456789abcdef"
    (folder / f".link.{ours}.tmp").symlink_to(elsewhere)
    (folder / f".folder.{ours}.tmp").mkdir()
    os.mkfifo(folder / f".pipe.{ours}.tmp")
    for name in (".notes.tmp", f"page.{ours}.tmp", f".page.{ours}.tmp.old", f".page.{ours[1:]}.tmp"):
        (folder / name).write_text("kept")
    before = sorted(folder.iterdir())
    (folder / f".page.{ours}.tmp").write_text("half")
    with writer(folder / "report.html"):
        sweep(folder, folder / "missing")
        assert [*passing(folder)].count(".report.html") == 1
    sweep(folder)
    assert sorted(folder.iterdir()) == before
    assert elsewhere.read_text() == "kept\n"
    assert sum("is not removed" in message for message in caplog.messages) == 6  # three, at both sweeps
