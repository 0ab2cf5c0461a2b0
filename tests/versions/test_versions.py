"""A run directory of every released version goes on with this one."""

from __future__ import annotations

import json
import os
import re
import tarfile
from pathlib import Path

import pytest
from commands import Commands

import cojax

FOLDER = Path(__file__).parent
ARCHIVES = sorted(FOLDER.glob("*.tar.xz"))
CHANGELOG = FOLDER.parents[1] / "CHANGELOG.md"


def test_the_changelog_and_the_archives_name_every_version() -> None:
    versions = re.findall(r"^## (\d+\.\d+\.\d+)", CHANGELOG.read_text(), re.MULTILINE)
    assert versions[0] == cojax.__version__
    assert sorted(versions) == sorted(path.name.removesuffix(".tar.xz") for path in ARCHIVES)


@pytest.mark.parametrize("packed", ARCHIVES, ids=lambda path: path.name)
def test_a_run_of_the_version_goes_on(packed: Path, tmp_path: Path, commands: Commands, shared_cache: Path) -> None:
    assert packed.stat().st_size <= 200_000
    with tarfile.open(packed) as archive:
        archive.extractall(tmp_path, filter="data")
    run = tmp_path / packed.name.removesuffix(".tar.xz")
    before = (run / "metrics.jsonl").read_text()
    cache = {**os.environ, "COJAX_CACHE": str(shared_cache)}
    ended = commands.run("experiments.run", f"--workdir={run}", "--config.steps=3", environment=cache)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    # Its checkpoint holds what the policy was taught: nothing is taught anew.
    assert "policy: from scratch, shown 32 " in ended.stdout
    assert "warm start: " not in ended.stdout
    after = (run / "metrics.jsonl").read_text()
    assert after.startswith(before)
    assert json.loads(after.splitlines()[-1])["step"] == 3
    assert commands.run("experiments.report", str(run)).returncode == 0
