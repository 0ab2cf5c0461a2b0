"""Mutates a file of a run directory, and decides whether a start of the run treats it rightly.

A start resumes to the identical result, or refuses with one line that names the file; refusing changes nothing on disk.
"""

import dataclasses
import json
import random
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from cojax.storage.checkpoint import CheckpointError
from cojax.storage.files import RunDirectoryError, StorageError
from cojax.storage.run_directory import RunDirectory
from cojax.storage.run_files import DERIVED_NAMES, REMADE, Checkpoint, verify_run

Mutation = Callable[[bytes, random.Random], bytes | None]


def _truncated(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content))] if content else content


def _flipped(content: bytes, rng: random.Random) -> bytes:
    if not content:
        return content
    index = rng.randrange(len(content))
    return content[:index] + bytes([content[index] ^ (1 << rng.randrange(8))]) + content[index + 1 :]


def _doubled(content: bytes, rng: random.Random) -> bytes:
    lines = content.splitlines(keepends=True)
    index = rng.randrange(len(lines)) if lines else 0
    return b"".join([*lines[: index + 1], *lines[index:]])


def _swapped(content: bytes, rng: random.Random) -> bytes:
    lines = content.splitlines(keepends=True)
    if len(lines) > 1:
        one, other = rng.sample(range(len(lines)), 2)
        lines[one], lines[other] = lines[other], lines[one]
    return b"".join(lines)


def _nul(content: bytes, rng: random.Random) -> bytes:
    index = rng.randrange(len(content) + 1)
    return content[:index] + b"\0" + content[index:]


def _wrong_type(content: bytes, rng: random.Random) -> bytes:
    """A whole value, or one line, of another type."""
    other = rng.choice([b"[]", b"null", b"5", b'"text"', b"{}", b"no JSON"])
    lines = content.splitlines(keepends=True)
    if len(lines) < 2 or rng.random() < 0.5:
        return other + b"\n"
    lines[rng.randrange(len(lines))] = other + b"\n"
    return b"".join(lines)


def _older(content: bytes, rng: random.Random) -> bytes:
    """JSON as a version without checksums wrote it; any other content is unchanged."""
    try:
        value = json.loads(content)
    except ValueError:
        return content
    if not isinstance(value, dict) or "checksum" not in value:
        return content
    del value["checksum"]
    if logs := value.get("host", {}).pop("logs", None):
        value["host"].pop("first_episodes")
        value["host"]["lengths"] = {name: extent[0] for name, extent in logs.items() if name not in _NEW}
    return (json.dumps(value, indent=1) + "\n").encode()


# Logs that older checkpoints do not have.
_NEW = ("journal", "embeddings", "checksums")
# Content → the new content; None where the file is removed.
MUTATIONS: dict[str, Mutation] = {
    "missing": lambda content, rng: None,
    "empty": lambda content, rng: b"",
    "truncated": _truncated,
    "bit flipped": _flipped,
    "line doubled": _doubled,
    "line swapped": _swapped,
    "CRLF": lambda content, rng: content.replace(b"\n", b"\r\n"),
    "BOM": lambda content, rng: b"\xef\xbb\xbf" + content,
    "NUL": _nul,
    "wrong type": _wrong_type,
    "older version": _older,
}
# The mutation that replaces the file by a folder.
FOLDER = "a folder"
KINDS = (*MUTATIONS, FOLDER)


def targets(folder: Path) -> list[Path]:
    """The files of a run directory, except the lock and the files of evaluations."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock")
    return [path for path in files if path.relative_to(folder).parts[0] != "evaluations"]


def apply(folder: Path, path: Path, mutation: str, rng: random.Random) -> bool:
    """Mutates the file `path` of `folder`; False where that changes nothing."""
    if not path.is_relative_to(folder):
        raise ValueError(f"{path} is not in {folder}")
    before = path.read_bytes()
    if mutation == FOLDER:
        path.unlink()
        path.mkdir()
        return True
    after = MUTATIONS[mutation](before, rng)
    if after is None:
        path.unlink()
    elif after != before:
        path.write_bytes(after)
    return after != before


def restore(path: Path, content: bytes) -> None:
    """Restores a file that was mutated."""
    if path.is_dir():
        shutil.rmtree(path)
    path.write_bytes(content)


@dataclasses.dataclass(frozen=True)
class Whole:
    """A run directory before any mutation: its settings, its verified state, and its logs."""

    config: Mapping[str, Any]
    found: Checkpoint
    logs: Mapping[str, bytes]

    @classmethod
    def of(cls, folder: Path) -> "Whole":
        found = verify_run(folder)
        if found is None:
            raise ValueError(f"{folder} holds no checkpoint")
        logs = {path.name: path.read_bytes() for path in folder.glob("*.jsonl")}
        return cls(json.loads((folder / "config.json").read_text())["config"], found, logs)


def judge(folder: Path, path: Path, whole: Whole) -> tuple[str, str]:
    """Starts the run in `folder`, whose file `path` was mutated, up to where it would train.

    Returns the outcome and the message. Outcomes: "refused"; "restarts" from an earlier checkpoint; "heals" where the
    file is made again, cut or not read; "lost" where the start is wrong. The caller restores `path`; all other files
    are as they were.
    """
    before, config = _listing(folder), folder / "config.json"
    settings = config.read_bytes() if config.is_file() else None
    try:
        directory = RunDirectory(folder)
        try:
            found = directory.claim(whole.config, {})
            summary = directory.summary(found)
            if found is not None and found.step == whole.found.step:
                directory.cut(found)
        finally:
            directory.close()
            if settings is not None and path != config:
                config.write_bytes(settings)
    except (RunDirectoryError, CheckpointError, StorageError) as error:
        return _refused(folder, path, str(error), _listing(folder).items() - before.items())
    except Exception as error:
        return "lost", f"{type(error).__name__}: {error}"
    if found is None:
        return "lost", "the run begins anew"
    said = "; ".join(found.warnings)
    if found.step < whole.found.step:
        right = said and path.is_relative_to(folder / "checkpoints") and summary is None
        return ("restarts" if right else "lost"), said
    same = _state(found) == _state(whole.found)
    return ("heals" if same and _healed(folder, path, found, whole, summary) else "lost"), said


def _state(found: Checkpoint) -> tuple[Any, ...]:
    return found.step, tuple(found.pool), found.pool.fresh, found.changes, found.pending, found.waiting


def _refused(folder: Path, path: Path, said: str, changed: Collection[Any]) -> tuple[str, str]:
    names = {path.name, *(parent.name for parent in path.relative_to(folder).parents[:-1])}
    if "\n" in said or len(said) > 1_000 or not any(name in said for name in names):
        return "lost", f"the message is not one line that names the file: {said}"
    config = str(folder / "config.json")
    others = [name for name, _ in changed if name != config]
    return ("lost", f"refusing changed {others[0]}: {said}") if others else ("refused", said)


def _healed(folder: Path, path: Path, found: Checkpoint, whole: Whole, summary: Mapping[str, Any] | None) -> bool:
    """Whether the run may go on with that file: it is made again, cut back, or not read."""
    name = path.relative_to(folder).parts[0]
    if path.name in whole.logs:
        return (path.read_bytes() if path.exists() else b"") == whole.logs[path.name]
    if name in ("summary.json", "final.json"):
        return summary is None or path.is_file()
    if name in ("checkpoints", "waiting"):
        return (
            str(found.step) not in (*path.parts, path.name.partition(".")[0].lstrip("0"))
            or bool(found.warnings)
            or found.host == whole.found.host
        )
    return name in DERIVED_NAMES or name == "config.json" or (name in REMADE and not path.exists() and summary is None)


def _listing(folder: Path) -> dict[str, tuple[int, int]]:
    stats = {path: path.lstat() for path in folder.rglob("*") if path.name != ".lock" and path.is_file()}
    return {str(path): (stat.st_size, stat.st_mtime_ns) for path, stat in stats.items()}
