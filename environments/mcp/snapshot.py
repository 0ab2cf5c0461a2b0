"""A folder as JSON: texts, JSON, databases of SQLite and git repositories by what they hold, other files by a hash."""

import base64
import contextlib
import fnmatch
import hashlib
import json
import os
import sqlite3
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cojax.types import parse_json

# Limits on the files of a folder, on the bytes of a file that is kept as it is, and on the characters of the JSON.
_MAX_FILES, _MAX_FILE_BYTES, MAX_CHARS = 2_000, 65_536, 2 * 2**20
_SQLITE_HEADER = b"SQLite format 3\0"
_GIT_FOLDER = ".git"


def take_snapshot(folder: Path, ignored_patterns: Sequence[str] = ()) -> dict[str, Any]:
    """{"files": path → what it holds}, and "repositories" where there are any; both by paths within the folder.

    A file is {"path", "content"}, its content text, or JSON if it is JSON; {"path", "tables"} for a database, with
    "made" for its triggers, views and indexes where it has any; {"path", "sha256"} for other bytes and long texts;
    {"path", "link"} for a symbolic link; {"path"} for an empty folder. Files and folders whose name matches a pattern
    of `ignored_patterns` are left out.

    Raises OverflowError for more than 2,000 files, and for more than 2 MiB of JSON.
    """
    contents: dict[str, Any] = {"files": {}}
    for path in _walk_folder(folder, ignored_patterns):
        relative_path = str(path.relative_to(folder))
        if path.name == _GIT_FOLDER:
            repository_path = str(path.parent.relative_to(folder))
            contents.setdefault("repositories", {})[repository_path] = _read_repository(path.parent)
            continue
        contents["files"][relative_path] = {"path": relative_path, **_read_content(path)}
        if len(contents["files"]) > _MAX_FILES:
            raise OverflowError(f"the folder of the episode holds more than {_MAX_FILES} files; name those to `ignore`")
    if (length := len(json.dumps(contents))) > MAX_CHARS:
        raise OverflowError(
            f"the folder of the episode is {length} characters as JSON, more than {MAX_CHARS}; name files to `ignore`"
        )
    return contents


def _walk_folder(folder: Path, ignored_patterns: Sequence[str]) -> Iterator[Path]:
    """The files, links, repositories and empty folders below a folder, by name."""
    for path in sorted(folder.iterdir()):
        if any(fnmatch.fnmatch(path.name, pattern) for pattern in ignored_patterns):
            continue
        if path.is_dir() and not path.is_symlink() and path.name != _GIT_FOLDER and any(path.iterdir()):
            yield from _walk_folder(path, ignored_patterns)
        else:
            yield path


def _read_content(path: Path) -> dict[str, Any]:
    if path.is_symlink():
        return {"link": os.readlink(path)}
    if path.is_dir():
        return {}
    if not path.is_file():
        return {"kind": "special"}
    with path.open("rb") as file:
        if file.read(len(_SQLITE_HEADER)) == _SQLITE_HEADER:
            return _read_database(path)
    if path.stat().st_size > _MAX_FILE_BYTES:
        with path.open("rb") as file:
            return {"sha256": hashlib.file_digest(file, "sha256").hexdigest()}
    file_bytes = path.read_bytes()
    try:
        text = file_bytes.decode()
    except UnicodeDecodeError:
        return {"sha256": hashlib.sha256(file_bytes).hexdigest()}
    if path.suffix == ".json":
        with contextlib.suppress(ValueError):
            return {"content": parse_json(text, finite=False)}
    return {"content": text}


def _read_database(path: Path) -> dict[str, Any]:
    """The tables of a database, each with its SQL, its columns and its rows in their order; and the SQL of the rest."""
    with sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True) as database:
        defs = database.execute("SELECT type, name, sql FROM sqlite_master ORDER BY type, name").fetchall()
        tables, extras = {}, [sql for kind, _, sql in defs if kind != "table" and sql]  # an automatic index has no SQL
        for table_name, sql in ((table_name, sql) for kind, table_name, sql in defs if kind == "table"):
            identifier = '"' + table_name.replace('"', '""') + '"'
            cursor = database.execute(f"SELECT * FROM {identifier}")
            columns = [column[0] for column in cursor.description]
            tables[table_name] = {"made": sql, "columns": columns, "rows": [list(map(_to_json, row)) for row in cursor]}
    database.close()
    return {"tables": tables, **({"made": extras} if extras else {})}


def _to_json(value: Any) -> Any:
    """A value of a database as JSON."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    return value if not isinstance(value, float) or value - value == 0 else str(value)


def _read_repository(folder: Path) -> dict[str, Any]:
    """The branches and tags with their commits, the branch that is checked out, and what is staged."""
    ref_lines = (line.split(" ") for line in _git(folder, "for-each-ref", "--format=%(refname:short) %(objectname)"))
    index_lines = (line.split("\t", 1) for line in _git(folder, "ls-files", "--stage"))
    head = (folder / _GIT_FOLDER / "HEAD").read_text().strip().removeprefix("ref: refs/heads/")
    return {
        "head": head,
        "branches": {ref_name: {"commit": commit} for ref_name, commit in ref_lines},
        "staged": {path: blob for blob, path in index_lines},
    }


def _git(folder: Path, *arguments: str) -> list[str]:
    # No program that the repository names is run.
    command = ["git", "-c", "core.quotePath=false", "-c", "core.fsmonitor=false", "-C", str(folder), *arguments]
    process = subprocess.run(command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    return process.stdout.splitlines()
