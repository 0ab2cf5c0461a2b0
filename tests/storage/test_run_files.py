"""A damaged run directory: the error names file, line and fix, or the run goes on as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from campaign import mutations
from small_runs import CONFIG, LIKE, finished, older, tree

from cojax.explorer.llm.chat_model import Journal
from cojax.storage.checkpoint import CheckpointError
from cojax.storage.checksums import CHECKSUM_KEY, add_checksum
from cojax.storage.episodes import FINAL_EPISODES, ZERO_SHOT_EPISODES
from cojax.storage.files import RunDirectoryError, StorageError
from cojax.storage.run_directory import RunDirectory
from cojax.storage.run_files import verify_run


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> Path:
    return finished(tmp_path_factory.mktemp("reference") / "run")


@pytest.fixture
def run(reference, tmp_path) -> Path:
    return shutil.copytree(reference, tmp_path / "run")


def start(folder: Path) -> RunDirectory:
    """Starts or resumes a run as the command does."""
    directory = RunDirectory(folder)
    try:
        directory.claim(CONFIG, {})
    finally:
        directory.close()
    return directory


def go(folder: Path) -> None:
    """Starts a run in a folder without a checkpoint, as the command does."""
    start(folder)
    RunDirectory(folder).begin()


def replace_in(path: Path, before: bytes, after: bytes) -> None:
    content = path.read_bytes()
    assert before in content
    path.write_bytes(content.replace(before, after, 1))


def doubled(path: Path, number: int) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:number], *lines[number - 1 :]]))


def swapped(path: Path) -> None:
    one, other, *rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([other, one, *rest]))


def crlf(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))


def marked(path: Path) -> None:
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())


def foldered(path: Path) -> None:
    path.unlink()
    path.mkdir()


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def changed(before: bytes, after: bytes) -> Callable[[Path], None]:
    return lambda path: replace_in(path, before, after)


TAMPERED: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "a line doubled": ("tasks.jsonl", lambda p: doubled(p, 2), r"tasks.jsonl, line 3: it repeats the line before"),
    "CRLF": ("tasks.jsonl", crlf, r"tasks.jsonl, line 1: .*CR"),
    "a BOM": ("tasks.jsonl", marked, r"tasks.jsonl, line 1: .*byte-ord"),
    "lines swapped": ("tasks.jsonl", swapped, r"tasks.jsonl, line 1: it belongs further down"),
    "a word changed": ("tasks.jsonl", changed(b"count to 2", b"count to 7"), r"line 3: it is not what the"),
    "NUL in metrics": ("metrics.jsonl", changed(b"0.375", b"0.37\0"), r"metrics.jsonl, line 3: .*NUL"),
    "a figure changed": ("metrics.jsonl", changed(b"0.375", b"0.875"), r"metrics.jsonl, line 3: it is not"),
    "memory cut": ("memory.jsonl", lambda p: os.truncate(p, 100), r"memory.jsonl, line 2: it is cut short"),
    "drafts emptied": ("drafts.jsonl", emptied, r"drafts.jsonl holds 0 bytes; the checkpoint expects"),
    "signals gone": ("signals.jsonl", Path.unlink, r"signals.jsonl is missing; the checkpoint expects"),
    "a reply changed": ("journal.jsonl", changed(b"reply 2", b"reply 3"), r"journal.jsonl, line 2: it is"),
    "a vector changed": ("embeddings.jsonl", changed(b"AACAPw", b"AACBPw"), r"embeddings.jsonl, line 1"),
    "a checksum changed": ("checksums.jsonl", changed(b'"is":"', b'"is":"1'), r"checksums.jsonl, line 1"),
    "episodes changed": ("episodes/000005.jsonl.gz", lambda p: os.truncate(p, 90), r"000005.jsonl.gz is "),
    "an old step's gone": ("episodes/000001.jsonl.gz", Path.unlink, r"000001.jsonl.gz is missing; the run wrote it"),
    "waiting gone": ("waiting/000006.jsonl.gz", Path.unlink, r"000006.jsonl.gz is missing; the next steps learn"),
    "D_0's counts gone": ("initial.json", Path.unlink, r"initial.json is missing"),
    "a tokenizer changed": ("tokenizer/tokenizer.json", changed(b"add", b"and"), r"r.json is .*delete it"),
    "zero-shot changed": (ZERO_SHOT_EPISODES, lambda p: os.truncate(p, 90), r"_episodes.jsonl.gz is .*delete it"),
    "model.json changed": ("model.json", changed(b"3", b"4"), r"model.json is .*or delete it: it is"),
    "config a list": ("config.json", lambda p: p.write_text("[]"), r"config.json cannot be read .*Restore it"),
    "config null": ("config.json", lambda p: p.write_text("null"), r"config.json cannot be read"),
    "config a folder": ("config.json", foldered, r"config.json cannot be read"),
    "config gone": ("config.json", Path.unlink, r"holds a run without config.json\. Restore it from a copy"),
    "config's settings changed": ("config.json", changed(b"0", b"1"), r"config.json cannot be read \(its"),
    "a log a folder": ("tasks.jsonl", foldered, r"tasks.jsonl is not a file"),
    "a folder a file": ("episodes", lambda p: (shutil.rmtree(p), p.touch()), r"episodes is not a folder"),
    "a report a folder": ("report.html", foldered, r"report.html is not a file. .*it is made again"),
    "checkpoints gone": ("checkpoints", shutil.rmtree, r"no checkpoint to go on from\. Restore checkpoints/"),
    "checkpoints and steps gone": ("checkpoints", lambda p: (shutil.rmtree(p), emptied(p.parent / "metrics.jsonl")),
                                   r"no checkpoint to go on from\. Restore checkpoints/"),
    "a file for a checkpoint": ("checkpoints/99", Path.touch, r"checkpoints/99 is not the folder of a step"),
    "a folder for episodes": ("episodes/000099.jsonl.gz", Path.mkdir, r"000099.jsonl.gz is not the file of a step"),
}  # fmt: skip


@pytest.mark.parametrize("name", TAMPERED)
def test_damage_is_named_with_the_fix_and_nothing_is_changed(name, run):
    file, tamper, message = TAMPERED[name]
    tamper(run / file)
    before = tree(run)
    with pytest.raises((RunDirectoryError, StorageError, CheckpointError), match=message) as caught:
        go(run)
    assert "\n" not in str(caught.value)
    assert tree(run) == before


@pytest.mark.parametrize("name", [ZERO_SHOT_EPISODES, FINAL_EPISODES])
def test_a_run_without_the_episodes_of_an_evaluation_is_unfinished_and_plays_them_again(name, run):
    directory = RunDirectory(run)
    assert directory.summary(directory.claim(CONFIG, {}))["steps"] == 6
    (run / name).unlink()
    assert directory.summary(directory.claim(CONFIG, {})) is None
    assert directory.files.has_zero_shot is (name == FINAL_EPISODES)
    directory.close()


def test_final_episodes_that_were_changed_are_played_again(run):
    os.truncate(run / FINAL_EPISODES, 90)
    directory = RunDirectory(run)
    assert directory.summary(directory.claim(CONFIG, {})) is None
    directory.close()


def test_a_damaged_host_state_is_skipped_for_the_one_before(run):
    """Zeroed lengths would empty every log."""
    whole = verify_run(run)
    host = run / "checkpoints/6/host.json"
    unsigned = {name: value for name, value in json.loads(host.read_text()).items() if name != CHECKSUM_KEY}
    changed = host.read_bytes().replace(b'"evolved": 6', b'"evolved": 3')
    for content in (b"null", b"[]", b"{}", changed, json.dumps(unsigned).encode()):
        host.write_bytes(content)
        found = verify_run(run)
        assert (found.step, [task.query for task in found.pool][-1]) == (4, "count to new 3")
        assert len(found.warnings) == 1
        assert found.warnings[0].startswith(f"checkpoint {run / 'checkpoints/6'} is damaged and skipped: host.json: ")
    assert whole.step == 6
    record = json.loads((run / "checkpoints/4/host.json").read_text())
    record["host"]["logs"] = {name: [0, 0, ""] for name in record["host"]["logs"]}
    (run / "checkpoints/4/host.json").write_text(json.dumps(record))
    assert verify_run(run).step == 2


def test_file_names_that_are_no_step_are_ignored(run):
    for name in ("²", "٣", "07", "-1", "6 "):
        (run / "checkpoints" / name).mkdir()
        (run / f"episodes/{name}.jsonl.gz").touch()
    assert verify_run(run).step == 6


def test_a_log_of_a_newer_version_is_named(run):
    for step in (2, 4, 6):
        path = run / f"checkpoints/{step}/host.json"
        record = json.loads(path.read_text())
        record["host"]["logs"]["dreams"] = [0, 0, ""]
        path.write_text(json.dumps(add_checksum(record)))
    with pytest.raises(CheckpointError, match=r"6/host.json names a log 'dreams', which this version does not have"):
        verify_run(run)


def test_paid_logs_are_not_cut_and_are_checked_beyond_the_checkpoint(run):
    with open(run / "journal.jsonl", "ab") as file:
        file.write(b'{"key":"new","text":"paid"}\n{"key":"torn')
    start(run)
    assert (run / "journal.jsonl").read_bytes().endswith(b'"paid"}\n{"key":"torn')
    Journal(run / "journal.jsonl").add("f" * 32, {"place": "p", "text": "bought"})
    replace_in(run / "journal.jsonl", b"bought", b"caught")
    with pytest.raises(StorageError, match=r"journal.jsonl, line 8: its content is not what the run wrote"):
        start(run)
    replace_in(run / "journal.jsonl", b'{"key":"new"', b'{"key" "new"')
    with pytest.raises(StorageError, match=r"journal.jsonl, line 7: "):
        start(run)


def test_a_step_that_was_begun_is_cut_off_only_after_all_is_verified(run):
    whole = tree(run)
    for name in ("tasks.jsonl", "metrics.jsonl", "checksums.jsonl"):
        with open(run / name, "ab") as file:
            file.write(b'{"step":7}\n{"torn')
    directory = start(run)
    directory.resume(LIKE, {})
    after = tree(run)
    assert {name for name in whole if after.get(name) != whole[name]} == {"config.json"}  # its facts are of this start


def test_signals_keep_the_episodes_that_they_point_to(tmp_path):
    """Dropped steps are not missed; one that a signal needs is, at a start and in a run that goes on."""
    folder = finished(tmp_path / "run", steps=5, episodes_kept=1, checkpoints_kept=1)
    assert sorted(os.listdir(folder / "episodes")) == ["000004.jsonl.gz", "000005.jsonl.gz"]
    assert verify_run(folder).step == 4
    directory = RunDirectory(folder, episodes_kept=1)
    directory.resume(LIKE, {})
    (folder / "episodes/000004.jsonl.gz").unlink()
    with pytest.raises(StorageError, match=r"000004.jsonl.gz is missing; signals that are still to be explored point"):
        directory.read_episodes([4])
    directory.close()
    with pytest.raises(StorageError, match=r"000004.jsonl.gz is missing; signals that are still to be explored point"):
        verify_run(folder)


def test_checkpoints_without_checksums_are_refused(run):
    """Otherwise whoever takes them away could edit all that they are of."""
    older(run)
    with pytest.raises(CheckpointError, match=r"host.json: it carries no checksum of itself"):
        start(run)


def targets(folder: Path) -> list[Path]:
    """Every file; of each checkpoint's arrays only the largest."""
    files = mutations.targets(folder)
    arrays = [path for path in files if "arrays" in path.parts]
    steps = {path.relative_to(folder).parts[1] for path in arrays}
    largest = [max((p for p in arrays if step in p.parts), key=lambda p: p.stat().st_size) for step in sorted(steps)]
    return [path for path in files if path not in arrays or path in largest]


@pytest.mark.parametrize("kind", mutations.KINDS)
def test_every_mutation_of_every_file_is_refused_or_heals(kind, run):
    """The seed of a case is in its name, so that the case can be made again."""
    whole, found = mutations.Whole.of(run), Counter()
    for path in targets(run):
        content, case = path.read_bytes(), f"0 {path.relative_to(run)} {kind}"
        if mutations.apply(run, path, kind, random.Random(case)):
            outcome, said = mutations.judge(run, path, whole)
            assert outcome in ("refused", "restarts", "heals"), f"{case}: {said}"
            found[outcome] += 1
            mutations.restore(path, content)
    assert found["heals"]
    assert kind == "older version" or found["refused"]
    # Whether a line ends in an array's bytes is chance.
    assert kind not in ("missing", "empty", "BOM", "bit flipped") or found["restarts"]


def test_a_folder_that_holds_no_run_is_not_taken_over(tmp_path):
    (tmp_path / "tasks.jsonl").write_text('{"mine":1}\n')
    with pytest.raises(RunDirectoryError, match=r"tasks.jsonl belongs to no run: config.json is missing\."):
        start(tmp_path)
    assert (tmp_path / "tasks.jsonl").read_text() == '{"mine":1}\n'
