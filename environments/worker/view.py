"""The view of the file system that a fork server and its children have: what they need, and nothing to write to.

The fork server moves into a new root of bind mounts. That root, and every mount in it, is read-only once it is put
together. A child then lays scratch files of its own over the one folder that is left.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from environments.worker import kernel
from environments.worker.bounds import Bounds

# Where the view of the file system is put together; any folder that none of the files shown lies under.
_PLACES = ("/mnt", "/media", "/srv", "/home", "/opt", "/sys")
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = ("ld.so.cache", "ld.so.conf", "localtime", "timezone", "passwd", "group", "nsswitch.conf", "alternatives")
DEVICES = ("null", "zero", "full", "random", "urandom")
# What is shown of /tmp, kept from being covered.
_KEPT = "/.shown"
# Flags of a mount, NOATIME to RELATIME, as statvfs tells them; those a parent namespace has set may not be taken off.
_FLAGS = kernel.NOSUID | kernel.NODEV | kernel.NOEXEC | 1024 | 2048
_PROC = kernel.NOSUID | kernel.NODEV | kernel.NOEXEC | kernel.RDONLY
_ESCAPED = re.compile(r"\\([0-7]{3})")


def needed_files() -> list[str]:
    """Where this interpreter and its packages lie."""
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    return sorted(prefixes | {os.path.realpath(prefix) for prefix in prefixes})


def system_files() -> Iterator[str]:
    """The system's files that whoever runs programs needs."""
    yield from (path for path in (*_SYSTEM, *(f"/etc/{name}" for name in _ETC)) if os.path.exists(path))


def show_only(visible: list[str], hidden: list[str], bounds: Bounds) -> str:
    """Makes the new root and moves into it; what is hidden there is mounted over. Returns the folder for scratch files.

    That is /tmp, unless it is among what is visible.
    """
    shown = sorted({os.path.abspath(path) for path in visible if os.path.exists(path)})
    if "/" in shown:
        raise ValueError(
            "`visible` holds /, and so every file; expected folders below it: name those that the environment reads"
        )
    scratch = "/scratch" if "/tmp" in shown else "/tmp"
    root = next(place for place in _PLACES if os.path.isdir(place) and not any(within(p, place) for p in shown))
    kernel.mount("none", "/", None, kernel.REC | kernel.PRIVATE)
    before = _mounts()
    kernel.mount("tmpfs", root, "tmpfs", kernel.NOSUID | kernel.NODEV, "mode=755,size=4m,nr_inodes=8192")
    os.mkdir(root + scratch)
    _mount_scratch(root + scratch, bounds)
    for path in _SYSTEM:
        if os.path.islink(path):
            os.symlink(os.readlink(path), root + path)
        elif os.path.isdir(path):
            _bind(path, root + path)
    for path in [f"/etc/{name}" for name in _ETC] + [f"/dev/{name}" for name in DEVICES]:
        if os.path.exists(path):
            _bind(path, root + path)
    bound = ["/usr"]
    for path in shown:
        if not any(within(path, other) for other in bound):
            _bind(path, root + path)
            bound.append(path)
    for path in hidden:
        if os.path.isdir(root + os.path.abspath(path)):
            kernel.mount("tmpfs", root + os.path.abspath(path), "tmpfs", kernel.RDONLY | kernel.NODEV, "mode=755")
    for path in bound:
        if within(path, scratch):
            _bind(root + path, root + _KEPT + path)
    _bind("/proc", root + "/proc")
    made = [target for number, target in _mounts().items() if number not in before]
    _seal(target for target in made if target != root + scratch and not within(target, root + "/proc"))
    kernel.pivot_root(root)
    return scratch


def own_mounts(scratch: str, bounds: Bounds, processes: bool) -> None:
    """In a mount namespace of its own: an empty folder for scratch files, and what is known of processes."""
    if not processes:
        _seal(target for target in _mounts().values() if within(target, "/proc"))
    elif not kernel.succeeds(lambda: kernel.mount("proc", "/proc", "proc", _PROC)):
        kernel.mount("tmpfs", "/proc", "tmpfs", _PROC)
    kept = [target for target in _mounts().values() if within(target, _KEPT)] if os.path.isdir(_KEPT) else []
    _mount_scratch(scratch, bounds)
    for path in kept:
        # Read-only as they are; what is mounted in one comes with it.
        if not os.path.exists(path.removeprefix(_KEPT)):
            _bind(path, path.removeprefix(_KEPT))


def _mount_scratch(folder: str, bounds: Bounds) -> None:
    options = f"size={bounds.scratch},nr_inodes={bounds.files},mode=1777"
    kernel.mount("tmpfs", folder, "tmpfs", kernel.NOSUID | kernel.NODEV, options)


def _bind(path: str, target: str) -> None:
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        Path(target).touch()
    kernel.mount(path, target, None, kernel.BIND | kernel.REC)


def _seal(targets: Iterable[str]) -> None:
    """Makes these mounts read-only."""
    for target in targets:
        kept = os.statvfs(target).f_flag & _FLAGS
        kernel.mount("none", target, None, kernel.BIND | kernel.REMOUNT | kernel.RDONLY | kept)


def _mounts() -> dict[int, str]:
    """The mount points of this process by their number, in the order they were made."""
    lines = (line.split(" ") for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return {int(fields[0]): _ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), fields[4]) for fields in lines}


def readable(visible: list[str], hidden: list[str]) -> Iterator[str]:
    """What may be read by rule: the system's files, and those visible that are not hidden."""
    yield from (*system_files(), "/proc")
    yield from _without(sorted({os.path.abspath(path) for path in visible}), hidden)


def _without(paths: list[str], hidden: list[str]) -> Iterator[str]:
    """The paths that exist; a folder with something hidden in it is named by its other entries."""
    for path in paths:
        if any(within(other, path) for other in hidden):
            inside = [] if path in hidden else sorted(os.listdir(path))
            yield from _without([os.path.join(path, name) for name in inside], hidden)
        elif os.path.exists(path) and not any(within(path, other) for other in hidden):
            yield path


def private(visible: Iterable[str], *, way: bool) -> list[str]:
    """Which of these files and folders other users cannot read; `way`: or cannot reach."""
    found = []
    for path in map(os.path.realpath, visible):
        mode = os.stat(path).st_mode if os.path.exists(path) else 0o777
        closed = mode & 0o004 == 0 or (os.path.isdir(path) and mode & 0o001 == 0)
        if closed or (way and any(parent.stat().st_mode & 0o001 == 0 for parent in Path(path).parents)):
            found.append(path)
    return found


def within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
