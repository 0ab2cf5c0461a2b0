"""What a checkpoint can prove of a run's files: lengths, counts and checksums, kept as the files are written.

A CheckedLog knows the checksum of all it holds, so that a checkpoint notes it in constant time. checksums.jsonl holds
what names the damage: a checksum of every line of the logs, and one of every file that was written whole.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cojax.storage.files import Log, StorageError, expect_file, parsed
from cojax.types import canonical

_FIX = "Restore the file from a copy, or start in a new workdir."
_PIECE = 2**20  # bytes of a file that are read at a time
_LINE = 8  # bytes of a line's checksum
CHECKSUM = "checksum"  # the key of a record's own


@dataclasses.dataclass(frozen=True)
class Extent:
    """How far a checkpoint knows a log: bytes and lines, and the checksum of these bytes."""

    bytes: int
    lines: int
    checksum: str


class CheckedLog:
    """A log that knows what it holds: an append costs what it adds, however long the log is.

    Of a `shared` one, to which others append as well, what they added is read when its extent is asked for.
    """

    def __init__(self, path: Path, *, shared: bool = False):
        self.log, self.path, self._shared = Log(path), path, shared
        self._known = False
        self._reset()

    def _reset(self) -> None:
        self._digest, self._bytes, self._lines = hashlib.blake2b(digest_size=16), 0, 0
        # Checksums of the lines that checksums.jsonl does not hold yet.
        self._fresh: list[str] = []

    @property
    def length(self) -> int:
        """Bytes; 0 for a log that was never written."""
        return self.log.length

    def read(self) -> Iterator[dict[str, Any]]:
        """As of `Log`."""
        return self.log.read()

    def records(self) -> Iterator[dict[str, Any]]:
        """Those of the part that was verified last, oldest first."""
        return itertools.islice(self.log.read(), self._lines)

    def append(self, records: Iterable[Mapping[str, Any]]) -> int:
        """As of `Log`. Raises StorageError where somebody else wrote to the file too."""
        text = self.log.encode(records)
        if not self._known:
            self._absorb()
        end = self.log.extend(text)
        if end - len(text) != self._bytes:
            raise self._changed(end - len(text))
        self._take(text)
        return end

    def extent(self) -> Extent:
        """What the log holds now. Raises StorageError where somebody else wrote to the file too."""
        if self._shared or not self._known:
            self._absorb()
        elif (length := self.log.length) != self._bytes:
            raise self._changed(length)
        return Extent(self._bytes, self._lines, self._digest.hexdigest())

    def fresh(self) -> list[str]:
        """The checksums of the lines since this was asked last."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def clear(self) -> None:
        """Empties the log."""
        self.log.truncate(0)
        self._reset()
        self._known = True

    def cut(self) -> None:
        """Drops what stands after the part that was verified last."""
        self.log.truncate(self._bytes)

    def verify(self, extent: Extent, sums: Callable[[], Sequence[str]] = tuple) -> None:
        """Checks that the log begins by what a checkpoint knows of it; later lines go on from there.

        `sums` gives the checksums of its lines. Raises StorageError, which names the first line that differs.
        """
        expect_file(self.path)
        self._reset()
        if self.path.exists():
            with open(self.path, "rb") as file:
                while piece := file.read(min(_PIECE, extent.bytes - self._bytes)):
                    self._digest.update(piece)
                    self._bytes += len(piece)
                    self._lines += piece.count(b"\n")
        if Extent(self._bytes, self._lines, self._digest.hexdigest()) != extent:
            raise StorageError(_fault(self.path, extent, sums()))
        self._known = True

    def adopt(self, length: int) -> None:
        """Takes the first `length` bytes for what was written, where a checkpoint knows no checksum of them.

        Raises StorageError where they do not end with a line, or a line is no JSON object.
        """
        self._reset()
        if (present := self.length) < length:
            raise StorageError(f"{self.path} holds {present} bytes; the checkpoint knows {length}. {_LOST}")
        self._absorb(length)
        if self._bytes != length:
            raise StorageError(_fault(self.path, Extent(length, self._lines + 1, ""), ()))

    def absorb(self) -> None:
        """Takes the lines after the part that was verified. Raises StorageError for one that is no JSON object."""
        self._absorb()

    def _absorb(self, length: int | None = None) -> None:
        """Reads on, up to the last whole line within `length` bytes."""
        self._known = True
        if (present := self.length) < self._bytes:
            raise self._changed(present)
        if not present:
            return
        with open(self.path, "rb") as file:
            file.seek(self._bytes)
            for line in file:
                if not line.endswith(b"\n") or (length is not None and self._bytes + len(line) > length):
                    return
                try:
                    record = parsed(line)
                    if self._shared:
                        is_signed(record)
                except ValueError as error:
                    raise StorageError(f"{self.path}, line {self._lines + 1}: {error}. {_FIX}") from error
                self._take(line)

    def _take(self, text: bytes) -> None:
        self._digest.update(text)
        lines = text.split(b"\n")[:-1]
        self._bytes += len(text)
        self._lines += len(lines)
        self._fresh += [_of_line(line) for line in lines]

    def _changed(self, found: int) -> StorageError:
        return StorageError(
            f"{self.path} was changed while the run was going: found {found} bytes, expected {self._bytes}. "
            "Leave the folder to the run; run the same command again to go on from its last checkpoint."
        )


class Checksums:
    """checksums.jsonl: of every line of the logs, by log, and of every file written whole; the last one counts.

    Each record holds a checksum of itself.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.log = CheckedLog(folder / "checksums.jsonl")

    def add_file(self, path: Path, content: bytes | None = None) -> None:
        """Notes a file that was written, its `content` where that is at hand."""
        name = str(path.relative_to(self.folder))
        self._add({"file": name, "is": stamp(path) if content is None else _stamp(content)})

    def add_lines(self, lines: Mapping[str, Sequence[str]]) -> None:
        """Notes the checksums of lines that logs gained."""
        if gained := {name: "".join(sums) for name, sums in lines.items() if sums}:
            self._add({"lines": gained})

    def files(self) -> dict[str, str]:
        """File → what it must be, by what was verified."""
        return {record["file"]: record["is"] for record in self.log.records() if "file" in record}

    def lines(self, name: str) -> list[str]:
        """The checksums of a log's lines, by what was verified."""
        width = 2 * _LINE
        joined = "".join(record["lines"].get(name, "") for record in self.log.records() if "lines" in record)
        return [joined[start : start + width] for start in range(0, len(joined), width)]

    def verify(self, extent: Extent) -> None:
        """As of a CheckedLog; a line that is not what was written is known by its own checksum."""
        try:
            self.log.verify(extent)
        except StorageError:
            for number, record in enumerate(self.log.read(), 1):
                if record.get(CHECKSUM) != _of_line(_own(record)):
                    raise StorageError(f"{self.log.path}, line {number}: {_OTHER}. {_FIX}") from None
            raise

    def _add(self, record: Mapping[str, Any]) -> None:
        self.log.append([{**record, CHECKSUM: _of_line(_own(record))}])


_OTHER = "it is not what the run wrote"
_LOST = "Records were lost: restore the file from a copy, or start in a new workdir."


def checksum(content: bytes) -> str:
    """32 hex digits of the content's BLAKE2b."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def stamp(path: Path) -> str:
    """Size and checksum of a file, in one word. Raises StorageError for what is no file, OSError."""
    expect_file(path)
    digest, size = hashlib.blake2b(digest_size=16), 0
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
            size += len(piece)
    return f"{size}:{digest.hexdigest()}"


def signed(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with a checksum of the rest in it."""
    return {**record, CHECKSUM: checksum(_own(record))}


def is_signed(record: Mapping[str, Any]) -> bool:
    """Whether it carries a checksum, which then holds. Raises ValueError where it does not."""
    if CHECKSUM not in record:
        return False
    if record[CHECKSUM] != checksum(_own(record)):
        raise ValueError("its content is not what the run wrote: its checksum differs")
    return True


def _stamp(content: bytes) -> str:
    return f"{len(content)}:{checksum(content)}"


def _own(record: Mapping[str, Any]) -> bytes:
    return canonical({name: value for name, value in record.items() if name != CHECKSUM}).encode()


def _of_line(line: bytes) -> str:
    return hashlib.blake2b(line, digest_size=_LINE).hexdigest()


def _fault(path: Path, extent: Extent, sums: Sequence[str]) -> str:
    """What is wrong with a log that does not begin by what a checkpoint knows of it."""
    if not path.exists():
        return f"{path} is missing; the checkpoint knows {extent.bytes} bytes. {_LOST}"
    before, number = b"", 0
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if number > extent.lines:
                break
            if why := _why(line, before, sums[number - 1 : number], sums[number:]):
                return f"{path}, line {number}: {why}. {_FIX}"
            before = line
    if (present := path.stat().st_size) < extent.bytes:
        return f"{path} holds {present} bytes; the checkpoint knows {extent.bytes}. {_LOST}"
    return f"{path}, one of lines 1 to {extent.lines}: {_OTHER}. {_FIX}"


def _why(line: bytes, before: bytes, wanted: Sequence[str], later: Sequence[str]) -> str:
    """What is wrong with a line; empty where nothing is, as far as can be told."""
    if not line.endswith(b"\n"):
        return "it is cut short"
    found = _of_line(line[:-1])
    if wanted and found == wanted[0]:
        return ""
    try:
        parsed(line)
    except ValueError as error:
        return str(error)
    if line == before:
        return "it repeats the line before"
    if not wanted:
        return ""
    return "it belongs further down: lines are missing or in another order" if found in later else _OTHER
