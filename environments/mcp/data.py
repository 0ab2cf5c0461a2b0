"""Installs the public servers of the table, each in a virtual environment of its own, and makes their start folders."""

import shutil
import subprocess
from collections.abc import Callable

from ..worker.venv import InstallError, install
from .servers import SERVERS, STARTS, Server, start_name

ALL, NONE = "all", "none"
# What --data can be: all servers, one of them, or none, for a server of one's own.
ROOTS = (ALL, *SERVERS, NONE)


def provide(root: str, python: str, say: Callable[[str], None]) -> None:
    """Installs the servers that `root` names. Raises InstallError."""
    for server in SERVERS.values() if root == ALL else [SERVERS[root]] if root in SERVERS else []:
        install(server.home, server.recipe, None, say)
        _fill(server)


def _fill(server: Server) -> None:
    """Makes the start folders anew: a folder is complete once it has its name."""
    part = server.folder.with_name(f"{server.folder.name}.part")
    for folder in (part, server.folder):
        shutil.rmtree(folder, ignore_errors=True)
    try:
        for number in range(STARTS):
            start = part / start_name(number)
            start.mkdir(parents=True)
            server.fill(start, number)
        part.rename(server.folder)
    except (OSError, subprocess.SubprocessError) as error:
        raise InstallError(f"the start folders of {server.name!r} cannot be made: {error}") from error
