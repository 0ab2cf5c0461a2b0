"""Confines fork servers and children: by Linux namespaces, an unprivileged user, a system call filter and limits.

The fork server first gives up the network and all files except system libraries, Python and the environment's own
(`enclose`). Each child then gets process ids, scratch files and limits of its own (`separate`, `confine`). Where the
system lacks a layer, the others still hold; `Layers` says which do. Where files cannot be hidden, Landlock keeps
children from opening them.
"""

import contextlib
import dataclasses
import os
import resource
import signal
import sys
import time
from collections.abc import Iterable

from cojax.host.processes import list_children
from . import kernel, seccomp, view
from .bounds import Bounds, Layers

# Seconds until the processes of a dead child must be gone.
_SWEEP_TIMEOUT_S = 5.0


def enclose(visible: Iterable[str] | None, hidden_paths: Iterable[str] = (), bounds: Bounds | None = None) -> Layers:
    """Cuts this process and its future forks off the network and all files except `visible` and the system's.

    If `visible` is None, network and files stay as they are. `hidden_paths` folders within visible ones appear empty.
    """
    # The user's umask may keep files from others; children may have another user id.
    os.umask(0o022)
    bounds = bounds or Bounds()
    if sys.platform != "linux":
        return Layers(user=os.geteuid() != 0, scratch=view.make_scratch())
    visible_paths = [os.path.abspath(path) for path in visible or () if os.path.exists(path)]
    is_root = os.geteuid() == 0
    has_capabilities = is_root or kernel.succeeds(lambda: kernel.unshare(kernel.NEWUSER))
    can_cut_off = has_capabilities and visible is not None
    no_network = can_cut_off and kernel.succeeds(lambda: kernel.unshare(kernel.NEWNET | kernel.NEWIPC | kernel.NEWUTS))
    scratch = ""
    if can_cut_off and kernel.succeeds(lambda: kernel.unshare(kernel.NEWNS)):
        with contextlib.suppress(OSError, AttributeError, StopIteration):
            scratch = view.show_only(visible_paths, list(hidden_paths), bounds)
    hides_files = bool(scratch)
    hides_processes = has_capabilities and kernel.possible(lambda: separate(Layers(files=hides_files, processes=True)))
    first_uid = kernel.find_first_uid() if is_root else 0
    if first_uid and not kernel.possible(lambda: os.setresuid(first_uid, first_uid, first_uid)):
        first_uid = 0
    if is_root and not first_uid and kernel.is_host_root():
        raise PermissionError(
            "this is root and can take no other user id, so nothing bounds the processes of a child; "
            "run as an ordinary user, or with the capability CAP_SETUID"
        )
    kernel.prctl(kernel.SUBREAPER, 1)
    is_unprivileged, is_cut_off = not is_root or first_uid > 0, visible is not None
    layers = Layers(no_network, hides_files, hides_processes, is_unprivileged, first_uid=first_uid, enclosed=is_cut_off)
    if not hides_files and is_cut_off and kernel.landlock_version():
        readable_paths = tuple(view.list_readable(visible_paths, [os.path.abspath(path) for path in hidden_paths]))
        if kernel.possible(lambda: _set_file_rules(readable_paths, "/tmp")):
            layers = dataclasses.replace(layers, readable_paths=readable_paths)
    layers = dataclasses.replace(layers, filters_calls=kernel.possible(lambda: _install_call_filter(layers)))
    if layers.filters_calls:
        # Compiled once for all children with process ids of their own.
        seccomp.program(os.uname().machine, *_filter_scope(layers))
    if hides_files:
        view.work_in(scratch)
    layers = dataclasses.replace(layers, scratch=scratch or view.make_scratch())
    return _grant_reading(layers, visible_paths)


def _grant_reading(layers: Layers, visible_paths: list[str]) -> Layers:
    """Lets children with a user id of their own read files of our user, where another layer limits which files."""
    if not layers.first_uid or not (private := view.find_private(visible_paths, checks_parents=not layers.files)):
        return layers
    if layers.filters_calls and (layers.files or layers.readable_paths):
        return dataclasses.replace(layers, reads_private_files=True)
    print(
        f"{private[0]} is private to its owner, so children with a user id of their own cannot read it, and what they "
        "import late fails; make it readable for all (chmod o+rx, its parent folders too), or run as an ordinary user",
        file=sys.stderr,
    )
    return layers


def separate(layers: Layers) -> None:
    """Gives the next fork of this process a process namespace and, for its scratch files, a mount namespace."""
    flags = kernel.NEWNS if layers.files else 0
    if layers.processes:
        # Processes are counted by user and namespace: in its own namespace, a child has the limit to itself.
        flags |= kernel.NEWPID | kernel.NEWIPC | (kernel.NEWUSER if os.geteuid() else 0)
    if flags:
        kernel.unshare(flags)


def confine(bounds: Bounds, layers: Layers, slot: int) -> None:
    """Applies to a child its limits, its scratch folder and an unprivileged user; it ends with its parent."""
    if layers.files:
        view.mount_own(layers.scratch, bounds, layers.processes)
        own_folder = layers.scratch
    else:
        own_folder = os.path.join(layers.scratch, str(slot))
        os.mkdir(own_folder, 0o700)
        if layers.first_uid:
            os.chown(own_folder, layers.first_uid + slot, layers.first_uid + slot)
    view.work_in(own_folder)
    os.chdir(own_folder)
    for resource_limit, limit_value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_AS, bounds.memory),
        (resource.RLIMIT_FSIZE, min(bounds.file_size, bounds.scratch)),
        (resource.RLIMIT_NOFILE, 256),
    ):
        kernel.lower_resource_limit(resource_limit, limit_value)
    if sys.platform == "linux":
        kernel.lower_resource_limit(resource.RLIMIT_MSGQUEUE, 0)
    # Without its own namespace or user, the child's count includes all other processes of this user.
    has_own_count = layers.processes or layers.first_uid
    max_processes = bounds.processes + (0 if has_own_count else kernel.count_threads(os.geteuid()))
    if layers.readable_paths:
        # Before the change of user: the other user may not reach these files.
        _set_file_rules(layers.readable_paths, own_folder)
    if layers.first_uid:
        uid = layers.first_uid + slot
        if layers.reads_private_files:
            kernel.prctl(kernel.KEEP_CAPABILITIES, 1)
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    # After the change of user: the limit does not bind root.
    kernel.lower_resource_limit(resource.RLIMIT_NPROC, max_processes)
    if sys.platform == "linux":
        kernel.drop_capabilities(keeps_read=layers.reads_private_files)
        kernel.prctl(kernel.NO_NEW_PRIVS, 1)
        # Other processes of this user cannot look into the child. Where Landlock ensures that, the fork server can
        # count its files.
        kernel.prctl(kernel.DUMPABLE, 1 if layers.readable_paths else 0)
    kernel.die_with_parent()
    if layers.filters_calls:
        _install_call_filter(layers)


def _install_call_filter(layers: Layers) -> None:
    kernel.prctl(kernel.NO_NEW_PRIVS, 1)
    seccomp.install_filter(*_filter_scope(layers))


def _filter_scope(layers: Layers) -> tuple[bool, bool, bool, int]:
    """How much the filter of a child refuses; see `seccomp.program`."""
    # If only Landlock holds, the files of another child of the same user remain exposed.
    can_chmod = layers.files or layers.first_uid > 0 or not layers.enclosed
    own_pid = 0 if layers.processes else os.getpid()
    return layers.enclosed, layers.processes, can_chmod, own_pid


def try_child(bounds: Bounds, layers: Layers) -> str:
    """Why a child cannot be confined, found by a trial fork; "" if it can."""
    read_end, write_end = os.pipe()
    if not (child_pid := os.fork()):
        try:
            separate(layers)
            if not (inner_pid := os.fork()):
                confine(bounds, layers, slot=0)
                os._exit(0)
            os.waitpid(inner_pid, 0)
        except BaseException as error:
            os.write(write_end, f"{type(error).__name__}: {error}"[:500].encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        obstacle = pipe.read()
    os.waitpid(child_pid, 0)
    if not layers.files:
        view.remove_folder(os.path.join(layers.scratch, "0"))
    return obstacle


def sweep(layers: Layers, slot: int, known_pids: set[int]) -> int:
    """Kills the processes that a dead child left behind, found by its user id or as adopted orphans.

    A process namespace does this itself. Returns the process that removes the files that the child left, or 0.
    """
    _kill_leftovers(layers, slot, known_pids)
    return 0 if layers.files else view.clear_scratch(layers.scratch, slot)


def _kill_leftovers(layers: Layers, slot: int, known_pids: set[int]) -> None:
    if layers.processes or sys.platform != "linux":
        return
    if layers.first_uid:
        if not (killer_pid := os.fork()):
            uid = layers.first_uid + slot
            with contextlib.suppress(OSError):
                os.setresuid(uid, uid, uid)
                os.kill(-1, signal.SIGKILL)
            os._exit(0)
        os.waitpid(killer_pid, 0)
        return
    # All processes of the child are in one group, which is dead, unless it could leave it; then this may fail.
    deadline = time.monotonic() + _SWEEP_TIMEOUT_S
    while orphans := list_children(os.getpid()) - known_pids:
        for orphan_pid in orphans:
            with contextlib.suppress(ProcessLookupError):
                os.kill(orphan_pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(orphan_pid, 0)
        if time.monotonic() > deadline:
            print("processes of a dead child multiply faster than they can be killed", file=sys.stderr)
            return


def leave_scratch(layers: Layers) -> None:
    """Removes the folder that `enclose` made, when no child is left."""
    if not layers.files:
        view.remove_folder(layers.scratch)


def _set_file_rules(readable_paths: Iterable[str], own_folder: str) -> None:
    """Sets the kernel's rules on files, for good: the files to read, and a folder to write to."""
    kernel.prctl(kernel.NO_NEW_PRIVS, 1)
    device_paths = (f"/dev/{device}" for device in view.DEVICES if os.path.exists(f"/dev/{device}"))
    kernel.landlock(readable_paths, [own_folder, *device_paths])
