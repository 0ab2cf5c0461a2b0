"""Linux system calls that Python lacks, and what the kernel says of users and processes. Raises OSError."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
from pathlib import Path

from environments.worker.bounds import MOST_CHILDREN

_LIBC = ctypes.CDLL(None, use_errno=True)
NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = (
    0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
RDONLY, NOSUID, NODEV, REMOUNT, BIND, REC, PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
_DETACH = 2
PDEATHSIG, NO_NEW_PRIVS, SUBREAPER = 1, 38, 36
_CAPABILITY_VERSION = 0x20080522
# Children of root have user ids of their own, in blocks: two fork servers must not share any, as what a dead child left
# is killed by its user id.
_UIDS_FROM = 1_000_000_000


def map_user(uid: int, gid: int) -> None:
    """In a new user namespace, this user and group stay themselves, and no other exists."""
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def drop_capabilities() -> None:
    """Gives up every capability, for good."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    nothing = (ctypes.c_uint32 * 6)()
    _checked(_LIBC.capset(ctypes.byref(header), ctypes.byref(nothing)), "capset")


def children_of(parent: int) -> list[int]:
    """Process ids of its children, in no order."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                if int(fields[1]) == parent:
                    found.append(int(entry))
    return found


def tasks_of(uid: int) -> int:
    """Threads of every process of a user."""
    count = 0
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{entry}").st_uid == uid:
                    count += len(os.listdir(f"/proc/{entry}/task"))
    return count


def first_uid() -> int:
    """The first of the user ids for this process's children, among those that exist here; 0 where there are too few."""
    ranges = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    inside, _, length = max(ranges, key=lambda found: found[2])
    block = os.getpid() * MOST_CHILDREN
    if length > _UIDS_FROM + 2 * MOST_CHILDREN:
        return inside + _UIDS_FROM + block % (min(length, 2**32 - 2) - _UIDS_FROM - MOST_CHILDREN)
    room = length - 1 - MOST_CHILDREN
    return inside + 1 + block % room if room > 0 else 0


def is_host_root() -> bool:
    """Whether user id 0 is that of the host, whom no process limit binds."""
    ranges = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    return any(inside <= 0 < inside + length and outside - inside == 0 for inside, outside, length in ranges)


def lower_limit(limit: int, value: int) -> None:
    """Sets a limit, or keeps a stricter one that is there already."""
    hard = resource.getrlimit(limit)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limit, (value, value))


def unshare(flags: int) -> None:
    _checked(_LIBC.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    kind_bytes = kind.encode() if kind else None
    result = _LIBC.mount(source.encode(), target.encode(), kind_bytes, ctypes.c_ulong(flags), options.encode())
    _checked(result, f"mount {target}")


def prctl(option: int, value: int) -> None:
    _checked(_LIBC.prctl(option, ctypes.c_ulong(value), 0, 0, 0), "prctl")


def _checked(result: int, call: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


def pivot_root(folder: str) -> None:
    """Makes the folder, a mount point, the root of the file system, and lets go of the old one.

    Not chroot: whoever is in one may make no user namespace.
    """
    os.chdir(folder)
    _checked(_LIBC.pivot_root(b".", b"."), "pivot_root")
    _checked(_LIBC.umount2(b".", _DETACH), "umount2")
    os.chdir("/")
