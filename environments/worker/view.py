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

from cojax.host.processes import list_descendants
from . import kernel
from .bounds import Bounds

# Folders in which the new root can be made: the first one that contains none of the visible files.
_ROOT_CANDIDATES = ("/mnt", "/media", "/srv", "/home", "/opt", "/sys")
_SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC_NAMES = ("ld.so.cache", "ld.so.conf", "localtime", "timezone", "passwd", "group", "nsswitch.conf", "alternatives")
DEVICES = ("null", "zero", "full", "random", "urandom")
# Keeps visible files of /tmp reachable when /tmp is covered.
_STASH = "/.shown"
# Flags of a mount, NOATIME to RELATIME, as statvfs has them; those set by a parent namespace cannot be removed.
_INHERITED_FLAGS = kernel.NOSUID | kernel.NODEV | kernel.NOEXEC | 1024 | 2048
_PROC_FLAGS = kernel.NOSUID | kernel.NODEV | kernel.NOEXEC | kernel.RDONLY
_OCTAL_ESCAPE = re.compile(r"\\([0-7]{3})")
# The names of scratch folders in /tmp begin with this.
_SCRATCH_PREFIX = "cojax-worker-"
# A count starts COUNT_PERIOD_S seconds after the last one or later, after _COUNT_PERIOD_MULTIPLE times what it took.
COUNT_PERIOD_S, _COUNT_PERIOD_MULTIPLE = 0.25, 10.0
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def list_needed_files() -> list[str]:
    """The folders of this interpreter and its packages."""
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    return sorted(prefixes | {os.path.realpath(prefix) for prefix in prefixes})


def show_only(visible_paths: list[str], hidden_paths: list[str], bounds: Bounds) -> str:
    """Moves into a new root, with empty mounts over hidden folders. Returns the folder for scratch files.

    That folder is /tmp, unless /tmp itself is visible.
    """
    shown_paths = sorted({os.path.abspath(path) for path in visible_paths if os.path.exists(path)})
    if "/" in shown_paths:
        raise ValueError(
            "`visible` holds /, and so every file; expected folders below it: name those that the environment reads"
        )
    scratch = "/scratch" if "/tmp" in shown_paths else "/tmp"
    root = next(
        top for top in _ROOT_CANDIDATES if os.path.isdir(top) and not any(lies_in(path, top) for path in shown_paths)
    )
    kernel.mount("none", "/", None, kernel.REC | kernel.PRIVATE)
    old_mounts = _mounts()
    kernel.mount("tmpfs", root, "tmpfs", kernel.NOSUID | kernel.NODEV, "mode=755,size=4m,nr_inodes=8192")
    os.mkdir(root + scratch)
    _mount_scratch(root + scratch, bounds)
    for path in _SYSTEM_FOLDERS:
        if os.path.islink(path):
            os.symlink(os.readlink(path), root + path)
        elif os.path.isdir(path):
            _bind_mount(path, root + path)
    for path in [f"/etc/{file_name}" for file_name in _ETC_NAMES] + [f"/dev/{file_name}" for file_name in DEVICES]:
        if os.path.exists(path):
            _bind_mount(path, root + path)
    bound_paths = ["/usr"]
    for path in shown_paths:
        if not any(lies_in(path, bound_path) for bound_path in bound_paths):
            _bind_mount(path, root + path)
            bound_paths.append(path)
    for path in hidden_paths:
        if os.path.isdir(root + os.path.abspath(path)):
            kernel.mount("tmpfs", root + os.path.abspath(path), "tmpfs", kernel.RDONLY | kernel.NODEV, "mode=755")
    for path in bound_paths:
        if lies_in(path, scratch):
            _bind_mount(root + path, root + _STASH + path)
    _bind_mount("/proc", root + "/proc")
    new_mounts = [target for mount_number, target in _mounts().items() if mount_number not in old_mounts]
    _seal_mounts(target for target in new_mounts if target != root + scratch and not lies_in(target, root + "/proc"))
    kernel.pivot_root(root)
    return scratch


def mount_own(scratch: str, bounds: Bounds, has_own_processes: bool) -> None:
    """Mounts, in its own mount namespace, an empty folder for scratch files and its own /proc."""
    if not has_own_processes:
        _seal_mounts(target for target in _mounts().values() if lies_in(target, "/proc"))
    elif not kernel.succeeds(lambda: kernel.mount("proc", "/proc", "proc", _PROC_FLAGS)):
        kernel.mount("tmpfs", "/proc", "tmpfs", _PROC_FLAGS)
    tmp_mounts = [target for target in _mounts().values() if lies_in(target, _STASH)] if os.path.isdir(_STASH) else []
    _mount_scratch(scratch, bounds)
    for path in tmp_mounts:
        # They are read-only already; mounts within one come with it.
        if not os.path.exists(path.removeprefix(_STASH)):
            _bind_mount(path, path.removeprefix(_STASH))


def _mount_scratch(folder: str, bounds: Bounds) -> None:
    options = f"size={bounds.scratch},nr_inodes={bounds.files},mode=1777"
    kernel.mount("tmpfs", folder, "tmpfs", kernel.NOSUID | kernel.NODEV, options)


def _bind_mount(path: str, target: str) -> None:
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        Path(target).touch()
    kernel.mount(path, target, None, kernel.BIND | kernel.REC)


def _seal_mounts(mount_points: Iterable[str]) -> None:
    """Makes these mounts read-only."""
    for mount_point in mount_points:
        mount_flags = os.statvfs(mount_point).f_flag & _INHERITED_FLAGS
        kernel.mount("none", mount_point, None, kernel.BIND | kernel.REMOUNT | kernel.RDONLY | mount_flags)


def _mounts() -> dict[int, str]:
    """The mount points of this process by number, in the order in which they were made."""
    lines = (line.split(" ") for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return {int(fields[0]): _OCTAL_ESCAPE.sub(lambda octal: chr(int(octal[1], 8)), fields[4]) for fields in lines}


def list_readable(visible_paths: list[str], hidden_paths: list[str]) -> Iterator[str]:
    """The files that a child may read by rule: the system's, and visible ones that are not hidden."""
    yield from filter(os.path.exists, (*_SYSTEM_FOLDERS, *(f"/etc/{file_name}" for file_name in _ETC_NAMES), "/proc"))
    yield from _list_unhidden(sorted({os.path.abspath(path) for path in visible_paths}), hidden_paths)


def _list_unhidden(paths: list[str], hidden_paths: list[str]) -> Iterator[str]:
    """The paths that exist; a folder that contains a hidden one is replaced by its other entries."""
    for path in paths:
        if any(lies_in(hidden_path, path) for hidden_path in hidden_paths):
            entry_names = [] if path in hidden_paths else sorted(os.listdir(path))
            yield from _list_unhidden([os.path.join(path, entry_name) for entry_name in entry_names], hidden_paths)
        elif os.path.exists(path) and not any(lies_in(path, hidden_path) for hidden_path in hidden_paths):
            yield path


def find_private(paths: Iterable[str], *, checks_parents: bool) -> list[str]:
    """The files and folders among these that other users cannot read; with `checks_parents`, also those they cannot
    reach."""
    private_paths = []
    for path in map(os.path.realpath, paths):
        permissions = os.stat(path).st_mode if os.path.exists(path) else 0o777
        is_private = permissions & 0o004 == 0 or (os.path.isdir(path) and permissions & 0o001 == 0)
        if is_private or (checks_parents and any(parent.stat().st_mode & 0o001 == 0 for parent in Path(path).parents)):
            private_paths.append(path)
    return private_paths


def lies_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def make_scratch() -> str:
    """Makes a folder in /tmp for this process and its children; removes those of processes that were killed."""
    for name in os.listdir(tempfile.gettempdir()):
        folder, pid = os.path.join(tempfile.gettempdir(), name), name.removeprefix(_SCRATCH_PREFIX).partition("-")[0]
        if name.startswith(_SCRATCH_PREFIX) and pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
            with contextlib.suppress(OSError):
                if os.lstat(folder).st_uid == os.geteuid():
                    remove_folder(folder)
    scratch_folder = tempfile.mkdtemp(prefix=f"{_SCRATCH_PREFIX}{os.getpid()}-")
    # A child must be able to reach its own folder in it.
    os.chmod(scratch_folder, 0o711)
    work_in(scratch_folder)
    return scratch_folder


def work_in(folder: str) -> None:
    """Makes this the folder of temporary files from now on."""
    os.environ["TMPDIR"] = os.environ["HOME"] = folder
    tempfile.tempdir = None


def remove_folder(folder: str) -> None:
    """Removes the folder with its contents, whatever modes and depth a child gave it."""
    with contextlib.suppress(OSError):
        _empty_folder(folder)
        os.rmdir(folder)


def clear_scratch(parent: str, slot: int) -> int:
    """Frees the folder of that slot. Returns the process that removes the last child's files, or 0.

    It is a separate process, because a child can leave more files than can be removed while others wait.
    """
    slot_folder = os.path.join(parent, str(slot))
    with contextlib.suppress(OSError):
        os.rmdir(slot_folder)
    if not os.path.exists(slot_folder):
        return 0
    os.rename(slot_folder, moved_folder := tempfile.mkdtemp(prefix="left-", dir=parent))
    if remover_pid := os.fork():
        return remover_pid
    try:
        kernel.die_with_parent()
        remove_folder(moved_folder)
    finally:
        os._exit(0)


def _empty_folder(folder: str) -> None:
    current_descriptor = os.open(folder, _FOLDER_FLAGS)
    # For each folder on the way down, the folders in it that are left.
    remaining_names = [_remove_files(current_descriptor)]
    try:
        while True:
            if remaining_names[-1]:
                folder_name = remaining_names[-1][-1]
                os.chmod(folder_name, 0o700, dir_fd=current_descriptor)
                next_descriptor = os.open(folder_name, _FOLDER_FLAGS, dir_fd=current_descriptor)
                remaining_names.append(_remove_files(next_descriptor))
            elif len(remaining_names) > 1:
                next_descriptor = os.open("..", _FOLDER_FLAGS, dir_fd=current_descriptor)
                remaining_names.pop()
                os.rmdir(remaining_names[-1].pop(), dir_fd=next_descriptor)
            else:
                return
            os.close(current_descriptor)
            current_descriptor = next_descriptor
    finally:
        os.close(current_descriptor)


def _remove_files(descriptor: int) -> list[str]:
    """Removes the files in an open folder; returns the names of its folders."""
    folder_names = []
    with os.scandir(descriptor) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folder_names.append(entry.name)
            else:
                os.unlink(entry.name, dir_fd=descriptor)
    return folder_names


def watch_scratch(parent: str, bounds: Bounds) -> Callable[[Iterable[int]], list[int]]:
    """A function: slots → those whose folders below `parent` exceed the bounds. From time to time it counts the
    bytes and files in them, which takes at most a tenth of the time."""
    next_count_at = time.monotonic()

    def find_offenders(slots: Iterable[int]) -> list[int]:
        nonlocal next_count_at
        if (started_at := time.monotonic()) < next_count_at:
            return []
        deleted_bytes = _count_deleted_bytes(parent)
        offenders = [
            slot for slot in slots if _exceeds(os.path.join(parent, str(slot)), deleted_bytes.get(str(slot), 0), bounds)
        ]
        ended_at = time.monotonic()
        next_count_at = ended_at + max(COUNT_PERIOD_S, _COUNT_PERIOD_MULTIPLE * (ended_at - started_at))
        return offenders

    return find_offenders


def _exceeds(folder: str, used_bytes: int, bounds: Bounds) -> bool:
    """Whether the files in a folder exceed the bounds; `used_bytes` is a number of bytes to add to theirs."""
    file_count, pending_folders = 0, [folder]
    while pending_folders:
        try:
            with os.scandir(pending_folders.pop()) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):
                        used_bytes += entry.stat(follow_symlinks=False).st_blocks * 512
                    file_count += 1
                    if file_count > bounds.files or used_bytes > bounds.scratch:
                        return True
                    if entry.is_dir(follow_symlinks=False):
                        pending_folders.append(entry.path)
        except FileNotFoundError:
            continue
        except OSError:
            # A folder that its owner closed to us, or a path too long to follow: nothing honest makes these.
            return True
    return used_bytes > bounds.scratch


def _count_deleted_bytes(parent: str) -> dict[str, int]:
    """Slot → bytes of deleted files that are still open, as far as open files are visible."""
    sizes_by_slot: dict[str, dict[tuple[int, int], int]] = {}
    for pid in list_descendants(os.getpid()):
        with contextlib.suppress(OSError):
            for descriptor in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    path = os.readlink(descriptor_path := f"/proc/{pid}/fd/{descriptor}")
                    if path.startswith(parent + "/") and path.endswith(" (deleted)"):
                        status = os.stat(descriptor_path)
                        slot = path.removeprefix(parent + "/").partition("/")[0]
                        sizes_by_slot.setdefault(slot, {})[status.st_dev, status.st_ino] = status.st_blocks * 512
    return {slot: sum(file_sizes.values()) for slot, file_sizes in sizes_by_slot.items()}
