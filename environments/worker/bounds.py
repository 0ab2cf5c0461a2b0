"""The limits of an episode in a worker, and the layers of isolation that hold."""

import dataclasses

# The most children of one worker: each may have its own user id, from one block of this size.
MAX_CHILDREN = 4_096


@dataclasses.dataclass(frozen=True)
class Bounds:
    """The limits of one episode.

    In seconds: `deadline` for one call, `service_deadline` for a call that concerns the whole environment,
    `start_deadline` for importing and making it. In bytes: `memory` for the address space of each process, `file_size`
    for one file, `scratch` for all files in /tmp, `output` for one reply. `values` limits the JSON values of one reply,
    keys included; `files` the files and folders in /tmp; `processes` those of the child. At most `children` children
    live at once; the bound itself may not exceed 4,096.
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
        if self.children > MAX_CHILDREN:
            raise ValueError(f"bound children is {self.children}; expected at most {MAX_CHILDREN}")


@dataclasses.dataclass(frozen=True)
class Layers:
    """Which layers of isolation hold.

    `network`: there is no network. `files`: only the needed files are visible. `processes`: other
    processes are not visible. `user`: the child is not root. `first_uid` is the user id of slot 0 if every
    child has its own, else 0. Where `files` does not hold, `readable_paths` may: the kernel (Landlock) then lets
    a child open only these files and those of its own folder. `filters_calls`: a filter refuses system calls, including
    those for sockets if `enclosed`. `reads_private_files`: children may read files that only the user who started
    the worker may read. `scratch` is the folder of a child's own files; where `files` does not hold, the
    folder of all children's.
    """

    network: bool = False
    files: bool = False
    processes: bool = False
    user: bool = False
    first_uid: int = 0
    readable_paths: tuple[str, ...] = ()
    enclosed: bool = True
    filters_calls: bool = False
    reads_private_files: bool = False
    scratch: str = ""

    def status(self) -> dict[str, bool]:
        """Whether each layer holds, by either of its mechanisms."""
        return {
            "network": self.network or (self.filters_calls and self.enclosed),
            "files": self.files or bool(self.readable_paths),
            "processes": self.processes,
            "user": self.user,
            "calls": self.filters_calls,
        }
