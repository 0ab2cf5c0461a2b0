"""Files of a run, except its arrays: append-only JSONL logs, files that are written atomically, strict JSON, locks.

Standard library only. A process killed at any moment leaves a readable folder: a log loses at most an incomplete last
line, and every other file is either the old one or the new one.
"""

import contextlib
import dataclasses
import errno
import fcntl
import io
import json
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from cojax.durable import open_own_file, replacing
from cojax.types import parse_json

Record = Mapping[str, Any]
MAX_LINE_BYTES = 2**27  # bytes of a record
MAX_JSON_BYTES = 2**28  # bytes of a file that holds one object
_TAIL_BYTES = 2**16  # bytes
# Name of an error of writing a file → what to do.
_FIXES: Mapping[str, str] = tomllib.loads(Path(__file__).with_name("fixes.toml").read_text("utf-8"))
# The folder of that package, which makes links in it; we neither write nor delete there.
_FOREIGN_FOLDER = "wandb"
# Bytes that are never in a log → their name.
_NAME_BY_BYTES = {
    b"\xef\xbb\xbf": "a byte-order mark",
    b"\r": "a carriage return (CRLF line ends)",
    b"\0": "a NUL byte",
}


class StorageError(OSError):
    """A file cannot be written or read, or is damaged. The message names the path and what to do."""


class CheckpointError(RuntimeError):
    """No checkpoint can be used, or it belongs to another model. The message says which it is and what to do."""


class RunDirectoryError(RuntimeError):
    """The directory cannot be used for this run. The message says why and what to do."""


@dataclasses.dataclass(frozen=True)
class Log:
    """An append-only JSONL file. A checkpoint stores its length in bytes, and resuming truncates it to that length.

    Every append is flushed, and fsynced unless `sync` is False.
    """

    path: Path
    sync: bool = True

    @property
    def length(self) -> int:
        """Bytes; 0 for a log that was never written. Raises StorageError if the path is not a file."""
        if not self.path.exists():
            return 0
        expect_file(self.path)
        return self.path.stat().st_size

    def append(self, records: Iterable[Record]) -> int:
        """Adds one line per record, all or none, and returns the new length in bytes.

        An incomplete last line, left by a killed writer, is removed first. Raises StorageError if writing fails, which
        leaves the log unchanged, and ValueError for a record that is not strict JSON (NaN and infinity are not).
        """
        return self.extend(self.encode(records))

    def encode(self, records: Iterable[Record]) -> bytes:
        """The records as lines. Raises ValueError for one that is not strict JSON."""
        return b"".join(encode_record(record, self.path) for record in records)

    def extend(self, encoded_lines: bytes) -> int:
        """Adds encoded lines, as `append` does."""
        with explain_os_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered: a buffer would try again, on closing, to write what the disk has refused.
            with open(self.path, "a+b", buffering=0, opener=open_own_file) as file:
                line_end = _find_last_line_end(file)
                file.truncate(line_end)
                try:
                    remaining_bytes = memoryview(encoded_lines)
                    while remaining_bytes:
                        remaining_bytes = remaining_bytes[file.write(remaining_bytes) :]
                    if self.sync:
                        os.fsync(file.fileno())
                except OSError:
                    os.truncate(self.path, line_end)
                    raise
        return line_end + len(encoded_lines)

    def truncate(self, length: int) -> None:
        """Cuts the log back to `length` bytes. Raises StorageError if it is shorter: records were lost."""
        current_length = self.length
        if current_length < length:
            raise StorageError(
                f"{self.path} holds {current_length} bytes; the checkpoint expects {length}. "
                "Records were lost: restore the file from a copy, or start in a new workdir."
            )
        if current_length > length:
            with explain_os_errors(self.path), open(self.path, "r+b", opener=open_own_file) as file:
                file.truncate(length)
                os.fsync(file.fileno())

    def read(self) -> Iterator[dict[str, Any]]:
        """The records, oldest first, without an incomplete last line. Raises StorageError for another damaged line."""
        if not self.path.exists():
            return
        with open_file(self.path) as file:
            for line_number, line in enumerate(read_lines(file), 1):
                if not line.endswith(b"\n") and len(line) <= MAX_LINE_BYTES:
                    return
                try:
                    record = parse_record(line)
                except ValueError as error:
                    raise StorageError(
                        f"{self.path}, line {line_number}: {error}; expected one JSON object a line. "
                        "The file was edited or damaged: restore it, or start in a new workdir."
                    ) from error
                yield record


def read_lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a log; one that is too long for `parse_record` comes in pieces, which are too long as well."""
    return iter(lambda: file.readline(MAX_LINE_BYTES + 1), b"")


def parse_record(line: bytes) -> dict[str, Any]:
    """The record of one line of a log. Raises ValueError, which says why, for a line that no log wrote."""
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"it has more than {MAX_LINE_BYTES:,} bytes")
    for foreign_bytes, description in _NAME_BY_BYTES.items():
        if foreign_bytes in line:
            raise ValueError(f"it holds {description}")
    return _parse_object(line)


def open_file(path: Path) -> BinaryIO:
    """Opens a file to read. Every file of a folder that may have come from somebody else is opened here.

    Raises StorageError for a link, a pipe or a folder in its place, and OSError like `open`.
    """
    try:
        return open(path, "rb", opener=open_own_file)
    except OSError:
        expect_no_link(path)
        expect_file(path)
        raise


def read_last_lines(path: Path) -> list[str]:
    """The last lines of a text, within 64 KiB of its end. Raises OSError like `open_file`."""
    with open_file(path) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        return file.read(_TAIL_BYTES).decode(errors="replace").strip().splitlines()


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises OSError like `open_file`, and ValueError, which says why, if it holds none."""
    return _parse_object(read_whole(path), must_be_finite=True)


def read_whole(path: Path) -> bytes:
    """The content of a file. Raises OSError like `open_file`, and ValueError for more than MAX_JSON_BYTES bytes."""
    with open_file(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > MAX_JSON_BYTES:
            raise ValueError(f"it has {size:,} bytes; expected at most {MAX_JSON_BYTES:,}")
        return file.read(size)


def _parse_object(content: bytes, *, must_be_finite: bool = False) -> dict[str, Any]:
    # Episodes hold a float for every token: checking each would double the reading time.
    json_value = parse_json(content.decode(), finite=must_be_finite)
    if not isinstance(json_value, dict):
        raise ValueError(f"it holds {type(json_value).__name__} instead of an object")
    return json_value


def flat(record: Mapping[str, Any], separator: str = ".", prefix: str = "") -> dict[str, Any]:
    """Flattens sections of any depth: joined names → values. An empty section is a value."""
    flat_dict: dict[str, Any] = {}
    for name, value in record.items():
        is_section = isinstance(value, Mapping) and value
        flat_dict |= flat(value, separator, f"{prefix}{name}{separator}") if is_section else {f"{prefix}{name}": value}
    return flat_dict


def expect_file(path: Path) -> None:
    """Raises StorageError if the path is a folder, or anything else but a file. It may be missing."""
    if path.exists() and not path.is_file():
        raise StorageError(f"{path} is not a file. Move it away and restore the file from a copy.")


def expect_no_link(path: Path) -> None:
    """Raises StorageError if the path is a link: writing or deleting through it would hit somebody else's files."""
    if path.is_symlink():
        raise StorageError(
            f"{path} is a link to {os.readlink(path)!r}; expected a file or folder of the directory itself. "
            "Put what it points to in its place, or choose another directory."
        )


def expect_no_links(folder: Path) -> None:
    """Raises StorageError for a link within a folder, at any depth. The folder itself may be one: its user named it."""
    for parent, folder_names, file_names in os.walk(folder):
        for entry_name in (*folder_names, *file_names):
            expect_no_link(Path(parent, entry_name))
        folder_names[:] = [entry_name for entry_name in folder_names if entry_name != _FOREIGN_FOLDER]


def is_number(name: str) -> bool:
    """Whether a name is a step number: digits 0 to 9 alone."""
    return name.isascii() and name.isdigit()


def write_json(path: Path, value: Any) -> None:
    """Writes indented JSON, atomically and durably. Raises StorageError if writing fails."""
    replace_file(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def write_text(path: Path, text: str) -> None:
    """Writes text, atomically and durably. Raises StorageError if writing fails."""
    replace_file(path, text.encode())


def explain(error: OSError, path: Path) -> StorageError:
    """The error of writing a file, with its path and the fix."""
    fix = _FIXES.get(errno.errorcode.get(error.errno or 0, ""), "Check the disk, then run the same command again.")
    return StorageError(error.errno, f"cannot write {path}: {error.strerror or error}. {fix}")


def explain_reading(error: OSError, path: Path) -> StorageError:
    """The error of reading a file, with its path and the fix."""
    fix = "Make it readable, then run the same command again."
    return StorageError(error.errno, f"cannot read {error.filename or path}: {error.strerror or error}. {fix}")


@contextlib.contextmanager
def explain_os_errors(path: Path) -> Iterator[None]:
    """Turns any OSError of writing `path` inside the block into a StorageError that names the fix."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise explain(error, path) from error


def replace_file(path: Path, content: bytes) -> None:
    """Writes `content` to `path`, atomically and durably. Raises StorageError if writing fails."""
    with explain_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(content)


def encode_record(record: Record, path: Path) -> bytes:
    """The record as one line of `path`. Raises ValueError for one that is not strict JSON."""
    try:
        return (json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n").encode()
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: a record is not strict JSON: {error}; convert or leave out the value") from error


def _find_last_line_end(file: io.FileIO) -> int:
    """The number of bytes up to and including the last newline."""
    block_end = file.seek(0, os.SEEK_END)
    while block_end:
        block_start = max(0, block_end - 65536)
        file.seek(block_start)
        newline_offset = file.read(block_end - block_start).rfind(b"\n")
        if newline_offset >= 0:
            return block_start + newline_offset + 1
        block_end = block_start
    return 0


def lock_folder(folder: Path, setting: str, lock_name: str = ".lock") -> TextIO:
    """Makes the folder and locks it until the returned file is closed or the process ends.

    Raises RunDirectoryError, which names the `setting` that chooses the folder, if it cannot be written or is in use.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock_file = open(folder / lock_name, "a", opener=open_own_file)  # noqa: SIM115  the caller closes it
    except OSError as error:
        raise RunDirectoryError(
            f"cannot write {folder}: {error.strerror or error}. Choose another {setting}."
        ) from error
    try:
        fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock_file.close()
        raise RunDirectoryError(
            f"another process is running in {folder}. Wait for it, stop it, or choose another {setting}."
        ) from error
    return lock_file


def list_missing_folders(folder: Path) -> list[Path]:
    """The folder and those above it that do not exist, the deepest first."""
    folder = folder.absolute()
    return [ancestor for ancestor in (folder, *folder.parents) if not ancestor.exists()]


def remove_empty_folders(folders: Iterable[Path]) -> None:
    """Removes those of the folders that are empty. Never raises."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()
