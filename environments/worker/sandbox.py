"""What a child cannot do: Linux namespaces, an unprivileged user and resource limits, each where the kernel allows it.

The fork server first goes where no network is and only system libraries, Python and the environment's own files can be
seen (`enclose`). Each child then gets process ids, scratch files and limits of its own (`separate`, `confine`). Where a
layer cannot be had, the next ones still hold; `Layers` says which do. Where files cannot be kept out of sight, Landlock
keeps children from opening them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from environments.worker import kernel
from environments.worker.bounds import Bounds, Layers

# Where the view of the file system is put together; any folder that none of the files shown lies under.
_PLACES = ("/mnt", "/media", "/srv", "/home", "/opt")
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = ("ld.so.cache", "ld.so.conf", "localtime", "timezone", "passwd", "group", "nsswitch.conf", "alternatives")
_DEVICES = ("null", "zero", "full", "random", "urandom")


def enclose(visible: Iterable[str] | None, hidden: Iterable[str] = ()) -> Layers:
    """Cuts this process, and all it will fork, off the network and from every file but `visible` and the system's.

    None leaves network and files as they are. `hidden` folders within the visible ones are empty.
    """
    if sys.platform != "linux":
        return Layers(user=os.geteuid() != 0)
    root = os.geteuid() == 0
    owned = root or _succeeds(_into_user_namespace)
    closed = owned and visible is not None
    network = closed and _succeeds(lambda: kernel.unshare(kernel.NEWNET | kernel.NEWIPC | kernel.NEWUTS))
    files = (
        closed
        and _succeeds(lambda: kernel.unshare(kernel.NEWNS))
        and _succeeds(lambda: _show_only(list(visible or ()), list(hidden)))
    )
    processes = owned and _possible(lambda: separate(Layers(files=files, processes=True)))
    first = kernel.first_uid() if root else 0
    if first and not _possible(lambda: os.setresuid(first, first, first)):
        first = 0
    if root and not first and kernel.is_host_root():
        raise PermissionError(
            "this is root and can take no other user id, so nothing bounds the processes of a child; "
            "run as an ordinary user, or with the capability CAP_SETUID"
        )
    kernel.prctl(kernel.SUBREAPER, 1)
    layers = Layers(network, files, processes, user=not root or first > 0, first_uid=first)
    if visible is None or files or not kernel.landlock_version():
        return layers
    rules = tuple(_readable(list(visible), [os.path.abspath(path) for path in hidden]))
    if not _possible(lambda: _rule(rules, "/tmp")):
        return layers
    return dataclasses.replace(layers, rules=rules, scratch=_own_scratch())


def separate(layers: Layers) -> None:
    """Gives the next fork of this process an own process namespace, and an own mount namespace for its scratch."""
    if layers.processes:
        uid, gid = os.geteuid(), os.getegid()
        kernel.unshare(
            kernel.NEWPID | kernel.NEWIPC | (kernel.NEWNS if layers.files else 0) | (kernel.NEWUSER if uid else 0)
        )
        if uid:
            # Processes are counted per user and namespace: a namespace of its own makes the limit the child's own.
            kernel.map_user(uid, gid)


def confine(bounds: Bounds, layers: Layers, slot: int) -> None:
    """The limits of a child, its scratch folder, and an identity without privileges; ends with its parent."""
    if layers.files and layers.processes:
        if not _succeeds(lambda: kernel.mount("proc", "/proc", "proc", kernel.NOSUID | kernel.NODEV)):
            kernel.mount("tmpfs", "/proc", "tmpfs", kernel.RDONLY)
        kernel.mount("tmpfs", "/tmp", "tmpfs", kernel.NOSUID | kernel.NODEV, f"size={bounds.scratch},mode=1777")
    os.chdir(scratch := _scratch(layers, slot))
    for limit, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_AS, bounds.memory),
        (resource.RLIMIT_FSIZE, bounds.file_size),
        (resource.RLIMIT_NOFILE, 256),
    ):
        kernel.lower_limit(limit, value)
    # Without a namespace or a user of its own, the child shares its count with everything else of this user.
    alone = layers.processes or layers.first_uid
    processes = bounds.processes + (0 if alone else kernel.tasks_of(os.geteuid()))
    if layers.rules:
        # Before the change of user, who may be kept from the way to these files.
        _rule(layers.rules, scratch)
    if layers.first_uid:
        uid = layers.first_uid + slot
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    # After the change of user: the limit does not bind root.
    kernel.lower_limit(resource.RLIMIT_NPROC, processes)
    if sys.platform == "linux":
        kernel.drop_capabilities()
        kernel.prctl(kernel.NO_NEW_PRIVS, 1)
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
    _clear(layers, 0)
    return reason


def die_with_parent() -> None:
    """Has the kernel kill this process when its parent ends; a change of user undoes it."""
    if sys.platform == "linux":
        kernel.prctl(kernel.PDEATHSIG, signal.SIGKILL)


def sweep(layers: Layers, slot: int, known: set[int]) -> None:
    """Kills what a dead child left behind where no process namespace did: by its user, or as an adopted orphan.

    Removes what it wrote where that did not go with it.
    """
    _sweep(layers, slot, known)
    _clear(layers, slot)


def _sweep(layers: Layers, slot: int, known: set[int]) -> None:
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
    while orphans := [pid for pid in kernel.children_of(os.getpid()) if pid not in known]:
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _scratch(layers: Layers, slot: int) -> str:
    """The folder that the child of that slot may write to; made here where it has no /tmp to itself."""
    if not layers.scratch:
        return "/tmp"
    folder = os.path.join(layers.scratch, str(slot))
    os.mkdir(folder, 0o700)
    if layers.first_uid:
        os.chown(folder, layers.first_uid + slot, layers.first_uid + slot)
    _work_in(folder)
    return folder


def _own_scratch() -> str:
    """A folder in /tmp for this process and its children; those of processes that were killed are removed."""
    prefix = "cojax-worker-"
    for name in os.listdir(tempfile.gettempdir()):
        folder, owner = os.path.join(tempfile.gettempdir(), name), name.removeprefix(prefix).partition("-")[0]
        if name.startswith(prefix) and owner.isdigit() and not os.path.exists(f"/proc/{owner}"):
            with contextlib.suppress(OSError):
                if os.lstat(folder).st_uid == os.geteuid():
                    shutil.rmtree(folder, ignore_errors=True)
    made = tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-")
    # A child must be able to pass through to its own folder in it.
    os.chmod(made, 0o711)
    _work_in(made)
    return made


def _work_in(folder: str) -> None:
    os.environ["TMPDIR"] = os.environ["HOME"] = folder
    tempfile.tempdir = None


def leave(layers: Layers) -> None:
    """Removes what `enclose` made, when no child is left."""
    if layers.scratch:
        shutil.rmtree(layers.scratch, ignore_errors=True)


def _clear(layers: Layers, slot: int) -> None:
    if layers.scratch:
        shutil.rmtree(os.path.join(layers.scratch, str(slot)), ignore_errors=True)


def _rule(readable: Iterable[str], scratch: str) -> None:
    """The kernel's rules on files, for good: what may be read, and a folder that may be written to."""
    kernel.prctl(kernel.NO_NEW_PRIVS, 1)
    kernel.landlock(readable, [scratch, *(f"/dev/{name}" for name in _DEVICES if os.path.exists(f"/dev/{name}"))])


def _readable(visible: list[str], hidden: list[str]) -> Iterator[str]:
    """What may be read by rule: the system's files, and those visible that are not hidden."""
    system = [*_SYSTEM, *(f"/etc/{name}" for name in _ETC), "/proc"]
    yield from (path for path in system if os.path.exists(path))
    yield from _without(sorted({os.path.abspath(path) for path in visible}), hidden)


def _without(paths: list[str], hidden: list[str]) -> Iterator[str]:
    """The paths that exist; a folder with something hidden in it is named by its other entries."""
    for path in paths:
        if any(_within(other, path) for other in hidden):
            within = [] if path in hidden else sorted(os.listdir(path))
            yield from _without([os.path.join(path, name) for name in within], hidden)
        elif os.path.exists(path) and not any(_within(path, other) for other in hidden):
            yield path


def needed_files() -> list[str]:
    """Where this interpreter and its packages lie."""
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    return sorted(prefixes | {os.path.realpath(prefix) for prefix in prefixes})


def _show_only(visible: list[str], hidden: list[str]) -> None:
    """Makes a new root of bind mounts, read-only, and moves into it; what is hidden there is mounted over."""
    shown = sorted({os.path.abspath(path) for path in visible if os.path.exists(path)})
    root = next(place for place in _PLACES if os.path.isdir(place) and not any(_within(p, place) for p in shown))
    kernel.mount("none", "/", None, kernel.REC | kernel.PRIVATE)
    kernel.mount("tmpfs", root, "tmpfs", kernel.NOSUID | kernel.NODEV, "mode=755")
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
    for path in hidden:
        if os.path.isdir(root + os.path.abspath(path)):
            kernel.mount("tmpfs", root + os.path.abspath(path), "tmpfs", kernel.RDONLY | kernel.NODEV, "mode=755")
    _bind("/proc", root, read_only=False)
    os.makedirs(root + "/tmp", exist_ok=True)
    os.chmod(root + "/tmp", 0o1777)
    kernel.pivot_root(root)


def _bind(path: str, root: str, *, read_only: bool = True) -> None:
    target = root + path
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        Path(target).touch()
    kernel.mount(path, target, None, kernel.BIND | kernel.REC)
    if read_only:
        # Flags a parent namespace has set may not be taken off again.
        kept = os.statvfs(target).f_flag & (kernel.NOSUID | kernel.NODEV | 8 | 1024 | 2048)
        kernel.mount("none", target, None, kernel.BIND | kernel.REMOUNT | kernel.RDONLY | kept)


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _into_user_namespace() -> None:
    uid, gid = os.geteuid(), os.getegid()
    kernel.unshare(kernel.NEWUSER)
    kernel.map_user(uid, gid)


def _possible(action: Callable[[], object]) -> bool:
    """Whether the action would succeed, found out by a child."""
    if not (pid := os.fork()):
        os._exit(0 if _succeeds(action) else 1)
    return os.waitpid(pid, 0)[1] == 0


def _succeeds(action: Callable[[], object]) -> bool:
    try:
        action()
    except (OSError, AttributeError, StopIteration):
        return False
    return True
