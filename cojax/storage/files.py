"""What a run keeps on disk besides arrays: append-only logs, episodes, and JSON files written whole or not at all.

Standard library only. A process killed at any moment leaves a readable folder: logs lose at most a torn last line,
every other file is either the old one or the new one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import gzip
import io
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

Record = Mapping[str, Any]
# Bytes that no log of ours holds, and what they are.
_MARKS = {
    b"\xef\xbb\xbf": "a byte-order mark",
    b"\r": "a carriage return (CRLF line ends)",
    b"\0": "a NUL byte",
}


class StorageError(OSError):
    """The disk refused: the message names the path and what to do."""


@dataclasses.dataclass(frozen=True)
class Log:
    """An append-only JSONL file. Its length in bytes is what a checkpoint stores; resume truncates to it.

    Every append is flushed, and fsynced unless `sync` is False.
    """

    path: Path
    sync: bool = True

    @property
    def length(self) -> int:
        """Bytes; 0 for a log that was never written. Raises StorageError for what is no file."""
        if not self.path.exists():
            return 0
        expect_file(self.path)
        return self.path.stat().st_size

    def append(self, records: Iterable[Record]) -> int:
        """Adds one line a record, all or none, and returns the new length.

        A torn tail of a killed writer is cut first. Raises StorageError when the disk refuses, the log then as
        before, and ValueError for a record that is not strict JSON (NaN and infinity are not).
        """
        return self.extend(self.encode(records))

    def encode(self, records: Iterable[Record]) -> bytes:
        """The lines of these records. Raises ValueError for one that is not strict JSON."""
        return b"".join(_line(record, self.path) for record in records)

    def extend(self, text: bytes) -> int:
        """Adds whole lines as `append` does."""
        with _explained(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Without a buffer: what the disk refuses would be written once more when the file is closed.
            with open(self.path, "a+b", buffering=0) as file:
                start = _whole(file)
                file.truncate(start)
                try:
                    left = memoryview(text)
                    while left:
                        left = left[file.write(left) :]
                    if self.sync:
                        os.fsync(file.fileno())
                except OSError:
                    os.truncate(self.path, start)
                    raise
        return start + len(text)

    def truncate(self, length: int) -> None:
        """Cuts the log back to `length` bytes. Raises StorageError if it is shorter: records were lost."""
        present = self.length
        if present < length:
            raise StorageError(
                f"{self.path} holds {present} bytes; the checkpoint knows {length}. "
                "Records were lost: restore the file from a copy, or start in a new workdir."
            )
        if present > length:
            with _explained(self.path), open(self.path, "r+b") as file:
                file.truncate(length)
                os.fsync(file.fileno())

    def read(self) -> Iterator[dict[str, Any]]:
        """The records, oldest first; a torn last line is left out. Raises StorageError for a broken earlier line."""
        if not self.path.exists():
            return
        expect_file(self.path)
        with open(self.path, "rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return
                try:
                    record = parsed(line)
                except ValueError as error:
                    raise StorageError(
                        f"{self.path}, line {number}: {error}; expected one JSON object a line. "
                        "The file was edited or damaged: restore it, or start in a new workdir."
                    ) from error
                yield record


@dataclasses.dataclass(frozen=True)
class Episodes:
    """One compressed JSONL file a step, `000012.jsonl.gz`; the newest `keep` steps stay, 0 keeps all.

    A record's key `episode` is its id, "STEP-TASK-SAMPLE". Equal records give equal bytes.
    """

    folder: Path
    keep: int = 0

    def write(self, step: int, records: Iterable[Record]) -> bytes:
        """Stores the episodes of a step; the content of its file."""
        path = self.path(step)
        buffer = io.BytesIO()
        # Neither time nor file name goes into the header, so that two runs of one seed give the same file.
        with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, compresslevel=6, mtime=0) as packed:
            packed.writelines(_line(record, path) for record in records)
        content = buffer.getvalue()
        _replace(path, content)
        return content

    def first_kept(self, pending: int) -> int:
        """The first step that retention covers; steps from `pending` on stay whatever their age.

        Signals not yet explored point there, in this process or in the one that resumes from a checkpoint.
        """
        newest = self.steps()[-self.keep :]
        return min(pending, newest[0] if self.keep and newest else 0)

    def drop_before(self, first: int) -> None:
        """Drops the episodes of every step before `first`."""
        self._drop(old for old in self.steps() if old < first)

    def read(self, step: int) -> list[dict[str, Any]]:
        """The episodes of a step in the order written; none for a step not kept. Raises StorageError if damaged."""
        path = self.path(step)
        if not path.exists():
            return []
        expect_file(path)
        try:
            with gzip.open(path, "rb") as file:
                return [parsed(line) for line in file]
        # Of a damaged stream zlib raises its own error.
        except (EOFError, ValueError, OSError, zlib.error) as error:
            raise StorageError(f"{path} cannot be read: {error}. Restore it from a copy.") from error

    def truncate(self, step: int) -> None:
        """Drops the episodes of every step later than `step`."""
        self._drop(later for later in self.steps() if later > step)

    def retain(self, steps: Iterable[int]) -> None:
        """Drops the episodes of every other step."""
        kept = set(steps)
        self._drop(step for step in self.steps() if step not in kept)

    def steps(self) -> list[int]:
        """The steps kept, ascending."""
        names = (path.name.partition(".") for path in self.folder.glob("*.jsonl.gz"))
        return sorted(int(stem) for stem, _, _ in names if is_number(stem))

    def path(self, step: int) -> Path:
        return self.folder / f"{step:06d}.jsonl.gz"

    def _drop(self, steps: Iterable[int]) -> None:
        for step in list(steps):
            with _explained(self.path(step)):
                self.path(step).unlink(missing_ok=True)


def parsed(line: bytes) -> dict[str, Any]:
    """The record of a line. Raises ValueError, which says why, for one that no log wrote."""
    for mark, what in _MARKS.items():
        if mark in line:
            raise ValueError(f"it holds {what}")
    try:
        value = json.loads(line.decode(), parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("its JSON is too deep") from error
    if not isinstance(value, dict):
        raise ValueError(f"it holds {type(value).__name__}")
    return value


def expect_file(path: Path) -> None:
    """Raises StorageError for a folder, or anything else, where a file must be."""
    if path.exists() and not path.is_file():
        raise StorageError(f"{path} is no file; expected one. Move it away and restore the file from a copy.")


def is_number(name: str) -> bool:
    """Whether a name is a step: digits 0 to 9 alone."""
    return name.isascii() and name.isdigit()


def write_json(path: Path, value: Any) -> None:
    """Writes indented JSON, atomically and durably. Raises StorageError when the disk refuses."""
    _replace(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def write_text(path: Path, text: str) -> None:
    """Writes text, atomically and durably. Raises StorageError when the disk refuses."""
    _replace(path, text.encode())


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable: a rename is on disk only once its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def explain(error: OSError, path: Path) -> StorageError:
    """The error with its path and the fix."""
    fixes = {
        errno.ENOSPC: "The disk is full: free space, then run the same command again.",
        errno.EDQUOT: "The disk quota is used up: free space, then run the same command again.",
        errno.EFBIG: "The file size limit is reached: raise it (ulimit -f), then run the same command again.",
        errno.EACCES: "Make the folder writable, or choose another workdir.",
        errno.EPERM: "Make the folder writable, or choose another workdir.",
        errno.EROFS: "The file system is read-only: choose another workdir.",
        errno.ENOTDIR: "A part of the path is a file: choose another workdir.",
        errno.EEXIST: "A part of the path is a file: choose another workdir.",
    }
    fix = fixes.get(error.errno or 0, "Check the disk, then run the same command again.")
    return StorageError(error.errno, f"cannot write {path}: {error.strerror or error}. {fix}")


def explain_reading(error: OSError, path: Path) -> StorageError:
    """The error of reading a file with its path and the fix."""
    fix = "Make it readable, then run the same command again."
    return StorageError(error.errno, f"cannot read {error.filename or path}: {error.strerror or error}. {fix}")


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise explain(error, path) from error


def _replace(path: Path, content: bytes) -> None:
    """Puts `content` at `path` by way of a temporary sibling: readers see the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with _explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _line(record: Record, path: Path) -> bytes:
    try:
        return (json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n").encode()
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: a record is not strict JSON: {error}; convert or leave out the value") from error


def _whole(file: io.FileIO) -> int:
    """Bytes up to and including the last newline."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - 65536)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
