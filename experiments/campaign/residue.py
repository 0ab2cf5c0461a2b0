"""What is left behind: processes, descriptors, temporary files and memory, before and after."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gc
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from cojax.host.processes import adopt_orphans, descendants, end, family
from experiments.campaign.cases import Canary, Violation

# Where children may have written.
_SHARED = ("/tmp", "/var/tmp", "/dev/shm")
# Names of what this project makes there.
_OURS = ("cojax-", "world-")
# Files whose contents are searched for canaries, in bytes; entries looked at.
_SEARCHED, _ENTRIES = 64 * 2**10, 100_000
# User ids of children under root begin here.
_CHILDREN = 10**9
# Megabytes that memory may grow by whatever its size: allocators keep what they once had.
_SLACK = 64.0


# Bytes of one of Python's small objects, about.
_BLOCK = 64


class _Allocated(ctypes.Structure):
    """What mallinfo2 of the C library tells: hblkhd bytes in maps of their own, uordblks in all arenas."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
        )
    ]  # fmt: skip


def memory(pid: int, field: str) -> float:
    """Megabytes of a process: `Rss`, or `Private_Dirty`, what it shares with no other."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 1_024


def held() -> float:
    """Megabytes that this process has in use; what its allocators keep for later is not counted."""
    try:
        ask = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return memory(os.getpid(), "Rss")
    ask.restype = _Allocated
    told = ask()
    # Small objects are Python's own to allocate.
    return float(told.hblkhd + told.uordblks + sys.getallocatedblocks() * _BLOCK) / 2**20


def peak(pid: int) -> float:
    """Megabytes that a process has held at most."""
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


def strangers() -> set[str]:
    """Paths in shared folders that may be ours: by their name, or by a user id that only children have."""
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
    """Whether the name holds the id of a live process that does not descend from us, as scratch folders do."""
    owner = name.removeprefix("cojax-worker-").partition("-")[0]
    return owner.isdigit() and os.path.exists(f"/proc/{owner}") and int(owner) not in family(os.getpid())


def marks(canary: Canary, since: float) -> list[str]:
    """Paths in shared folders whose name, or whose contents written since then, hold a canary."""
    found: list[str] = []
    looked = 0
    for top in dict.fromkeys((*_SHARED, tempfile.gettempdir())):
        for folder, folders, files in os.walk(top):
            looked += len(files) + len(folders)
            if looked > _ENTRIES:
                return found
            for name in (*folders, *files):
                if canary.mark in name or (name in files and _holds(os.path.join(folder, name), canary, since)):
                    found.append(os.path.join(folder, name))
    return found


def _holds(path: str, canary: Canary, since: float) -> bool:
    with contextlib.suppress(OSError):
        about = os.lstat(path)
        if os.path.isfile(path) and about.st_mtime >= since and about.st_size <= _SEARCHED:
            return canary.mark.encode() in Path(path).read_bytes()
    return False


@dataclasses.dataclass(frozen=True)
class Residue:
    """What there is now: process ids that descend from us, open descriptors, paths, megabytes."""

    processes: frozenset[int]
    descriptors: int
    of_workers: int
    paths: frozenset[str]
    here: float
    workers: float


def measure(supervisors: Sequence[int] = ()) -> Residue:
    """Everything that may be left behind; of the workers only what stands all the time, no children."""
    gc.collect()
    standing = [pid for supervisor in supervisors for pid in family(supervisor)[:2]]
    return Residue(
        frozenset(family(os.getpid())),
        descriptors(),
        sum(descriptors(pid) for pid in standing),
        frozenset(strangers()),
        held(),
        sum(memory(pid, "Rss") for pid in standing),
    )


def grown(before: Residue, after: Residue, case: str) -> list[Violation]:
    """What there is more of, once what is ending had time to."""
    found = []
    if left := after.processes - before.processes:
        found.append(f"{len(left)} processes stay: {', '.join(map(_named, sorted(left)[:5]))}")
    for name, one, other in (
        ("descriptors here", before.descriptors, after.descriptors),
        ("descriptors of the workers", before.of_workers, after.of_workers),
    ):
        if other > one:
            found.append(f"{name}: {one} → {other}")
    if paths := after.paths - before.paths:
        found.append(f"{len(paths)} files stay: {', '.join(sorted(paths)[:5])}")
    return [Violation("leaked", case, reason) for reason in found]


def swollen(before: Residue, after: Residue, case: str) -> list[Violation]:
    """Memory that grew by more than a tenth."""
    pairs = (("MB here", before.here, after.here), ("MB of the workers", before.workers, after.workers))
    return [
        Violation("leaked", case, f"{name}: {one:.0f} → {other:.0f}")
        for name, one, other in pairs
        if other > 1.1 * one + _SLACK
    ]


def settled(before: Residue, supervisors: Sequence[int] = (), seconds: float = 10.0) -> Residue:
    """What there is once it is no more than before, or after so many seconds."""
    until = time.monotonic() + seconds
    while True:
        after = measure(supervisors)
        if not grown(before, after, "") or time.monotonic() > until:
            return after
        time.sleep(0.1)


@contextlib.contextmanager
def adopted() -> Iterator[None]:
    """Orphans become our children, so that whatever descends from us is found; at the end, what is new has ended."""
    before = descendants(os.getpid())
    adopt_orphans()
    try:
        yield
    finally:
        end(lambda: descendants(os.getpid()) - before)
        adopt_orphans(False)


def _named(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        words = "ended"
    return f"{pid} ({words[:80].strip()})"
