"""A folder as JSON: what is kept of each kind of file."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
from pathlib import Path

import pytest

from environments.mcp import data
from environments.mcp.snapshot import take_snapshot


def test_files_are_told_by_what_they_hold(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.json").write_text('{"n": [1, 2]}')
    (tmp_path / "broken.json").write_text('{"n": NaN}')
    (tmp_path / "c.bin").write_bytes(b"\xff\x00")
    (tmp_path / "d").mkdir()
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "f.txt").symlink_to("../a.txt")
    (tmp_path / "skip.log").write_text("now")
    assert take_snapshot(tmp_path, ["*.log"]) == {
        "files": {
            "a.txt": {"path": "a.txt", "content": "one"},
            "b.json": {"path": "b.json", "content": {"n": [1, 2]}},
            "broken.json": {"path": "broken.json", "content": '{"n": NaN}'},
            "c.bin": {"path": "c.bin", "sha256": "ea5dbf9596d187e9500f23e9a680109475341cf4e81f7e043f7d97152c10772f"},
            "d": {"path": "d"},
            "e/f.txt": {"path": "e/f.txt", "link": "../a.txt"},
        }
    }


def test_a_database_is_told_by_its_rows(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "x.db")) as database, database:
        database.execute("CREATE TABLE t (a INTEGER, b BLOB, c REAL)")
        database.execute("INSERT INTO t VALUES (1, x'00ff', 9e999)")
    assert take_snapshot(tmp_path)["files"]["x.db"]["tables"] == {
        "t": {
            "made": "CREATE TABLE t (a INTEGER, b BLOB, c REAL)",
            "columns": ["a", "b", "c"],
            "rows": [[1, {"base64": "AP8="}, "inf"]],
        }
    }


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER later AFTER INSERT ON t BEGIN DELETE FROM t; END",
        "CREATE VIEW shown AS SELECT a FROM t",
        "CREATE UNIQUE INDEX once ON t (a)",
    ],
)
def test_what_a_database_does_by_itself_is_part_of_its_state(statement: str, tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "x.db")) as database, database:
        database.execute("CREATE TABLE t (a INTEGER, b TEXT UNIQUE)")
        before = take_snapshot(tmp_path)["files"]["x.db"]
        database.execute(statement)
    after = take_snapshot(tmp_path)["files"]["x.db"]
    assert (set(before), after) == ({"path", "tables"}, {**before, "made": [statement]})


def test_a_repository_is_told_by_its_branches_and_what_is_staged(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        data.fill_git(tmp_path / folder, 7)
    one, two = (take_snapshot(tmp_path / folder) for folder in ("one", "two"))
    assert json.dumps(one) == json.dumps(two)
    told = one["repositories"]["."]
    assert told["head"] == "main"
    assert len(told["branches"]) == 2
    assert len(set(map(json.dumps, told["branches"].values()))) == 1
    assert len(told["staged"]) == 2
    assert len(one["files"]) == 3
    subprocess.run(["git", "add", "."], cwd=tmp_path / "one", check=True)
    assert len(take_snapshot(tmp_path / "one")["repositories"]["."]["staged"]) == 3


def test_a_folder_of_thousands_of_files_is_refused(tmp_path: Path) -> None:
    for number in range(2_001):
        (tmp_path / str(number)).touch()
    with pytest.raises(OverflowError, match="more than 2000 files; name those to `ignore`"):
        take_snapshot(tmp_path)


def test_a_folder_of_more_text_than_can_be_compared_is_refused(tmp_path: Path) -> None:
    for number in range(33):
        (tmp_path / str(number)).write_text("x" * 65_000)
    with pytest.raises(OverflowError, match=r"\d+ characters as JSON, more than 2097152; name files to `ignore`"):
        take_snapshot(tmp_path)
