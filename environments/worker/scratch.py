"""Scratch folders for children without a file system of their own, and the bounds on their contents.

No limit of the kernel bounds a whole folder, so the fork server counts and kills a child that holds too much.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterable

from . import kernel
from .bounds import Bounds

_PREFIX = "cojax-worker-"
# The least seconds between two counts, and the least multiple of the time that a count took.
PERIOD, _SHARE = 0.25, 10.0
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def make() -> str:
    """Makes a folder in /tmp for this process and its children; removes those of processes that were killed."""
    for name in os.listdir(tempfile.gettempdir()):
        folder, owner = os.path.join(tempfile.gettempdir(), name), name.removeprefix(_PREFIX).partition("-")[0]
        if name.startswith(_PREFIX) and owner.isdigit() and not os.path.exists(f"/proc/{owner}"):
            with contextlib.suppress(OSError):
                if os.lstat(folder).st_uid == os.geteuid():
                    remove(folder)
    made = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")
    # A child must be able to reach its own folder in it.
    os.chmod(made, 0o711)
    work_in(made)
    return made


def make_own(parent: str, slot: int, user: int) -> str:
    """Makes the folder that the child of that slot may write to; its owner is `user`, or our own user for 0."""
    folder = os.path.join(parent, str(slot))
    os.mkdir(folder, 0o700)
    if user:
        os.chown(folder, user, user)
    return folder


def work_in(folder: str) -> None:
    """Makes this the folder of temporary files from now on."""
    os.environ["TMPDIR"] = os.environ["HOME"] = folder
    tempfile.tempdir = None


def remove(folder: str) -> None:
    """Removes the folder with its contents, whatever modes and depth a child gave it."""
    with contextlib.suppress(OSError):
        _empty(folder)
        os.rmdir(folder)


def clear(parent: str, slot: int) -> int:
    """Frees the folder of that slot. Returns the process that removes the last child's files, or 0.

    It is a process of its own, as a child can leave more files than can be removed while others wait.
    """
    left = os.path.join(parent, str(slot))
    with contextlib.suppress(OSError):
        os.rmdir(left)
    if not os.path.exists(left):
        return 0
    os.rename(left, away := tempfile.mkdtemp(prefix="left-", dir=parent))
    if pid := os.fork():
        return pid
    try:
        kernel.die_with_parent()
        remove(away)
    finally:
        os._exit(0)


def _empty(folder: str) -> None:
    here = os.open(folder, _FOLDER)
    # For each folder on the way down, the folders in it that are left.
    way = [_folders(here)]
    try:
        while True:
            if way[-1]:
                name = way[-1][-1]
                os.chmod(name, 0o700, dir_fd=here)
                step = os.open(name, _FOLDER, dir_fd=here)
                way.append(_folders(step))
            elif len(way) > 1:
                step = os.open("..", _FOLDER, dir_fd=here)
                way.pop()
                os.rmdir(way[-1].pop(), dir_fd=step)
            else:
                return
            os.close(here)
            here = step
    finally:
        os.close(here)


def _folders(here: int) -> list[str]:
    """Removes the files in an open folder; returns the names of its folders."""
    found = []
    with os.scandir(here) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                found.append(entry.name)
            else:
                os.unlink(entry.name, dir_fd=here)
    return found


class Watch:
    """Counts the bytes and files in the children's folders below `parent`, from time to time."""

    def __init__(self, parent: str, bounds: Bounds) -> None:
        self.parent, self.bounds = parent, bounds
        self.due = time.monotonic()

    def over(self, slots: Iterable[int]) -> list[int]:
        """The slots that exceed the bounds on bytes or files. Counting takes at most a tenth of the time."""
        if time.monotonic() < self.due:
            return []
        started = time.monotonic()
        unlinked = _unlinked(self.parent)
        found = [slot for slot in slots if self._is_over(str(slot), unlinked)]
        ended = time.monotonic()
        self.due = ended + max(PERIOD, _SHARE * (ended - started))
        return found

    def _is_over(self, slot: str, unlinked: dict[str, int]) -> bool:
        size, count = unlinked.get(slot, 0), 0
        waiting = [os.path.join(self.parent, slot)]
        while waiting:
            try:
                with os.scandir(waiting.pop()) as entries:
                    for entry in entries:
                        with contextlib.suppress(FileNotFoundError):
                            size += entry.stat(follow_symlinks=False).st_blocks * 512
                        count += 1
                        if count > self.bounds.files or size > self.bounds.scratch:
                            return True
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(entry.path)
            except FileNotFoundError:
                continue
            except OSError:
                # A folder that its owner closed to us, or a path too long to follow: nothing honest makes these.
                return True
        return size > self.bounds.scratch


def _unlinked(parent: str) -> dict[str, int]:
    """Slot → bytes of deleted files that are still open, as far as open files are visible."""
    found: dict[str, dict[tuple[int, int], int]] = {}
    for pid in kernel.descendants_of(os.getpid()):
        with contextlib.suppress(OSError):
            for descriptor in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    path = os.readlink(link := f"/proc/{pid}/fd/{descriptor}")
                    if path.startswith(parent + "/") and path.endswith(" (deleted)"):
                        status = os.stat(link)
                        slot = path.removeprefix(parent + "/").partition("/")[0]
                        found.setdefault(slot, {})[status.st_dev, status.st_ino] = status.st_blocks * 512
    return {slot: sum(sizes.values()) for slot, sizes in found.items()}
