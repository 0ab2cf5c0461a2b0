"""Hostile actions that really run in the process of an episode; each returns a report of what it achieved."""

import contextlib
import ctypes
import json
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

# The most folders looked at, and their depth; folders made, megabytes allocated, processes started: enough to exceed a
# bound that is not enforced, and no more than a machine can stand.
_LOOKED, _DEEP, _FOLDERS, _MEGABYTES, _FORKS = 1_500, 4, 60_000, 700, 200
_NEWUSER, _NEWNS = 0x10000000, 0x00020000
_ADD_KEY = {"x86_64": 248, "aarch64": 217}
# Sockets that stay open; the number of calls to this child so far, `reset` included.
_KEPT: list[Any] = []
CALLS = [0]


def _note(mark: str, word: str) -> str:
    """Leaves the word wherever something can be written; returns every word with the mark that is there already."""
    seen: set[str] = set()
    for folder in _folders():
        with contextlib.suppress(OSError):
            seen.update(name for name in os.listdir(folder) if mark in name)
        with contextlib.suppress(OSError):
            os.close(os.open(os.path.join(folder, word), os.O_CREAT | os.O_WRONLY, 0o666))
    with contextlib.suppress(OSError), open("/proc/net/unix") as file:
        seen.update(line.split("@", 1)[1].strip() for line in file if mark in line)
    with contextlib.suppress(OSError):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind("\0" + word)
        listener.listen()
        _KEPT.append(listener)
    with contextlib.suppress(OSError), open("/proc/keys") as file:
        seen.update(line for line in file if mark in line)
    _key(word)
    seen.update(name for name in _modules(word) if mark in name)
    return f"saw {sorted(seen)}"


def _folders() -> list[str]:
    """Every folder that can be seen, except the kernel's."""
    found = []
    for top, folders, _ in os.walk("/"):
        folders[:] = [name for name in folders if top != "/" or name not in ("proc", "sys")]
        found.append(top)
        if top.count("/") >= _DEEP:
            folders.clear()
        if len(found) >= _LOOKED:
            break
    return found


def _key(word: str) -> None:
    """Adds a key of the user to the kernel; keys outlive processes."""
    number = _ADD_KEY.get(os.uname().machine)
    if number:
        ctypes.CDLL(None).syscall(number, b"user", word.encode(), b"x", ctypes.c_size_t(1), ctypes.c_int(-4))


def _modules(word: str) -> list[str]:
    """The attributes of modules that every child is forked with; leaves the word among them."""
    seen = [name for module in (os, json, sys) for name in vars(module)]
    setattr(os, word, True)
    return seen


def _plant(mark: str, word: str) -> str:
    """Plants a module where a later episode imports from, and moves folders that it needs."""
    for folder in [path for path in sys.path if os.path.isdir(path)]:
        with contextlib.suppress(OSError), open(os.path.join(folder, "sitecustomize.py"), "w") as file:
            file.write(f"raise SystemExit({word!r})")
    for folder in ("/lib64", "/usr", "/etc", "/dev"):
        with contextlib.suppress(OSError):
            os.rename(folder, folder + word)
    return "planted"


def forge(payload: str, ending: str) -> str:
    """Answers the current call before the serving loop can, in the wire's format or nearly so."""
    number = CALLS[0]
    for line in json.loads(payload):
        text = (line if isinstance(line, str) else json.dumps(line)).replace("NUMBER", str(number))
        with contextlib.suppress(OSError):
            _write(text.encode("utf-8", "replace") + b"\n")
    return end(ending)


def _write(content: bytes) -> None:
    """Writes all of the content, however little the socket takes at once."""
    with socket.socket(fileno=os.dup(3)) as wire:
        wire.sendall(content)


def end(ending: str, delay: float = 0.0) -> str:
    """Ends, hangs or breaks this process; after `delay` seconds, when it may have answered already."""
    if delay:
        threading.Timer(delay, end, (ending,)).start()
        return "soon"
    match ending:
        case "exit":
            os._exit(0)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "sleep":
            time.sleep(600)
        case "spin":
            while True:
                with contextlib.suppress(BaseException):
                    while True:
                        pass
        case "close":
            os.close(3)
        case "hang up":
            socket.socket(fileno=os.dup(3)).shutdown(socket.SHUT_WR)
        case "raise":
            raise RuntimeError("as you wished")
        case "leave":
            raise SystemExit(3)
        case "forget":
            raise MemoryError
        case "recur":
            end("recur")
        case "chatter":
            threading.Thread(target=_chatter, daemon=True).start()
    return "did"


def _wait(seconds: float) -> str:
    time.sleep(seconds)
    return "waited"


def _chatter() -> None:
    """Writes replies without end, for all later calls."""
    with contextlib.suppress(OSError):
        while True:
            for number in range(1, 12):
                _write(b'{"n":%d,"value":{"reward":1.0,"checks":[],"messages":[],"ok":true,"done":true}}\n' % number)
            time.sleep(0.001)


def _allocate(way: str) -> str:
    """Allocates megabytes in the given way; returns how many it held at once."""
    held: list[Any] = []
    count = 0
    with contextlib.suppress(OSError, MemoryError):
        while count < _MEGABYTES:
            if way == "memfd":
                held.append(os.memfd_create("x"))
                os.write(held[-1], b"x" * 2**22)
            elif way == "heap":
                held.append(b"x" * 2**22)
            elif way == "files":
                held.append(os.open(f"big{count}", os.O_CREAT | os.O_WRONLY))
                os.write(held[-1], b"x" * 2**22)
            elif way == "sockets":
                held.append(socket.socketpair())
                held[-1][0].setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    while True:
                        held[-1][0].send(b"x" * 65_536)
                count -= 3
            count += 4
    return f"{way}={count}"


def _namespace() -> str:
    """Tries to make a user namespace and to mount memory in it."""
    libc = ctypes.CDLL(None, use_errno=True)
    made = libc.unshare(_NEWUSER | _NEWNS) == 0
    mounted = made and libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, b"") == 0
    return f"namespaces={int(made)} mounts={int(mounted)}"


def _inodes() -> str:
    count = 0
    with contextlib.suppress(OSError):
        while count < _FOLDERS:
            os.mkdir(f"d{count}")
            count += 1
    return f"folders={count}"


def _fork() -> str:
    """Forks as many processes as it can; they stay, each in a session of its own."""
    born = 0
    with contextlib.suppress(OSError):
        while born < _FORKS:
            if os.fork() == 0:
                with contextlib.suppress(BaseException):
                    os.setsid()
                    resource.setrlimit(resource.RLIMIT_CPU, (1, 1))
                    time.sleep(120)
                os._exit(0)
            born += 1
    return f"forks={born}"


ACTIONS: dict[str, Callable[..., str]] = {
    "say": lambda word: f"said {word}",
    "wait": _wait,
    "note": _note,
    "plant": _plant,
    "forge": forge,
    "end": end,
    "allocate": _allocate,
    "namespace": _namespace,
    "inodes": _inodes,
    "fork": _fork,
}
