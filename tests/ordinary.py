"""Runs a command as an ordinary user, and on a kernel that lacks what it may lack.

    python tests/ordinary.py [--refuse=unshare,landlock,seccomp] [--root] COMMAND…

Whoever is root becomes user 54,321, to whom the folders on the way to Python and to this checkout are shown even where
they are private to root. `--root` stays root. Everyone else runs the command as they are.
"""

import argparse
import errno
import os
import platform
import resource
import struct
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from environments.worker import kernel, view  # noqa: E402

USER = 54_321
# More than a worker needs, less than would harm the machine.
PROCESSES = 400
_CALLS = {
    "x86_64": {"unshare": 272, "landlock": 444, "seccomp": 317},
    "aarch64": {"unshare": 97, "landlock": 444, "seccomp": 277},
}


def command(words: list[str], *, refuse: str = "", root: bool = False, script: str = __file__) -> list[str]:
    """The command line that runs these words so."""
    return [sys.executable, script, f"--refuse={refuse}", *(["--root"] if root else []), "--", *words]


def _closed(status: os.stat_result) -> bool:
    return status.st_mode & 0o001 == 0 and status.st_uid != USER


def show_private_folders(needed: list[Path]) -> None:
    """In a mount namespace of its own: folders that only root may enter are replaced by what is needed of them."""
    kernel.unshare(kernel.NEWNS)
    kernel.mount("none", "/", None, kernel.REC | kernel.PRIVATE)
    closed = {}
    for path in needed:
        ways = [way for way in (*reversed(path.parents), path) if _closed(way.stat())]
        if ways:
            closed.setdefault(ways[0], []).append(path)
    for folder, paths in closed.items():
        held = [os.open(path, os.O_PATH) for path in paths]
        kernel.mount("tmpfs", str(folder), "tmpfs", kernel.NOSUID, "mode=755")
        for path, descriptor in zip(paths, held, strict=True):
            path.mkdir(parents=True, exist_ok=True)
            kernel.mount(f"/proc/self/fd/{descriptor}", str(path), None, kernel.BIND | kernel.REC)


def refuse_calls(names: list[str]) -> None:
    """The kernel says that it has no such calls, to this process and all that it starts."""
    numbers = _CALLS[platform.machine()]
    code = [(0x20, 0, 0, 0)]
    for name in names:
        code += [(0x15, 0, 1, numbers[name]), (0x06, 0, 0, 0x00050000 | errno.ENOSYS)]
    code.append((0x06, 0, 0, 0x7FFF0000))
    kernel.prctl(kernel.NO_NEW_PRIVS, 1)
    kernel.seccomp(numbers["seccomp"], 1, 0, b"".join(struct.pack("=HBBI", *each) for each in code))


def main() -> None:
    flags = argparse.ArgumentParser()
    flags.add_argument("--refuse", default="")
    flags.add_argument("--root", action="store_true")
    flags.add_argument("command", nargs="+")
    chosen = flags.parse_args()
    if os.geteuid() == 0 and not chosen.root:
        needed = {Path(os.path.realpath(path)) for path in (*view.list_needed_files(), ROOT, os.getcwd())}
        show_private_folders(sorted(needed))
        os.chdir(os.getcwd())
        os.setgroups([])
        os.setresgid(USER, USER, USER)
        os.setresuid(USER, USER, USER)
        resource.setrlimit(resource.RLIMIT_NPROC, (PROCESSES, PROCESSES))
        os.environ |= {"HOME": tempfile.gettempdir(), "USER": "ordinary"}
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    if chosen.refuse:
        refuse_calls(chosen.refuse.split(","))
    os.execvp(chosen.command[0], chosen.command)


if __name__ == "__main__":
    main()
