"""What a hostile child tries in order to leave a trace, to reach others or to take more than it may.

Every deed on a file can be undone and is: where nothing holds it back, nothing is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import fcntl
import importlib
import json
import mmap
import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_LIBC = ctypes.CDLL(None, use_errno=True)
_NEWNS, _NEWUSER = 0x00020000, 0x10000000
# Folders tried in one level of the tree; all of them near its root.
_WIDTH, _NEAR = 4, 3


def _places() -> Iterator[str]:
    """Files and folders of the visible tree, but what is its own and what is known of processes."""
    starts = {"/usr", "/etc", "/dev/shm", "/run", "/tmp", "/var/tmp", os.path.dirname(tempfile.gettempdir())}
    starts |= {str(folder) for path in sys.path if path.startswith("/") for folder in (path, *Path(path).parents)}
    seen_paths: set[str] = set()
    for start in ("/", *sorted(starts)):
        yield from _below(start, 0 if start == "/" else _NEAR, seen_paths)


def _own(folder: str) -> bool:
    """Whether this is the own folder, or one that was made in it: files of /tmp that are visible are mounted there."""
    own_folder = tempfile.gettempdir()
    inside = folder == own_folder or folder.startswith(own_folder + "/")
    return inside and os.stat(folder).st_dev == os.stat(own_folder).st_dev


def _below(folder: str, depth: int, seen_paths: set[str]) -> Iterator[str]:
    if folder in seen_paths or not os.path.exists(folder) or _own(folder):
        return
    seen_paths.add(folder)
    yield folder
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    folders = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    files = [entry.path for entry in entries if not entry.is_dir(follow_symlinks=False)]
    chance = random.Random(folder)
    if depth >= _NEAR:
        folders = chance.sample(folders, min(_WIDTH, len(folders)))
    yield from chance.sample(files, min(_WIDTH, len(files)))
    for subfolder in folders:
        if subfolder not in ("/proc", "/sys"):
            yield from _below(subfolder, depth + 1, seen_paths)


def _marks(path: str, name: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every way to change a file or folder, each undone at once."""
    status = os.lstat(path)

    def create() -> None:
        Path(path, name).touch()
        os.unlink(os.path.join(path, name))

    def make() -> None:
        os.mkdir(os.path.join(path, name))
        os.rmdir(os.path.join(path, name))

    def rename() -> None:
        os.rename(path, path + name)
        os.rename(path + name, path)

    def mode() -> None:
        os.chmod(path, status.st_mode ^ 0o001)
        if os.stat(path).st_mode == status.st_mode:
            raise OSError(errno.EPERM, "nothing was changed")
        os.chmod(path, status.st_mode)

    def times() -> None:
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
        if os.stat(path).st_mtime_ns == status.st_mtime_ns:
            raise OSError(errno.EPERM, "nothing was changed")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    def attribute() -> None:
        os.setxattr(path, f"user.{name}", b"x")
        os.removexattr(path, f"user.{name}")

    def write() -> None:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))

    def link() -> None:
        os.link(path, path + name)
        os.unlink(path + name)

    yield "rename", rename
    if os.path.isdir(path):
        yield from (("create", create), ("make", make))
    elif os.path.isfile(path):
        yield from (("write", write), ("link", link))
    if not os.path.islink(path):
        yield from (("mode", mode), ("times", times), ("attribute", attribute))


def _walk(argument: str) -> str:
    """What could be changed in the visible tree, and in how many places that was tried."""
    successes, attempt_count = [], 0
    for path in _places():
        attempt_count += 1
        with contextlib.suppress(FileNotFoundError):
            for name, change in _marks(path, ".trace"):
                with contextlib.suppress(OSError):
                    change()
                    successes.append(f"{name} {path}")
    return json.dumps({"tried": attempt_count, "done": successes[:20]})


def _plant(argument: str) -> str:
    """Leaves a note wherever one might stay; says where it could, but in its own folder."""
    attempt_by_name: dict[str, Callable[[], Any]] = {
        **{
            folder: lambda folder=folder: Path(folder, argument).write_text(argument)
            for folder in ("/", "/etc", "/dev", "/dev/shm", "/run", "/var/tmp", "/tmp", "/tmp/..", "/proc", "/work")
        },
        "shared memory": lambda: _checked(_LIBC.shmget(0x7ACE, 4096, 0o1666)),
        "message queue": lambda: _checked(_LIBC.msgget(0x7ACE, 0o1666)),
        "keyring": lambda: _checked(
            _LIBC.syscall({"x86_64": 248, "aarch64": 217}[os.uname().machine], b"user", b"trace", b"x", 1, -4)
        ),
        "abstract socket": lambda: socket.socket(socket.AF_UNIX).bind(f"\0{argument}"),
        "abstract datagrams": lambda: _loose().bind(f"\0{argument}"),
        "lock": lambda: fcntl.flock(os.open(socket.__file__, os.O_RDONLY), fcntl.LOCK_EX),
        "library": lambda: os.rename("/lib64", "/lib65"),
        "module": lambda: Path(os.path.dirname(__file__), f"{argument}.py").write_text("NOTE = 1"),
    }
    Path(tempfile.gettempdir(), argument).write_text("in its own folder")
    successes = []
    for name, way in attempt_by_name.items():
        with contextlib.suppress(OSError):
            way()
            successes.append(name)
    return " ".join(name for name in successes if name != tempfile.gettempdir())


def _find(argument: str) -> str:
    """Where the note can be found."""
    places = (tempfile.gettempdir(), "/", "/etc", "/dev", "/dev/shm", "/run", "/var/tmp", "/tmp", "/proc", "/work")
    paths = [folder for folder in places if os.path.exists(os.path.join(folder, argument))]
    with contextlib.suppress(OSError):
        _checked(_LIBC.shmget(0x7ACE, 4096, 0))
        paths.append("shared memory")
    with contextlib.suppress(OSError):
        _loose().sendto(b"x", f"\0{argument}")
        paths.append("abstract datagrams")
    with contextlib.suppress(ImportError):
        importlib.import_module(argument)
        paths.append("module")
    return " ".join(paths)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _loose() -> socket.socket:
    """A socket of datagrams out of a pair, cut from its other end."""
    one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    _checked(_LIBC.connect(one.fileno(), (ctypes.c_uint16 * 8)(0), 16))
    return one


def _reach(argument: str) -> str:
    """Sends to a port by UDP, or to the Unix socket at a path, by every kind of socket."""
    reached_names = []
    attempt_by_name: dict[str, Callable[[], Any]] = {
        "udp": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"udp", ("127.0.0.1", int(argument))),
        "tcp": lambda: socket.create_connection(("127.0.0.1", int(argument)), 2),
        "stream": lambda: socket.socket(socket.AF_UNIX).connect(argument),
        "datagrams": lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"unix", argument),
        "loose": lambda: _loose().sendto(b"loose", argument),
        "netlink": lambda: socket.socket(16, socket.SOCK_RAW, 0).bind((0, 0)),
    }
    for name, way in attempt_by_name.items():
        with contextlib.suppress(OSError, ValueError):
            way()
            reached_names.append(name)
    return " ".join(reached_names)


def _legitimate(argument: str) -> str:
    """What an honest environment does: late imports, a pair of sockets, an event loop, threads, files, a program."""
    import concurrent.futures
    import shutil
    import sqlite3
    import subprocess

    async def wait() -> str:
        return await asyncio.to_thread(lambda: "loop")

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        results = [*pool.map(str, range(2)), asyncio.run(wait())]
    copied = shutil.copy(__file__, tempfile.gettempdir())
    with contextlib.closing(sqlite3.connect(os.path.join(tempfile.gettempdir(), "data.db"))) as base:
        base.execute("create table found (x)")
        base.execute("insert into found values (1)")
        base.commit()
        results.append(str(base.execute("select x from found").fetchall()))
    results.append(subprocess.run(["echo", "program"], capture_output=True, text=True).stdout.strip())
    results.append(importlib.import_module(argument).__name__ if argument else "")
    return " ".join([*results, os.path.basename(copied)])


def _memory_file(argument: str) -> str:
    descriptors = [os.memfd_create(str(number)) for number in range(2)]
    return str(sum(os.write(descriptor, b"x" * 2**20) for descriptor in descriptors))


def _memory_mount(argument: str) -> str:
    """A file system in memory, in a user namespace of its own."""
    _checked(_LIBC.unshare(_NEWUSER | _NEWNS))
    _checked(_LIBC.mount(b"tmpfs", os.fsencode(tempfile.gettempdir()), b"tmpfs", 0, None))
    return "mounted"


def _watching(argument: str) -> str:
    """Watches a visible folder, and has whoever opens a file wait: one of its own, as it owns no other here."""
    own_file = Path(tempfile.gettempdir(), "leased")
    own_file.touch()
    successes = []
    for name, path, command, value in (
        ("notify", os.path.dirname(socket.__file__), fcntl.F_NOTIFY, fcntl.DN_ACCESS | fcntl.DN_MULTISHOT),
        ("lease", own_file, fcntl.F_SETLEASE, fcntl.F_WRLCK),
    ):
        with contextlib.suppress(OSError):
            fcntl.fcntl(os.open(path, os.O_RDONLY), command, value)
            successes.append(name)
    return " ".join(successes)


def _namespace(argument: str) -> str:
    """A user namespace, by each call that makes one."""
    number = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
    results = []
    for call, arguments in ((number, (_NEWUSER | signal.SIGCHLD, 0, 0, 0, 0)), (435, (None, 0))):
        pid = _LIBC.syscall(call, *arguments)
        if pid == 0:
            os._exit(0)
        results.append(errno.errorcode[ctypes.get_errno()] if pid < 0 else "made")
    return " ".join(results)


def _residency(argument: str) -> str:
    """Which pages of a file are in memory, by each call that tells; then what reads without such a call."""
    x86 = os.uname().machine == "x86_64"
    results = []
    for number in (451, 27 if x86 else 232, 187 if x86 else 213, 327 if x86 else 286):
        assert _LIBC.syscall(number, 0, None, 0, None, 0, 0) < 0
        results.append(errno.errorcode[ctypes.get_errno()])
    with open(__file__, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        piece = bytearray(3)
        os.preadv(file.fileno(), [piece], 0)
    return " ".join([*results, piece.decode()])


def _folders(argument: str) -> str:
    """How many folders it can make in its own."""
    folder_count, here = 0, tempfile.mkdtemp()
    try:
        while folder_count < 100_000:
            os.mkdir(os.path.join(here, str(folder_count)))
            folder_count += 1
            # Removing them takes its time: no more than it takes for whoever watches to see it.
            if folder_count % 500 == 0:
                time.sleep(0.2)
    except OSError as error:
        return f"{folder_count} {errno.errorcode[error.errno or 0]}"
    return f"{folder_count} without end"


def _hoard(argument: str) -> str:
    """Fills its own folder with files of one megabyte; `unlinked` takes their names away."""
    descriptors = []
    for number in range(int(os.environ.get("MOST", "200"))):
        path = os.path.join(tempfile.gettempdir(), f"hoard{number}")
        descriptors.append(os.open(path, os.O_CREAT | os.O_WRONLY))
        os.write(descriptors[-1], b"x" * 2**20)
        if argument == "unlinked":
            os.unlink(path)
        time.sleep(0.01)
    time.sleep(5)
    return f"{len(descriptors)} MB"


def _shared(argument: str) -> str:
    """Anonymous memory shared with whatever it starts."""
    return str(len(mmap.mmap(-1, 3 * 2**30)))


def _hop(argument: str) -> str:
    """A process that is never the same: each forks the next and ends."""
    if os.fork() == 0:
        while True:
            with contextlib.suppress(OSError):
                os.setsid()
            with contextlib.suppress(OSError):
                if os.fork():
                    os._exit(0)
    return "hopping"


def _calls(argument: str) -> str:
    """Error of each system call of these numbers."""
    results = []
    for number in json.loads(argument):
        result = _LIBC.syscall(number, -1, 0, 0, 0, 0, 0)
        results.append(errno.errorcode[ctypes.get_errno()] if result < 0 else str(result))
    return " ".join(results)


def _other_architecture(argument: str) -> str:
    """getpid as a 32-bit program asks for it, and as x32."""
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")
    result = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
    return f"{result} {_calls(json.dumps([0x40000000 + 39]))}"


TRESPASSES: dict[str, Callable[[str], Any]] = {
    "walk": _walk,
    "plant": _plant,
    "find": _find,
    "reach": _reach,
    "legitimate": _legitimate,
    "memory_file": _memory_file,
    "memory_mount": _memory_mount,
    "watching": _watching,
    "namespace": _namespace,
    "residency": _residency,
    "folders": _folders,
    "hoard": _hoard,
    "shared": _shared,
    "hop": _hop,
    "calls": _calls,
    "other_architecture": _other_architecture,
    "late": lambda argument: importlib.import_module(argument).__name__,
}
