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

# The most files of a folder, the most bytes of one that is kept as it is, and the most characters of it all as JSON.
_FILES, _KEPT, MOST = 2_000, 65_536, 2 * 2**20
_SQLITE = b"SQLite format 3\0"
_GIT = ".git"


def snapshot(folder: Path, ignore: Sequence[str] = ()) -> dict[str, Any]:
    """{"files": path → what it holds}, and "repositories" where there are any; both by paths within the folder.

    A file is {"path", "content"}, its content text, or JSON if it is JSON; {"path", "tables"} for a database, with
    "made" for its triggers, views and indexes where it has any; {"path", "sha256"} for other bytes and long texts;
    {"path", "link"} for a symbolic link; {"path"} for an empty folder. Files and folders whose name matches a pattern
    of `ignore` are left out.

    Raises OverflowError for more than 2,000 files, and for more than 2 MiB of JSON.
    """
    contents: dict[str, Any] = {"files": {}}
    for path in _walk(folder, ignore):
        name = str(path.relative_to(folder))
        if path.name == _GIT:
            repository = str(path.parent.relative_to(folder))
            contents.setdefault("repositories", {})[repository] = _repository(path.parent)
            continue
        contents["files"][name] = {"path": name, **_read(path)}
        if len(contents["files"]) > _FILES:
            raise OverflowError(f"the folder of the episode holds more than {_FILES} files; name those to `ignore`")
    if (size := len(json.dumps(contents))) > MOST:
        raise OverflowError(
            f"the folder of the episode is {size} characters as JSON, more than {MOST}; name files to `ignore`"
        )
    return contents


def _walk(folder: Path, ignore: Sequence[str]) -> Iterator[Path]:
    """The files, links, repositories and empty folders below a folder, by name."""
    for path in sorted(folder.iterdir()):
        if any(fnmatch.fnmatch(path.name, pattern) for pattern in ignore):
            continue
        if path.is_dir() and not path.is_symlink() and path.name != _GIT and any(path.iterdir()):
            yield from _walk(path, ignore)
        else:
            yield path


def _read(path: Path) -> dict[str, Any]:
    if path.is_symlink():
        return {"link": os.readlink(path)}
    if path.is_dir():
        return {}
    if not path.is_file():
        return {"kind": "special"}
    with path.open("rb") as file:
        if file.read(len(_SQLITE)) == _SQLITE:
            return _database(path)
    if path.stat().st_size > _KEPT:
        with path.open("rb") as file:
            return {"sha256": hashlib.file_digest(file, "sha256").hexdigest()}
    content = path.read_bytes()
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return {"sha256": hashlib.sha256(content).hexdigest()}
    if path.suffix == ".json":
        with contextlib.suppress(ValueError):
            return {"content": parse_json(text, finite=False)}
    return {"content": text}


def _database(path: Path) -> dict[str, Any]:
    """The tables of a database, each with its SQL, its columns and its rows in their order; and the SQL of the rest."""
    with sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True) as database:
        defs = database.execute("SELECT type, name, sql FROM sqlite_master ORDER BY type, name").fetchall()
        tables, others = {}, [sql for kind, _, sql in defs if kind != "table" and sql]  # an automatic index has no SQL
        for name, sql in ((name, sql) for kind, name, sql in defs if kind == "table"):
            identifier = '"' + name.replace('"', '""') + '"'
            rows = database.execute(f"SELECT * FROM {identifier}")
            columns = [column[0] for column in rows.description]
            tables[name] = {"made": sql, "columns": columns, "rows": [list(map(_value, row)) for row in rows]}
    database.close()
    return {"tables": tables, **({"made": others} if others else {})}


def _value(value: Any) -> Any:
    """A value of a database as JSON."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    return value if not isinstance(value, float) or value - value == 0 else str(value)


def _repository(folder: Path) -> dict[str, Any]:
    """The branches and tags with their commits, the branch that is checked out, and what is staged."""
    refs = (line.split(" ") for line in _git(folder, "for-each-ref", "--format=%(refname:short) %(objectname)"))
    index = (line.split("\t", 1) for line in _git(folder, "ls-files", "--stage"))
    head = (folder / _GIT / "HEAD").read_text().strip().removeprefix("ref: refs/heads/")
    return {
        "head": head,
        "branches": {name: {"commit": commit} for name, commit in refs},
        "staged": {path: blob for blob, path in index},
    }


def _git(folder: Path, *arguments: str) -> list[str]:
    # No program that the repository names is run.
    command = ["git", "-c", "core.quotePath=false", "-c", "core.fsmonitor=false", "-C", str(folder), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    return result.stdout.splitlines()
