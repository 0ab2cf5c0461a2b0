"""What a child cannot do: Linux namespaces, an unprivileged user and resource limits, each where the kernel allows it.

The fork server first goes where no network is and only system libraries, Python and the environment's own files can be
seen (`enclose`). Each child then gets process ids, scratch files and limits of its own (`separate`, `confine`). Where a
layer cannot be had, the next ones still hold; `Layers` says which do.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = (
    0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
_RDONLY, _NOSUID, _NODEV, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
_DETACH = 2
_PDEATHSIG, _NO_NEW_PRIVS, _SUBREAPER = 1, 38, 36
_CAPABILITY_VERSION = 0x20080522
# Children of root have user ids of their own, in blocks: two fork servers must not share any, as what a dead child left
# is killed by its user id.
_UIDS_FROM, _UID_BLOCK = 1_000_000_000, 4_096
# Where the view of the file system is put together; any folder that none of the files shown lies under.
_PLACES = ("/mnt", "/media", "/srv", "/home", "/opt")
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = ("ld.so.cache", "ld.so.conf", "localtime", "timezone", "passwd", "group", "nsswitch.conf", "alternatives")
_DEVICES = ("null", "zero", "full", "random", "urandom")


@dataclasses.dataclass(frozen=True)
class Bounds:
    """What one episode may take.

    `deadline` is for one call, `service_deadline` for one that concerns the whole environment, `start_deadline` for
    importing and making it, all in seconds. `memory` bounds the address space of each of its processes, `file_size` one
    file, `scratch` all files in /tmp, `output` one reply, in bytes; `processes` counts the child's own. At most
    `children` live at once, no more than 4,096.
    """

    deadline: float = 30.0
    service_deadline: float = 120.0
    start_deadline: float = 120.0
    memory: int = 2 * 2**30
    file_size: int = 64 * 2**20
    scratch: int = 64 * 2**20
    output: int = 8 * 2**20
    processes: int = 16
    children: int = 1_024

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) <= 0:
                raise ValueError(f"bound {field.name} is {getattr(self, field.name)}; expected more than 0")
        if self.children > _UID_BLOCK:
            raise ValueError(f"bound children is {self.children}; expected at most {_UID_BLOCK}")


@dataclasses.dataclass(frozen=True)
class Layers:
    """Which layers hold: no network, a view of the needed files only, process ids of its own, not root.

    `first_uid` is the user id of slot 0 where every child has its own, else 0.
    """

    network: bool = False
    files: bool = False
    processes: bool = False
    user: bool = False
    first_uid: int = 0


def enclose(visible: Iterable[str] | None) -> Layers:
    """Cuts this process, and all it will fork, off the network and from every file but `visible` and the system's.

    None leaves network and files as they are.
    """
    if sys.platform != "linux":
        return Layers(user=os.geteuid() != 0)
    root = os.geteuid() == 0
    owned = root or _succeeds(_into_user_namespace)
    closed = owned and visible is not None
    network = closed and _succeeds(lambda: _unshare(_NEWNET | _NEWIPC | _NEWUTS))
    files = closed and _succeeds(lambda: _unshare(_NEWNS)) and _succeeds(lambda: _show_only(list(visible or ())))
    processes = owned and _possible(lambda: separate(Layers(files=files, processes=True)))
    first = _first_uid() if root else 0
    if first and not _possible(lambda: os.setresuid(first, first, first)):
        first = 0
    if root and not first and _is_host_root():
        raise PermissionError(
            "this is root and can take no other user id, so nothing bounds the processes of a child; "
            "run as an ordinary user, or with the capability CAP_SETUID"
        )
    _prctl(_SUBREAPER, 1)
    return Layers(network, files, processes, user=not root or first > 0, first_uid=first)


def separate(layers: Layers) -> None:
    """Gives the next fork of this process an own process namespace, and an own mount namespace for its scratch."""
    if layers.processes:
        uid, gid = os.geteuid(), os.getegid()
        _unshare(_NEWPID | _NEWIPC | (_NEWNS if layers.files else 0) | (_NEWUSER if uid else 0))
        if uid:
            # Processes are counted per user and namespace: a namespace of its own makes the limit the child's own.
            _map_user(uid, gid)


def confine(bounds: Bounds, layers: Layers, slot: int) -> None:
    """The limits of a child, its scratch folder, and an identity without privileges; ends with its parent."""
    if layers.files and layers.processes:
        if not _succeeds(lambda: _mount("proc", "/proc", "proc", _NOSUID | _NODEV)):
            _mount("tmpfs", "/proc", "tmpfs", _RDONLY)
        _mount("tmpfs", "/tmp", "tmpfs", _NOSUID | _NODEV, f"size={bounds.scratch},mode=1777")
    os.chdir("/tmp")
    for limit, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_AS, bounds.memory),
        (resource.RLIMIT_FSIZE, bounds.file_size),
        (resource.RLIMIT_NOFILE, 256),
    ):
        _limit(limit, value)
    # Without a namespace or a user of its own, the child shares its count with everything else of this user.
    alone = layers.processes or layers.first_uid
    processes = bounds.processes + (0 if alone else _tasks_of(os.geteuid()))
    if layers.first_uid:
        uid = layers.first_uid + slot
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    # After the change of user: the limit does not bind root.
    _limit(resource.RLIMIT_NPROC, processes)
    if sys.platform == "linux":
        _drop_capabilities()
        _prctl(_NO_NEW_PRIVS, 1)
    die_with_parent()


def trial(bounds: Bounds, layers: Layers) -> str:
    """Why a child cannot be confined; empty where it can. Found out by one that does nothing else."""
    reads, writes = os.pipe()
    if not (pid := os.fork()):
        try:
            separate(layers)
            if not (inner := os.fork()):
                confine(bounds, layers, slot=0)
                os._exit(0)
            os.waitpid(inner, 0)
        except BaseException as error:
            os.write(writes, f"{type(error).__name__}: {error}"[:500].encode())
        finally:
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as words:
        reason = words.read()
    os.waitpid(pid, 0)
    return reason


def die_with_parent() -> None:
    """Has the kernel kill this process when its parent ends; a change of user undoes it."""
    if sys.platform == "linux":
        _prctl(_PDEATHSIG, signal.SIGKILL)


def sweep(layers: Layers, slot: int, known: set[int]) -> None:
    """Kills what a dead child left behind where no process namespace did: by its user, or as an adopted orphan."""
    if layers.processes or sys.platform != "linux":
        return
    if layers.first_uid:
        if not (killer := os.fork()):
            uid = layers.first_uid + slot
            with contextlib.suppress(OSError):
                os.setresuid(uid, uid, uid)
                os.kill(-1, signal.SIGKILL)
            os._exit(0)
        os.waitpid(killer, 0)
        return
    while orphans := [pid for pid in _children(os.getpid()) if pid not in known]:
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def needed_files() -> list[str]:
    """Where this interpreter and its packages lie."""
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    return sorted(prefixes | {os.path.realpath(prefix) for prefix in prefixes})


def _show_only(visible: list[str]) -> None:
    """Makes a new root of bind mounts, read-only, and moves into it."""
    shown = sorted({os.path.abspath(path) for path in visible if os.path.exists(path)})
    root = next(place for place in _PLACES if os.path.isdir(place) and not any(_within(p, place) for p in shown))
    _mount("none", "/", None, _REC | _PRIVATE)
    _mount("tmpfs", root, "tmpfs", _NOSUID | _NODEV, "mode=755")
    for path in _SYSTEM:
        if os.path.islink(path):
            os.symlink(os.readlink(path), root + path)
        elif os.path.isdir(path):
            _bind(path, root)
    for path in [f"/etc/{name}" for name in _ETC] + [f"/dev/{name}" for name in _DEVICES]:
        if os.path.exists(path):
            _bind(path, root, read_only=path.startswith("/etc"))
    bound: list[str] = ["/usr"]
    for path in shown:
        if not any(_within(path, other) for other in bound):
            _bind(path, root)
            bound.append(path)
    _bind("/proc", root, read_only=False)
    os.makedirs(root + "/tmp", exist_ok=True)
    os.chmod(root + "/tmp", 0o1777)
    os.chdir(root)
    # Not chroot: whoever is in one may make no user namespace.
    _checked(_LIBC.pivot_root(b".", b"."), "pivot_root")
    _checked(_LIBC.umount2(b".", _DETACH), "umount2")
    os.chdir("/")


def _bind(path: str, root: str, *, read_only: bool = True) -> None:
    target = root + path
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        Path(target).touch()
    _mount(path, target, None, _BIND | _REC)
    if read_only:
        # Flags a parent namespace has set may not be taken off again.
        kept = os.statvfs(target).f_flag & (_NOSUID | _NODEV | 8 | 1024 | 2048)
        _mount("none", target, None, _BIND | _REMOUNT | _RDONLY | kept)


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _into_user_namespace() -> None:
    uid, gid = os.geteuid(), os.getegid()
    _unshare(_NEWUSER)
    _map_user(uid, gid)


def _map_user(uid: int, gid: int) -> None:
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def _possible(action: Callable[[], object]) -> bool:
    """Whether the action would succeed, found out by a child."""
    if not (pid := os.fork()):
        os._exit(0 if _succeeds(action) else 1)
    return os.waitpid(pid, 0)[1] == 0


def _drop_capabilities() -> None:
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    nothing = (ctypes.c_uint32 * 6)()
    _checked(_LIBC.capset(ctypes.byref(header), ctypes.byref(nothing)), "capset")


def _children(parent: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                if int(fields[1]) == parent:
                    found.append(int(entry))
    return found


def _tasks_of(uid: int) -> int:
    """Threads of every process of a user."""
    count = 0
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{entry}").st_uid == uid:
                    count += len(os.listdir(f"/proc/{entry}/task"))
    return count


def _first_uid() -> int:
    """The first of the user ids for this process's children, among those that exist here; 0 where there are too few."""
    ranges = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    inside, _, length = max(ranges, key=lambda found: found[2])
    block = os.getpid() * _UID_BLOCK
    if length > _UIDS_FROM + 2 * _UID_BLOCK:
        return inside + _UIDS_FROM + block % (min(length, 2**32 - 2) - _UIDS_FROM - _UID_BLOCK)
    room = length - 1 - _UID_BLOCK
    return inside + 1 + block % room if room > 0 else 0


def _is_host_root() -> bool:
    """Whether user id 0 is that of the host, whom no process limit binds."""
    ranges = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    return any(inside <= 0 < inside + length and outside - inside == 0 for inside, outside, length in ranges)


def _limit(limit: int, value: int) -> None:
    """Sets a limit, or keeps a stricter one that is there already."""
    hard = resource.getrlimit(limit)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limit, (value, value))


def _unshare(flags: int) -> None:
    _checked(_LIBC.unshare(flags), "unshare")


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    kind_bytes = kind.encode() if kind else None
    result = _LIBC.mount(source.encode(), target.encode(), kind_bytes, ctypes.c_ulong(flags), options.encode())
    _checked(result, f"mount {target}")


def _prctl(option: int, value: int) -> None:
    _checked(_LIBC.prctl(option, ctypes.c_ulong(value), 0, 0, 0), "prctl")


def _checked(result: int, call: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


def _succeeds(action: Callable[[], object]) -> bool:
    try:
        action()
    except (OSError, AttributeError, StopIteration):
        return False
    return True
