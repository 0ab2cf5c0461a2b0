"""Finds leaks: processes, descriptors, temporary files and memory that remain after an operation."""

import contextlib
import ctypes
import dataclasses
import errno
import gc
import os
import stat
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from campaign.cases import Canary, Violation
from cojax.host.processes import adopt_orphans, end_pids, family, list_descendants, read_memory

# Folders in which children may have written.
_SHARED = ("/tmp", "/var/tmp", "/dev/shm")
# Prefixes of the names that this project uses there.
_OURS = ("cojax-", "world-")
# The largest file that is searched for canaries, in bytes: no child may write a larger one (Bounds.file_size).
_SEARCHED = 64 * 2**20
# After so many directory entries the search ends.
_ENTRIES = 5_000_000
# User ids of children under root begin here.
_CHILDREN = 10**9
# Megabytes by which memory may grow, whatever its size: allocators keep memory that they once had.
_SLACK = 64.0
# Bytes of one of Python's small objects, about.
_BLOCK = 64


class _Allocated(ctypes.Structure):
    """The result of the C library's mallinfo2: hblkhd bytes in maps of their own, uordblks in all arenas."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
        )
    ]  # fmt: skip


def memory_in_use() -> float:
    """Megabytes that this process uses; memory that its allocators keep for later is not counted."""
    try:
        ask = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return read_memory(os.getpid(), "Rss")
    ask.restype = _Allocated
    info = ask()
    # Small objects are Python's own to allocate.
    return float(info.hblkhd + info.uordblks + sys.getallocatedblocks() * _BLOCK) / 2**20


def peak(pid: int) -> float:
    """The most megabytes that a process has held."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1_024


def descriptors(pid: int | str = "self") -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def our_paths() -> set[str]:
    """Paths in shared folders that may be ours, by their name or by a user id that only children have."""
    found = set()
    for folder in dict.fromkeys((*_SHARED, tempfile.gettempdir())):
        with contextlib.suppress(OSError):
            for entry in os.scandir(folder):
                with contextlib.suppress(OSError):
                    ours = entry.name.startswith(_OURS) or entry.stat(follow_symlinks=False).st_uid >= _CHILDREN
                    if ours and not _of_another(entry.name):
                        found.add(entry.path)
    return found


def _of_another(name: str) -> bool:
    """Whether the name, as scratch folders' do, holds the id of a live process that does not descend from us."""
    owner = name.removeprefix("cojax-worker-").partition("-")[0]
    return owner.isdigit() and os.path.exists(f"/proc/{owner}") and int(owner) not in family(os.getpid())


def traces(canary: Canary, since: float) -> list[Violation]:
    """A violation for each of `canary_paths`, and one where not all could be searched."""
    found: list[str] = []
    try:
        for path in canary_paths(canary, since):
            found.append(f"{path} holds a canary")
    except OSError as error:
        found.append(f"the search for traces is not complete: {error.filename}: {error.strerror}")
    return [Violation("traces", "episodes", reason) for reason in found]


def canary_paths(canary: Canary, since: float) -> Iterator[str]:
    """Paths that hold a canary in their name, or in contents that changed after the time `since`.

    Searches the temporary folder, and of the shared folders what a child's user may enter. What cannot be searched does
    not count as clean: once the rest is searched, it raises the OSError.
    """
    own = os.path.realpath(tempfile.gettempdir())
    folders = [*reversed(dict.fromkeys(map(os.path.realpath, (own, *_SHARED))))]
    looked, failures = 0, list[OSError]()
    while folders:
        folder = folders.pop()
        if looked > _ENTRIES:
            raise OSError(errno.E2BIG, f"not searched, after {looked:,} files elsewhere", folder)
        for entry in _entries(folder, failures):
            looked += 1
            try:
                about = entry.stat(follow_symlinks=False)
                if canary.mark in entry.name or _holds(entry.path, about, canary, since):
                    yield entry.path
                if entry.path != own and stat.S_ISDIR(about.st_mode) and _may_enter(entry.path, about):
                    folders.append(entry.path)
            except FileNotFoundError:
                continue  # removed meanwhile
            except OSError as error:
                failures.append(error)
    if failures:
        raise failures[0]


def _entries(folder: str, failures: list[OSError]) -> list[os.DirEntry[str]]:
    """What is in a folder; one that cannot be listed is added to the failures, unless it is gone."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except FileNotFoundError:
        return []
    except OSError as error:
        failures.append(error)
        return []


def _may_enter(path: str, about: os.stat_result) -> bool:
    """Whether a child's user may enter the folder: under root one of its own, else the user who runs this.

    An owner may, whatever the mode says: it may change that too. Of another user's folder that can be neither listed
    nor written, nothing is a child's.
    """
    if os.geteuid() == 0:
        return about.st_uid >= _CHILDREN or bool(about.st_mode & stat.S_IXOTH)
    if about.st_uid == os.geteuid():
        return True
    return os.access(path, os.X_OK) and (os.access(path, os.R_OK) or os.access(path, os.W_OK))


def _holds(path: str, about: os.stat_result, canary: Canary, since: float) -> bool:
    """Whether the file changed after `since` (its ctime, which cannot be set back) and holds a canary."""
    mark = canary.mark.encode()
    if not stat.S_ISREG(about.st_mode) or about.st_ctime < since or not len(mark) <= about.st_size <= _SEARCHED:
        return False
    try:
        # What has taken the file's place since is neither followed nor waited for.
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            return mark in file.read(_SEARCHED)
    except PermissionError:
        if about.st_uid == os.geteuid():
            raise
        return False  # of another user, so no child's


@dataclasses.dataclass(frozen=True)
class Resources:
    """The resources in use: ids of descendant processes, open descriptors, paths, megabytes here and in workers."""

    processes: frozenset[int]
    descriptors: int
    worker_descriptors: int
    paths: frozenset[str]
    here: float
    workers: float


def measure(supervisors: Sequence[int] = ()) -> Resources:
    """The resources in use now; of each worker only its supervisor and fork server, not the children."""
    gc.collect()
    standing = [pid for supervisor in supervisors for pid in family(supervisor)[:2]]
    return Resources(
        frozenset(family(os.getpid())),
        descriptors(),
        sum(descriptors(pid) for pid in standing),
        frozenset(our_paths()),
        memory_in_use(),
        sum(read_memory(pid, "Rss") for pid in standing),
    )


def leaked(before: Resources, after: Resources, case: str) -> list[Violation]:
    """A violation for each resource other than memory of which there is more after than before."""
    found = []
    if left := after.processes - before.processes:
        found.append(f"{len(left)} processes stay: {', '.join(map(_named, sorted(left)[:5]))}")
    for name, one, other in (
        ("descriptors here", before.descriptors, after.descriptors),
        ("descriptors of the workers", before.worker_descriptors, after.worker_descriptors),
    ):
        if other > one:
            found.append(f"{name}: {one} → {other}")
    if paths := after.paths - before.paths:
        found.append(f"{len(paths)} files stay: {', '.join(sorted(paths)[:5])}")
    return [Violation("leaked", case, reason) for reason in found]


def memory_growth(before: Resources, after: Resources, case: str) -> list[Violation]:
    """Violations where memory grew by more than a tenth and the slack."""
    pairs = (("MB here", before.here, after.here), ("MB of the workers", before.workers, after.workers))
    return [
        Violation("leaked", case, f"{name}: {one:.0f} → {other:.0f}")
        for name, one, other in pairs
        if other > 1.1 * one + _SLACK
    ]


def wait_until_settled(before: Resources, supervisors: Sequence[int] = (), seconds: float = 10.0) -> Resources:
    """The resources in use as soon as nothing is leaked, or after `seconds`."""
    until = time.monotonic() + seconds
    while True:
        after = measure(supervisors)
        if not leaked(before, after, "") or time.monotonic() > until:
            return after
        time.sleep(0.1)


@contextlib.contextmanager
def ending_descendants() -> Iterator[None]:
    """Makes orphans our children, so that every descendant is found; at the end all new ones are ended."""
    before = list_descendants(os.getpid())
    adopt_orphans()
    try:
        yield
    finally:
        end_pids(lambda: list_descendants(os.getpid()) - before)
        adopt_orphans(False)


def _named(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        words = "ended"
    return f"{pid} ({words[:80].strip()})"
