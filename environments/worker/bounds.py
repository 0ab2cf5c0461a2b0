"""What an episode in a worker may take, and which layers of isolation hold."""

from __future__ import annotations

import dataclasses

# Children of one worker at most: each may have a user id of its own, from one block of so many.
MOST_CHILDREN = 4_096


@dataclasses.dataclass(frozen=True)
class Bounds:
    """What one episode may take.

    `deadline` is for one call, `service_deadline` for one that concerns the whole environment, `start_deadline` for
    importing and making it, all in seconds. `memory` bounds the address space of each of its processes, `file_size` one
    file, `scratch` all files in /tmp, `output` one reply, in bytes; `values` are the JSON values of one reply, keys
    included; `files` counts files and folders in /tmp, `processes` the child's own. At most `children` live at once, no
    more than 4,096.
    """

    deadline: float = 30.0
    service_deadline: float = 120.0
    start_deadline: float = 120.0
    memory: int = 2 * 2**30
    file_size: int = 64 * 2**20
    scratch: int = 64 * 2**20
    files: int = 16_384
    output: int = 8 * 2**20
    values: int = 250_000
    processes: int = 16
    children: int = 1_024

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) <= 0:
                raise ValueError(f"bound {field.name} is {getattr(self, field.name)}; expected more than 0")
        if self.children > MOST_CHILDREN:
            raise ValueError(f"bound children is {self.children}; expected at most {MOST_CHILDREN}")


@dataclasses.dataclass(frozen=True)
class Layers:
    """Which layers hold: no network, a view of the needed files only, process ids of its own, not root.

    `first_uid` is the user id of slot 0 where every child has its own, else 0. Where there is no view of the files,
    `rules` may hold instead: the kernel (Landlock) lets a child open these files alone, and those of its own folder.
    `calls` says whether a filter refuses system calls, among them sockets where `enclosed`; `reads`, whether children
    may read what only the user who started the worker may. `scratch` is the folder of a child's own files, or of those
    of all children where there is no view.
    """

    network: bool = False
    files: bool = False
    processes: bool = False
    user: bool = False
    first_uid: int = 0
    rules: tuple[str, ...] = ()
    enclosed: bool = True
    calls: bool = False
    reads: bool = False
    scratch: str = ""

    def held(self) -> dict[str, bool]:
        """Layer → whether it holds, one way or the other."""
        return {
            "network": self.network or (self.calls and self.enclosed),
            "files": self.files or bool(self.rules),
            "processes": self.processes,
            "user": self.user,
            "calls": self.calls,
        }
