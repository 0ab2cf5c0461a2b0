"""Checksums of a run's files: kept up to date as the files are written, and verified when the run is resumed.

A CheckedLog knows the checksum of all its content, so that a checkpoint stores it in constant time. checksums.jsonl
holds a checksum of every line of the logs, and of every file that was written whole. Errors locate the damage by these
checksums.
"""

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cojax.durable import read_pieces
from cojax.storage.files import MAX_LINE_BYTES, Log, StorageError, open_file, parse_record, read_lines
from cojax.types import canonical

_RESTORE = "Restore the file from a copy, or start in a new workdir."
_CHUNK_BYTES = 2**20  # bytes of a file that are read at a time
_LINE_SUM_BYTES = 8  # bytes of a line's checksum
CHECKSUM_KEY = "checksum"  # the key of the checksum that a record carries of itself


# The part of a log that a checkpoint covers: its bytes and lines, and the checksum of these bytes.
Extent = tuple[Any, ...]


class CheckedLog:
    """A log with a running checksum of its content: the cost of an append does not grow with the log.

    Other writers may append to a shared log (`is_shared`) too; their lines are read when its extent is asked for.
    """

    def __init__(self, path: Path, *, is_shared: bool = False):
        self.log, self.path, self._is_shared = Log(path), path, is_shared
        # Whether the digest covers what the file held when this object was made.
        self._has_counted_lines = False
        self._reset()

    def _reset(self) -> None:
        self._digest, self._byte_count, self._line_count = hashlib.blake2b(digest_size=16), 0, 0
        # Checksums of the lines that checksums.jsonl does not hold yet.
        self._new_line_sums: list[str] = []

    @property
    def length(self) -> int:
        """Bytes; 0 for a log that was never written."""
        return self.log.length

    def read(self) -> Iterator[dict[str, Any]]:
        """Like `Log.read`."""
        return self.log.read()

    def records(self) -> Iterator[dict[str, Any]]:
        """The records of the part that was verified last, oldest first."""
        return itertools.islice(self.log.read(), self._line_count)

    def append(self, records: Iterable[Mapping[str, Any]]) -> int:
        """Like `Log.append`. Raises StorageError if another process wrote to the file too."""
        encoded_lines = self.log.encode(records)
        if not self._has_counted_lines:
            self.count_new_lines()
        new_length = self.log.extend(encoded_lines)
        if new_length - len(encoded_lines) != self._byte_count:
            raise self._make_change_error(new_length - len(encoded_lines))
        self._count_lines(encoded_lines)
        return new_length

    def measure_extent(self) -> Extent:
        """The extent of the whole log. Raises StorageError if another process wrote to a log that is not shared."""
        if self._is_shared or not self._has_counted_lines:
            self.count_new_lines()
        elif (log_length := self.log.length) != self._byte_count:
            raise self._make_change_error(log_length)
        return self._byte_count, self._line_count, self._digest.hexdigest()

    def take_new_sums(self) -> list[str]:
        """The checksums of the lines that were added since the last call."""
        new_sums, self._new_line_sums = self._new_line_sums, []
        return new_sums

    def clear(self) -> None:
        """Empties the log."""
        self.log.truncate(0)
        self._reset()
        self._has_counted_lines = True

    def cut(self) -> None:
        """Drops the lines after the part that was verified last."""
        self.log.truncate(self._byte_count)

    def verify(self, extent: Extent, read_line_sums: Callable[[], Sequence[str]] = tuple) -> None:
        """Checks that the log begins with the extent that a checkpoint stores; later appends continue from its end.

        `read_line_sums` gives the checksums of the lines. Raises StorageError, which names the first line that differs.
        """
        self._reset()
        if self.path.exists():
            with open_file(self.path) as file:
                while chunk := file.read(min(_CHUNK_BYTES, extent[0] - self._byte_count)):
                    self._digest.update(chunk)
                    self._byte_count += len(chunk)
                    self._line_count += chunk.count(b"\n")
        if (self._byte_count, self._line_count, self._digest.hexdigest()) != extent:
            raise StorageError(_describe_damage(self.path, extent, read_line_sums()))
        self._has_counted_lines = True

    def count_new_lines(self) -> None:
        """Counts the lines after the known part, up to the last whole one.

        Raises StorageError for a line that is not a JSON object.
        """
        self._has_counted_lines = True
        if (log_length := self.length) < self._byte_count:
            raise self._make_change_error(log_length)
        if not log_length:
            return
        with open_file(self.path) as file:
            file.seek(self._byte_count)
            for log_line in read_lines(file):
                if not (log_line.endswith(b"\n") or len(log_line) > MAX_LINE_BYTES):
                    return
                try:
                    record = parse_record(log_line)
                    if self._is_shared:
                        has_valid_checksum(record)
                except ValueError as error:
                    raise StorageError(f"{self.path}, line {self._line_count + 1}: {error}. {_RESTORE}") from error
                self._count_lines(log_line)

    def _count_lines(self, encoded_lines: bytes) -> None:
        """Adds whole lines to the digest and the counts."""
        self._digest.update(encoded_lines)
        lines = encoded_lines.split(b"\n")[:-1]
        self._byte_count += len(encoded_lines)
        self._line_count += len(lines)
        self._new_line_sums += [_hash_line(line) for line in lines]

    def _make_change_error(self, length: int) -> StorageError:
        return StorageError(
            f"{self.path} was changed while the run was going: found {length} bytes, expected {self._byte_count}. "
            "Leave the folder to the run; run the same command again to go on from its last checkpoint."
        )


class Checksums:
    """checksums.jsonl: the checksums of every line of the logs, and of every file written whole.

    The last entry of a file counts. Each record carries a checksum of itself.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.log = CheckedLog(folder / "checksums.jsonl")

    def add_file(self, path: Path, content: bytes | None = None) -> None:
        """Stores the fingerprint of a file that was written; with `content`, it is not read."""
        name = str(path.relative_to(self.folder))
        self._add({"file": name, "is": hash_file(path) if content is None else f"{len(content)}:{checksum(content)}"})

    def add_lines(self, sums_by_log: Mapping[str, Sequence[str]]) -> None:
        """Stores the checksums of new lines, by log."""
        if joined_sums := {log_name: "".join(line_sums) for log_name, line_sums in sums_by_log.items() if line_sums}:
            self._add({"lines": joined_sums})

    def read_files(self) -> dict[str, str]:
        """File → its fingerprint, from the part of checksums.jsonl that was verified."""
        return {record["file"]: record["is"] for record in self.log.records() if "file" in record}

    def read_lines(self, name: str) -> list[str]:
        """The checksums of a log's lines, from the part of checksums.jsonl that was verified."""
        digits_per_line = 2 * _LINE_SUM_BYTES
        all_digits = "".join(record["lines"].get(name, "") for record in self.log.records() if "lines" in record)
        return [all_digits[start : start + digits_per_line] for start in range(0, len(all_digits), digits_per_line)]

    def verify(self, extent: Extent) -> None:
        """Like `CheckedLog.verify`; here the checksum that a record carries shows which line was changed."""
        try:
            self.log.verify(extent)
        except StorageError:
            for line_number, record in enumerate(self.log.read(), 1):
                if record.get(CHECKSUM_KEY) != _hash_line(_encode_unsigned(record)):
                    raise StorageError(f"{self.log.path}, line {line_number}: {_CHANGE_TEXT}. {_RESTORE}") from None
            raise

    def _add(self, record: Mapping[str, Any]) -> None:
        self.log.append([{**record, CHECKSUM_KEY: _hash_line(_encode_unsigned(record))}])


_CHANGE_TEXT = "it is not what the run wrote"
_LOSS_HINT = "Records were lost: restore the file from a copy, or start in a new workdir."


def checksum(content: bytes) -> str:
    """32 hex digits of the content's BLAKE2b."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def hash_file(path: Path) -> str:
    """ "SIZE:CHECKSUM" of a file. Raises OSError, which is a StorageError if the path is not a file."""
    digest, byte_count = hashlib.blake2b(digest_size=16), 0
    with open_file(path) as file:
        for piece in read_pieces(file):
            digest.update(piece)
            byte_count += len(piece)
    return f"{byte_count}:{digest.hexdigest()}"


def add_checksum(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with a checksum of its content added."""
    return {**record, CHECKSUM_KEY: checksum(_encode_unsigned(record))}


def has_valid_checksum(record: Mapping[str, Any]) -> bool:
    """Whether the record carries a checksum. Raises ValueError if its content does not match the checksum."""
    if CHECKSUM_KEY not in record:
        return False
    if record[CHECKSUM_KEY] != checksum(_encode_unsigned(record)):
        raise ValueError("its content is not what the run wrote: its checksum differs")
    return True


def _encode_unsigned(record: Mapping[str, Any]) -> bytes:
    return canonical({name: value for name, value in record.items() if name != CHECKSUM_KEY}).encode()


def _hash_line(line: bytes) -> str:
    return hashlib.blake2b(line, digest_size=_LINE_SUM_BYTES).hexdigest()


def _describe_damage(path: Path, extent: Extent, sums: Sequence[str]) -> str:
    """What is wrong with a log that does not begin with the extent that a checkpoint stores."""
    byte_count, line_count, _ = extent
    if not path.exists():
        return f"{path} is missing; the checkpoint expects {byte_count} bytes. {_LOSS_HINT}"
    previous_line, line_number = b"", 0
    with open_file(path) as file:
        for line_number, line in enumerate(read_lines(file), 1):
            if line_number > line_count:
                break
            if fault := _find_line_fault(line, previous_line, sums[line_number - 1 : line_number], sums[line_number:]):
                return f"{path}, line {line_number}: {fault}. {_RESTORE}"
            previous_line = line
    if (current_bytes := path.stat().st_size) < byte_count:
        return f"{path} holds {current_bytes} bytes; the checkpoint expects {byte_count}. {_LOSS_HINT}"
    return f"{path}, one of lines 1 to {line_count}: {_CHANGE_TEXT}. {_RESTORE}"


def _find_line_fault(line: bytes, previous_line: bytes, stored_sums: Sequence[str], later_sums: Sequence[str]) -> str:
    """What is wrong with a line; empty if nothing is known to be wrong.

    `stored_sums` holds at most the checksum of this line, `later_sums` those of later lines.
    """
    if not line.endswith(b"\n"):
        return "it is cut short"
    line_sum = _hash_line(line[:-1])
    if stored_sums and line_sum == stored_sums[0]:
        return ""
    try:
        parse_record(line)
    except ValueError as error:
        return str(error)
    if line == previous_line:
        return "it repeats the line before"
    if not stored_sums:
        return ""
    return "it belongs further down: lines are missing or in another order" if line_sum in later_sums else _CHANGE_TEXT
