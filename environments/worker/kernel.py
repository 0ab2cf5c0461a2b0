"""Linux system calls that Python lacks, and facts about users and processes. All raise OSError."""

import contextlib
import ctypes
import os
import resource
import signal
import stat
import struct
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from .bounds import MAX_CHILDREN

_LIBC = ctypes.CDLL(None, use_errno=True)
NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = (
    0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND, REC, PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
_MNT_DETACH = 2
PDEATHSIG, DUMPABLE, KEEP_CAPABILITIES, SUBREAPER, NO_NEW_PRIVS = 1, 4, 8, 36, 38
_CAP_AMBIENT, _AMBIENT_RAISE, _CAP_READ_SEARCH = 47, 2, 2
_CAPABILITY_VERSION = 0x20080522
# Landlock: the numbers of its system calls, and of the rights that each version can forbid. The first rights are to
# read and execute, the others to write; only some apply to a single file.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF, _ASK_VERSION = 444, 445, 446, 1
_READ_RIGHTS = 1 << 0 | 1 << 2 | 1 << 3
_RIGHT_COUNTS_BY_VERSION = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
_FILE_RIGHTS = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15
_NO_TCP, _NO_SIGNALS = 0b11, 0b11
# Children of root have their own user ids, in blocks. Two fork servers must not share any, because the processes of a
# dead child are killed by its user id.
_CHILD_UID_BASE = 1_000_000_000


def drop_capabilities(*, keeps_read: bool = False) -> None:
    """Drops every capability for good; `keeps_read` keeps the one that reads files whatever their mode."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    capability_bits = 1 << _CAP_READ_SEARCH if keeps_read else 0
    capability_sets = (ctypes.c_uint32 * 6)(capability_bits, capability_bits, capability_bits)
    _check(_LIBC.capset(ctypes.byref(header), ctypes.byref(capability_sets)), "capset")
    if keeps_read:
        # Processes that it starts keep it too.
        prctl(_CAP_AMBIENT, _AMBIENT_RAISE, _CAP_READ_SEARCH)


def count_threads(uid: int) -> int:
    """The number of threads in all processes of a user."""
    thread_count = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{pid}").st_uid == uid:
                thread_count += len(os.listdir(f"/proc/{pid}/task"))
    return thread_count


def find_first_uid() -> int:
    """The first user id for this process's children, among the ids that exist here; 0 if there are too few."""
    range_start, _, length = max(_uid_ranges(), key=lambda uid_range: uid_range[2])
    block_start = os.getpid() * MAX_CHILDREN
    if length > _CHILD_UID_BASE + 2 * MAX_CHILDREN:
        return range_start + _CHILD_UID_BASE + block_start % (min(length, 2**32 - 2) - _CHILD_UID_BASE - MAX_CHILDREN)
    start_count = length - 1 - MAX_CHILDREN
    return range_start + 1 + block_start % start_count if start_count > 0 else 0


def is_host_root() -> bool:
    """Whether user id 0 is the host's root, to whom no process limit applies."""
    return any(inside <= 0 < inside + length and outside - inside == 0 for inside, outside, length in _uid_ranges())


def _uid_ranges() -> list[tuple[int, ...]]:
    """(first id here, first id outside, length) of each range of user ids that exists here."""
    return [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]


def lower_resource_limit(resource_limit: int, limit_value: int) -> None:
    """Sets a limit, unless a stricter one is set already."""
    hard_limit = resource.getrlimit(resource_limit)[1]
    limit_value = limit_value if hard_limit == resource.RLIM_INFINITY else min(limit_value, hard_limit)
    resource.setrlimit(resource_limit, (limit_value, limit_value))


def succeeds(action: Callable[[], object]) -> bool:
    try:
        action()
    except (OSError, AttributeError, StopIteration):
        return False
    return True


def possible(action: Callable[[], object]) -> bool:
    """Whether the action succeeds, tried in a child process."""
    if not (child_pid := os.fork()):
        os._exit(0 if succeeds(action) else 1)
    return os.waitpid(child_pid, 0)[1] == 0


def unshare(flags: int) -> None:
    """Makes new namespaces. A user namespace keeps this user and group, and knows no other."""
    uid, gid = os.geteuid(), os.getegid()
    _check(_LIBC.unshare(flags), "unshare")
    if flags & NEWUSER:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def mount(source: str, target: str, filesystem: str | None, flags: int, options: str = "") -> None:
    filesystem_bytes = filesystem.encode() if filesystem else None
    status = _LIBC.mount(source.encode(), target.encode(), filesystem_bytes, ctypes.c_ulong(flags), options.encode())
    _check(status, f"mount {target}")


def prctl(option: int, argument: int, third_argument: int = 0) -> None:
    _check(_LIBC.prctl(option, ctypes.c_ulong(argument), ctypes.c_ulong(third_argument), 0, 0), "prctl")


def seccomp(call_number: int, operation: int, flags: int, program: bytes) -> None:
    """Installs a filter of system calls: instructions of eight bytes. Unknown flags are left out."""
    instructions = ctypes.create_string_buffer(program, len(program))
    length, address = ctypes.c_ushort(len(program) // 8), ctypes.c_void_p(ctypes.addressof(instructions))
    filter_struct = ctypes.create_string_buffer(struct.pack("=H6xQ", length.value, address.value or 0))
    if _LIBC.syscall(call_number, operation, flags, filter_struct) != 0:
        _check(_LIBC.syscall(call_number, operation, 0, filter_struct), "seccomp")


def die_with_parent() -> None:
    """Has the kernel kill this process when its parent ends; a change of user undoes it."""
    if sys.platform == "linux":
        prctl(PDEATHSIG, signal.SIGKILL)


def landlock_version() -> int:
    """The version of Landlock here, 0 if there is none."""
    return max(0, _LIBC.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_ASK_VERSION)))


def landlock(readable_paths: Iterable[str], writable_paths: Iterable[str]) -> None:
    """Forbids this process for good to open anything but these files and the contents of these folders.

    Version 4 also forbids TCP, and version 6 signals and abstract sockets to outside processes. Needs NO_NEW_PRIVS.
    """
    version = landlock_version()
    all_rights = (1 << _RIGHT_COUNTS_BY_VERSION.get(version, 16)) - 1
    attributes = struct.pack("QQQ", all_rights, _NO_TCP, _NO_SIGNALS)[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset_fd = _LIBC.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    _check(min(ruleset_fd, 0), "landlock_create_ruleset")
    try:
        for paths, rights in ((readable_paths, _READ_RIGHTS), (writable_paths, all_rights)):
            for path in paths:
                _allow_path(ruleset_fd, path, rights & all_rights)
        _check(_LIBC.syscall(_RESTRICT_SELF, ctypes.c_int(ruleset_fd), ctypes.c_uint32(0)), "landlock_restrict_self")
    finally:
        os.close(ruleset_fd)


def _allow_path(ruleset: int, path: str, rights: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _FILE_RIGHTS
        rule_struct = struct.pack("=Qi", rights, descriptor)
        status = _LIBC.syscall(_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(1), rule_struct, ctypes.c_uint32(0))
        _check(status, f"landlock_add_rule {path}")
    finally:
        os.close(descriptor)


def _check(status: int, call_name: str) -> None:
    if status != 0:
        error_number = ctypes.get_errno()
        raise OSError(error_number, f"{call_name}: {os.strerror(error_number)}")


def pivot_root(folder: str) -> None:
    """Makes the folder, which is a mount point, the root of the file system, and unmounts the old root.

    It avoids chroot, because a process in a chroot may not make user namespaces.
    """
    os.chdir(folder)
    _check(_LIBC.pivot_root(b".", b"."), "pivot_root")
    _check(_LIBC.umount2(b".", _MNT_DETACH), "umount2")
    os.chdir("/")
