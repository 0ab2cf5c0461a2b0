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
_CALL_NUMBERS = {
    "x86_64": {"unshare": 272, "landlock": 444, "seccomp": 317},
    "aarch64": {"unshare": 97, "landlock": 444, "seccomp": 277},
}


def command(words: list[str], *, refuse: str = "", root: bool = False, script: str = __file__) -> list[str]:
    """The command line that runs these words so."""
    return [sys.executable, script, f"--refuse={refuse}", *(["--root"] if root else []), "--", *words]


def _is_closed(status: os.stat_result) -> bool:
    return status.st_mode & 0o001 == 0 and status.st_uid != USER


def show_private_folders(needed_paths: list[Path]) -> None:
    """In a mount namespace of its own: folders that only root may enter are replaced by what is needed of them."""
    kernel.unshare(kernel.NEWNS)
    kernel.mount("none", "/", None, kernel.REC | kernel.PRIVATE)
    paths_by_closed_folder = {}
    for path in needed_paths:
        closed_folders = [
            folder_above for folder_above in (*reversed(path.parents), path) if _is_closed(folder_above.stat())
        ]
        if closed_folders:
            paths_by_closed_folder.setdefault(closed_folders[0], []).append(path)
    for folder, paths in paths_by_closed_folder.items():
        descriptors = [os.open(path, os.O_PATH) for path in paths]
        kernel.mount("tmpfs", str(folder), "tmpfs", kernel.NOSUID, "mode=755")
        for path, descriptor in zip(paths, descriptors, strict=True):
            path.mkdir(parents=True, exist_ok=True)
            kernel.mount(f"/proc/self/fd/{descriptor}", str(path), None, kernel.BIND | kernel.REC)


def refuse_calls(call_names: list[str]) -> None:
    """The kernel says that it has no such calls, to this process and all that it starts."""
    numbers = _CALL_NUMBERS[platform.machine()]
    instructions = [(0x20, 0, 0, 0)]
    for call_name in call_names:
        instructions += [(0x15, 0, 1, numbers[call_name]), (0x06, 0, 0, 0x00050000 | errno.ENOSYS)]
    instructions.append((0x06, 0, 0, 0x7FFF0000))
    kernel.prctl(kernel.NO_NEW_PRIVS, 1)
    kernel.seccomp(
        numbers["seccomp"], 1, 0, b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--refuse", default="")
    parser.add_argument("--root", action="store_true")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    if os.geteuid() == 0 and not options.root:
        needed_paths = {Path(os.path.realpath(path)) for path in (*view.list_needed_files(), ROOT, os.getcwd())}
        show_private_folders(sorted(needed_paths))
        os.chdir(os.getcwd())
        os.setgroups([])
        os.setresgid(USER, USER, USER)
        os.setresuid(USER, USER, USER)
        resource.setrlimit(resource.RLIMIT_NPROC, (PROCESSES, PROCESSES))
        os.environ |= {"HOME": tempfile.gettempdir(), "USER": "ordinary"}
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    if options.refuse:
        refuse_calls(options.refuse.split(","))
    os.execvp(options.command[0], options.command)


if __name__ == "__main__":
    main()
