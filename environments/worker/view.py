"""The file system that a fork server and its children see: the files they need, all read-only, and scratch files.

The fork server moves into a new root of bind mounts. That root and every mount in it become read-only when it is
complete. A child then mounts scratch files of its own over the one remaining folder.

If that is not possible, a child has its own folder in /tmp. No limit of the kernel bounds a whole folder, so the fork
server counts, and kills a child that holds too much.
"""

import contextlib
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from cojax.host.processes import descendants
from . import kernel
from .bounds import Bounds

# Folders in which the new root can be made: the first one that contains none of the visible files.
_ROOTS = ("/mnt", "/media", "/srv", "/home", "/opt", "/sys")
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = ("ld.so.cache", "ld.so.conf", "localtime", "timezone", "passwd", "group", "nsswitch.conf", "alternatives")
DEVICES = ("null", "zero", "full", "random", "urandom")
# Keeps visible files of /tmp reachable when /tmp is covered.
_KEPT = "/.shown"
# Flags of a mount, NOATIME to RELATIME, as statvfs has them; those set by a parent namespace cannot be removed.
_FLAGS = kernel.NOSUID | kernel.NODEV | kernel.NOEXEC | 1024 | 2048
_PROC = kernel.NOSUID | kernel.NODEV | kernel.NOEXEC | kernel.RDONLY
_ESCAPED = re.compile(r"\\([0-7]{3})")
# The names of scratch folders in /tmp begin with this.
_PREFIX = "cojax-worker-"
# The least seconds between two counts, and the least multiple of the time that a count took.
PERIOD, _SHARE = 0.25, 10.0
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def needed_files() -> list[str]:
    """The folders of this interpreter and its packages."""
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    return sorted(prefixes | {os.path.realpath(prefix) for prefix in prefixes})


def show_only(visible: list[str], hidden: list[str], bounds: Bounds) -> str:
    """Moves into a new root, with empty mounts over hidden folders. Returns the folder for scratch files.

    That folder is /tmp, unless /tmp itself is visible.
    """
    paths = sorted({os.path.abspath(path) for path in visible if os.path.exists(path)})
    if "/" in paths:
        raise ValueError(
            "`visible` holds /, and so every file; expected folders below it: name those that the environment reads"
        )
    scratch = "/scratch" if "/tmp" in paths else "/tmp"
    root = next(top for top in _ROOTS if os.path.isdir(top) and not any(within(path, top) for path in paths))
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
    for path in paths:
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
    new_mounts = [target for number, target in _mounts().items() if number not in before]
    _seal(target for target in new_mounts if target != root + scratch and not within(target, root + "/proc"))
    kernel.pivot_root(root)
    return scratch


def own_mounts(scratch: str, bounds: Bounds, processes: bool) -> None:
    """Mounts, in its own mount namespace, an empty folder for scratch files and its own /proc."""
    if not processes:
        _seal(target for target in _mounts().values() if within(target, "/proc"))
    elif not kernel.succeeds(lambda: kernel.mount("proc", "/proc", "proc", _PROC)):
        kernel.mount("tmpfs", "/proc", "tmpfs", _PROC)
    tmp_mounts = [target for target in _mounts().values() if within(target, _KEPT)] if os.path.isdir(_KEPT) else []
    _mount_scratch(scratch, bounds)
    for path in tmp_mounts:
        # They are read-only already; mounts within one come with it.
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
        flags = os.statvfs(target).f_flag & _FLAGS
        kernel.mount("none", target, None, kernel.BIND | kernel.REMOUNT | kernel.RDONLY | flags)


def _mounts() -> dict[int, str]:
    """The mount points of this process by number, in the order in which they were made."""
    lines = (line.split(" ") for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return {int(fields[0]): _ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), fields[4]) for fields in lines}


def readable(visible: list[str], hidden: list[str]) -> Iterator[str]:
    """The files that a child may read by rule: the system's, and visible ones that are not hidden."""
    yield from filter(os.path.exists, (*_SYSTEM, *(f"/etc/{name}" for name in _ETC), "/proc"))
    yield from _without(sorted({os.path.abspath(path) for path in visible}), hidden)


def _without(paths: list[str], hidden: list[str]) -> Iterator[str]:
    """The paths that exist; a folder that contains a hidden one is replaced by its other entries."""
    for path in paths:
        if any(within(other, path) for other in hidden):
            inside = [] if path in hidden else sorted(os.listdir(path))
            yield from _without([os.path.join(path, name) for name in inside], hidden)
        elif os.path.exists(path) and not any(within(path, other) for other in hidden):
            yield path


def find_private(visible: Iterable[str], *, parents: bool) -> list[str]:
    """The files and folders among these that other users cannot read; with `parents`, also those they cannot reach."""
    paths = []
    for path in map(os.path.realpath, visible):
        mode = os.stat(path).st_mode if os.path.exists(path) else 0o777
        is_private = mode & 0o004 == 0 or (os.path.isdir(path) and mode & 0o001 == 0)
        if is_private or (parents and any(parent.stat().st_mode & 0o001 == 0 for parent in Path(path).parents)):
            paths.append(path)
    return paths


def within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def make_scratch() -> str:
    """Makes a folder in /tmp for this process and its children; removes those of processes that were killed."""
    for name in os.listdir(tempfile.gettempdir()):
        folder, owner = os.path.join(tempfile.gettempdir(), name), name.removeprefix(_PREFIX).partition("-")[0]
        if name.startswith(_PREFIX) and owner.isdigit() and not os.path.exists(f"/proc/{owner}"):
            with contextlib.suppress(OSError):
                if os.lstat(folder).st_uid == os.geteuid():
                    remove(folder)
    scratch = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")
    # A child must be able to reach its own folder in it.
    os.chmod(scratch, 0o711)
    work_in(scratch)
    return scratch


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

    It is a separate process, because a child can leave more files than can be removed while others wait.
    """
    slot_folder = os.path.join(parent, str(slot))
    with contextlib.suppress(OSError):
        os.rmdir(slot_folder)
    if not os.path.exists(slot_folder):
        return 0
    os.rename(slot_folder, away := tempfile.mkdtemp(prefix="left-", dir=parent))
    if pid := os.fork():
        return pid
    try:
        kernel.die_with_parent()
        remove(away)
    finally:
        os._exit(0)


def _empty(folder: str) -> None:
    current = os.open(folder, _FOLDER)
    # For each folder on the way down, the folders in it that are left.
    levels = [_remove_files(current)]
    try:
        while True:
            if levels[-1]:
                name = levels[-1][-1]
                os.chmod(name, 0o700, dir_fd=current)
                next_folder = os.open(name, _FOLDER, dir_fd=current)
                levels.append(_remove_files(next_folder))
            elif len(levels) > 1:
                next_folder = os.open("..", _FOLDER, dir_fd=current)
                levels.pop()
                os.rmdir(levels[-1].pop(), dir_fd=next_folder)
            else:
                return
            os.close(current)
            current = next_folder
    finally:
        os.close(current)


def _remove_files(descriptor: int) -> list[str]:
    """Removes the files in an open folder; returns the names of its folders."""
    names = []
    with os.scandir(descriptor) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                names.append(entry.name)
            else:
                os.unlink(entry.name, dir_fd=descriptor)
    return names


def watch(parent: str, bounds: Bounds) -> Callable[[Iterable[int]], list[int]]:
    """A function: slots → those whose folders below `parent` exceed the bounds. From time to time it counts the bytes
    and files in them, which takes at most a tenth of the time."""
    due = time.monotonic()

    def find_offenders(slots: Iterable[int]) -> list[int]:
        nonlocal due
        if (start := time.monotonic()) < due:
            return []
        deleted_bytes = _count_deleted(parent)
        offenders = [
            slot for slot in slots if _is_over(os.path.join(parent, str(slot)), deleted_bytes.get(str(slot), 0), bounds)
        ]
        end = time.monotonic()
        due = end + max(PERIOD, _SHARE * (end - start))
        return offenders

    return find_offenders


def _is_over(folder: str, size: int, bounds: Bounds) -> bool:
    """Whether the files in a folder exceed the bounds; `size` is a number of bytes to add to theirs."""
    count, waiting = 0, [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):
                        size += entry.stat(follow_symlinks=False).st_blocks * 512
                    count += 1
                    if count > bounds.files or size > bounds.scratch:
                        return True
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except FileNotFoundError:
            continue
        except OSError:
            # A folder that its owner closed to us, or a path too long to follow: nothing honest makes these.
            return True
    return size > bounds.scratch


def _count_deleted(parent: str) -> dict[str, int]:
    """Slot → bytes of deleted files that are still open, as far as open files are visible."""
    slot_files: dict[str, dict[tuple[int, int], int]] = {}
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            for descriptor in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    path = os.readlink(link := f"/proc/{pid}/fd/{descriptor}")
                    if path.startswith(parent + "/") and path.endswith(" (deleted)"):
                        status = os.stat(link)
                        slot = path.removeprefix(parent + "/").partition("/")[0]
                        slot_files.setdefault(slot, {})[status.st_dev, status.st_ino] = status.st_blocks * 512
    return {slot: sum(sizes.values()) for slot, sizes in slot_files.items()}
