"""Durable writes, and only to files of our own. Imports no other module of the package.

A folder may have come from somebody else. A link in it would lead a writer to a file elsewhere, and a pipe in place of
a file would block a reader for ever.
"""

import contextlib
import fcntl
import functools
import logging
import os
import re
import secrets
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_LOG = logging.getLogger(__name__)
# What a `make_temporary_name` looks like.
_TEMPORARY_NAME = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")


def open_regular_file(path: str | Path, flags: int) -> int:
    """An `opener` for reading: raises OSError for a pipe, a device or a folder, and never blocks on one."""
    descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is not a regular file: put the file itself in its place")
    return descriptor


def read_pieces(file: BinaryIO) -> Iterator[bytes]:
    """The content of a file, at most one MiB at a time."""
    return iter(lambda: file.read(2**20), b"")


def crc32(file: BinaryIO, earlier_crc: int = 0) -> int:
    """The CRC-32 of a file's content, going on from `earlier_crc`, that of what precedes it."""
    return functools.reduce(lambda crc, piece: zlib.crc32(piece, crc), read_pieces(file), earlier_crc)


def open_own_file(path: str | Path, flags: int) -> int:
    """An `opener` for writing: like `open_regular_file`, but also raises OSError for a link."""
    return open_regular_file(path, flags | os.O_NOFOLLOW)


def make_temporary_name(path: Path) -> Path:
    """A temporary name beside `path` for a file on its way there. No file has it, and nobody can predict it."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")


def sweep(*folders: Path) -> None:
    """Removes the files that killed writers left in these folders: regular ones with a `make_temporary_name`.

    A file that is being written stays. Anything else with such a name stays too, with a warning. Subfolders are left
    alone.
    """
    for path in (path for folder in folders for path in folder.glob(".*.tmp") if _TEMPORARY_NAME.fullmatch(path.name)):
        try:
            with open(path, "r+b", opener=open_own_file) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
        except (FileNotFoundError, BlockingIOError):
            continue  # its writer is done, or at work
        except OSError as error:
            _LOG.warning("%s is not removed (%s): see what it is, and delete it", path, error.strerror or error)


@contextlib.contextmanager
def replacing(path: Path, *, sync: bool = True) -> Iterator[BinaryIO]:
    """A new file that replaces `path` when the block ends, and is removed if the block fails.

    Readers see the old file or the new one. A link at `path` is replaced, and what it points to stays as it is. Raises
    OSError.
    """
    temporary_path = make_temporary_name(path)
    file = open(temporary_path, "xb", opener=open_own_file)  # noqa: SIM115  closed below
    try:
        with file:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until it has its name, see `sweep`
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
            os.replace(temporary_path, path)
    except BaseException:
        temporary_path.unlink(missing_ok=True)
        raise
    if sync:
        sync_folder(path.parent)


def sync_tree(folder: Path) -> None:
    """Makes the files of a folder and their names durable, at any depth. Raises OSError."""
    for path in (*folder.rglob("*"), folder):
        (sync_folder if path.is_dir() else sync_file)(path)


def sync_file(path: Path) -> None:
    """Makes the content of a file durable. Raises OSError."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable: a rename is on disk only once its folder is. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
