"""Folders from somebody else: whatever stands in the place of a file, a reader ends soon, with an error of one line."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import small_runs
from patience import patience

from benchmarks.gpu import records, tables
from benchmarks.simulate import times
from cojax import warm_start
from cojax.api.training import open_run
from cojax.explorer.llm.chat_model import Journal
from cojax.report import command as report
from cojax.report.comparison import read_ended_run
from cojax.report.episodes import make_decoder
from cojax.rollout import export
from cojax.rollout.sglang.client import ReleasedMemoryFile
from cojax.run import engines, preflight, states, trained
from cojax.run.policies import keep_tokenizer
from cojax.run.trained import read_origin
from cojax.storage import files
from cojax.storage.checkpoint import Checkpointer, CheckpointError
from cojax.storage.evaluation_directory import EvaluationDirectory
from cojax.storage.files import RunDirectoryError
from cojax.storage.run_directory import RunDirectory
from experiments.study import comparison, schedule, stored
from experiments.study import record as study_record


def deep(path: Path) -> None:
    write(path, b"[" * 100_000 + b"]" * 100_000 + b"\n")


def nested(path: Path) -> None:
    """Python's reader takes it, and what walks through it may not."""
    write(path, b'{"step":' * 900 + b"1" + b"}" * 900 + b"\n")


def endless(path: Path) -> None:
    """Takes no room on the disk."""
    path.write_bytes(b"")
    os.truncate(path, 3 * 2**30)


def write(path: Path, content: bytes) -> None:
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


FAULTS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "link": lambda path: path.symlink_to("/dev/zero"),
    "folder": Path.mkdir,
    "deep": deep,
    "nested": nested,
    "not UTF-8": lambda path: write(path, b'{"a": "\xff"}\n'),
    "infinite": lambda path: write(path, b'{"a": 1e999, "step": Infinity}\n'),
    "endless": endless,
}
# What a report reads of a run.
REPORTED = (
    "config.json", "metrics.jsonl", "summary.json", "model.json", "tasks.jsonl", "signals.jsonl", "drafts.jsonl",
    "expeditions.jsonl", "zero_shot.json", "final.json", "journal.jsonl", "episodes/000001.jsonl.gz",
    "zero_shot_episodes.jsonl.gz", "final_episodes.jsonl.gz", "result.json",
)  # fmt: skip


def claimed(folder: Path) -> None:
    with contextlib.closing(RunDirectory(folder)) as directory:
        directory.claim(small_runs.CONFIG, {})
        directory.summary(None)


def evaluated(folder: Path) -> None:
    with EvaluationDirectory(folder) as directory:
        directory.claim({}, {})
        directory.valid_episodes()


# Every other reader: the file, and the call with its folder.
READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "held out": (states.HELD_OUT, lambda folder: states.read_held_out_of(str(folder))),
    "slots": ("engine.json", lambda folder: engines.read_slots(folder / "engine.json")),
    "settings": ("config.json", trained.read_run_settings),
    "shape": ("model.json", trained.kept_shape),
    "origin": ("config.json", read_origin),
    "result": ("final.json", read_ended_run),
    "initial tasks": ("initial.json", lambda folder: files.read_json(folder / "initial.json")),
    "asleep": ("asleep.json", lambda folder: ReleasedMemoryFile(folder / "asleep.json")),
    "asleep, carried": ("asleep.json", lambda folder: preflight._copy_notes(folder, folder / "check")),
    "warm start": ("warm_start.json", warm_start.read_record),
    "journal": ("journal.jsonl", lambda folder: Journal(folder / "journal.jsonl").find("0" * 32)),
    "evaluation": ("config.json", evaluated),
    "evaluation's episodes": ("episodes.jsonl", evaluated),
    "host state": ("checkpoints/0/host.json", lambda folder: Checkpointer(folder / "checkpoints").part("params")),
    "program's settings": ("config.json", lambda folder: open_run(folder).config()),
    "program's summary": ("summary.json", lambda folder: open_run(folder).summary()),
    "variables": ("config.json", lambda folder: comparison.explain_other_variables(STUDY_RUN, folder)),
    "study's summary": ("summary.json", lambda folder: study_record._read_run_file(folder / "summary.json")),
    "study's arm": ("runs/a.jsonl.gz", lambda folder: stored.read_arm(folder, "a")),
    "study's log": ("run.log", lambda folder: schedule._read_last_words(folder / "run.log")),
    "times": ("config.json", times.read_run),
    "bench": ("part.json", lambda folder: records.read_record(folder, "part")),
    "bench's table": ("part.json", tables.make_tables),
    **{f"run's {name}": (name, claimed) for name in ("config.json", "summary.json", "tasks.jsonl", "checksums.jsonl")},
}
OWN_ERRORS = (CheckpointError, RunDirectoryError)
STUDY_RUN: object = None  # the variables of a run are compared only where a sound file has others


def files_of(folder: Path) -> RunDirectory:
    directory = RunDirectory(folder)
    directory.close()
    return directory


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raises AssertionError in a block that takes longer, whatever it waits for."""

    def late(*unwanted: object) -> None:
        raise AssertionError(f"it takes longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def replaced(folder: Path, name: str, fault: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    FAULTS[fault](path)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_runs.finished(tmp_path_factory.mktemp("run") / "sound", steps=2)


# A journal may hold gigabytes, so an endless one is read to its end.
@pytest.mark.parametrize(
    ("name", "fault"), [pair for pair in itertools.product(REPORTED, FAULTS) if pair != ("journal.jsonl", "endless")]
)
def test_a_report_says_in_a_line_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, fault: str
) -> None:
    for other in ("config.json", "metrics.jsonl"):
        (tmp_path / other).write_text("{}\n" if other == "config.json" else "")
    replaced(tmp_path, name, fault)
    with within(patience(5.0)):
        status = report.main([str(tmp_path)])
    said = capsys.readouterr().err
    assert (status, said.count("\n"), said[:7]) in ((2, 1, "error: "), (0, 0, "")), said
    # What is no record of a call is no exchange.
    harmless = name == "journal.jsonl" or (fault == "nested" and name.endswith(".json"))
    assert status == 2 or (harmless and fault not in ("pipe", "link", "folder")), "nothing was said"


@pytest.mark.parametrize(
    ("reader", "fault"), [pair for pair in itertools.product(READERS, FAULTS) if pair != ("journal", "endless")]
)
def test_every_reader_ends_soon(tmp_path: Path, sound: Path, reader: str, fault: str) -> None:
    name, read = READERS[reader]
    folder = tmp_path / "run"
    shutil.copytree(sound, folder)
    if reader.startswith("evaluation"):
        shutil.rmtree(folder / "checkpoints")
        (folder / "metrics.jsonl").unlink()
        (folder / "episodes.jsonl").write_text("{}\n")
    elif reader.startswith("bench"):
        shutil.rmtree(folder)
    replaced(folder, name, fault)
    said = ""
    with within(patience(5.0)):
        try:
            read(folder)
        except (OSError, ValueError, KeyError, TypeError, *OWN_ERRORS) as error:
            said = str(error)
    assert "\n" not in said


def test_a_tokenizer_is_read_up_to_a_size_and_never_from_a_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(b"{" + b" " * 20)
    for module in (files, export):
        monkeypatch.setattr(module, "MAX_JSON_BYTES", 10)
    with within(patience(5.0)):
        with pytest.raises(files.StorageError, match="it has 21 bytes; expected at most 10"):
            make_decoder(tmp_path)
        with pytest.raises(ValueError, match="is no file of a tokenizer; expected one of at most 10 bytes"):
            export.load_tokenizer(tmp_path)
        path.unlink()
        os.mkfifo(path)
        for read in (make_decoder, export.load_tokenizer, lambda folder: keep_tokenizer(None, folder, True)):
            with pytest.raises((OSError, ValueError), match=r"no file|not a file|cannot be read"):
                read(tmp_path)


def test_a_file_is_read_up_to_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_JSON_BYTES", 10)
    (tmp_path / "a").write_text('{"a": 123}')
    (tmp_path / "b").write_text('{"a": 1234}')
    assert files.read_json(tmp_path / "a") == {"a": 123}
    with pytest.raises(ValueError, match="it has 11 bytes; expected at most 10"):
        files.read_json(tmp_path / "b")
