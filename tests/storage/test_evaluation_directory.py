"""The folder of an evaluation: what was tampered with is named or played again, never believed."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import small_runs
from campaign import mutations

from cojax.storage.evaluation_directory import EvaluationDirectory
from cojax.storage.files import RunDirectoryError, StorageError

IDENTITY = {"policy": "p", "samples": 2}


def begun(folder: Path) -> Path:
    with EvaluationDirectory(folder) as directory:
        directory.claim(IDENTITY, {})
        for name in "abc":
            for trajectory in small_runs.group(small_runs.task(name), 1).trajectories:
                directory.add("eval", trajectory)
    return folder


def known(folder: Path) -> dict:
    with EvaluationDirectory(folder) as directory:
        directory.claim(IDENTITY, {})
        return directory.valid_episodes()


@pytest.mark.parametrize("kind", mutations.KINDS)
@pytest.mark.parametrize("name", ["episodes.jsonl", "config.json"])
def test_what_is_known_is_what_was_played(name, kind, tmp_path):
    folder = begun(tmp_path / "out")
    whole, content = known(folder), (folder / name).read_bytes()
    assert len(whole) == 6
    for seed in range(8):
        if not mutations.apply(folder, folder / name, kind, random.Random(f"{seed} {name} {kind}")):
            continue
        try:
            said, found = f"{folder}", known(folder)
        except (StorageError, RunDirectoryError) as error:
            said, found = str(error), {}
        assert found.items() <= whole.items()
        assert str(folder) in said
        assert "\n" not in said
        mutations.restore(folder / name, content)


def test_a_changed_episode_is_named_by_its_line(tmp_path):
    folder = begun(tmp_path / "out")
    path = folder / "episodes.jsonl"
    path.write_text(path.read_text().replace('"reward":0.0', '"reward":1.0', 2))
    with pytest.raises(StorageError, match=r"episodes.jsonl, line 1: .*remove the line: its episode is played again"):
        known(folder)
    path.write_text("\n".join(path.read_text().splitlines()[3:]) + "\n")
    assert len(known(folder)) == 3


def test_episodes_without_checksums_are_refused(tmp_path):
    folder = begun(tmp_path / "out")
    records = [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]
    del records[1]["checksum"]
    (folder / "episodes.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    with pytest.raises(StorageError, match=r"episodes.jsonl, line 2: it carries no checksum of itself"):
        known(folder)
