"""What a run in several processes demands of its settings, and what its parts see of the others: `Together`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ml_collections import ConfigDict

from cojax.distributed.checkpoints import LeadArrayFiles
from cojax.learner.hosts import ONE_PROCESS, Hosts
from cojax.settings import base
from cojax.storage.checkpoint import ArrayFiles

_T = TypeVar("_T")
_LAST_PORT = 65_535


class Together(Protocol):
    """The processes of a run as process 0 sees them."""

    on_stop: Callable[[int], None]

    def run(self, operation: str, compute: Callable[..., _T], *arguments: Any) -> _T:
        """As `Hosts.run`."""

    def hosts(self, learner: str) -> Hosts:
        """The hosts of the learner of that name."""

    @property
    def array_files(self) -> ArrayFiles | LeadArrayFiles:
        """What writes the arrays of checkpoints."""


class Alone:
    """The only process."""

    def __init__(self) -> None:
        self.on_stop: Callable[[int], None] = lambda number: None

    def run(self, operation: str, compute: Callable[..., _T], *arguments: Any) -> _T:
        return compute(*arguments)

    def hosts(self, learner: str) -> Hosts:
        return ONE_PROCESS

    @property
    def array_files(self) -> ArrayFiles:
        return ArrayFiles()


ALONE = Alone()


def is_enabled(config: ConfigDict) -> bool:
    """Whether the run is one of several processes."""
    return bool(config.distributed.enabled or config.distributed.coordinator)


def check(config: ConfigDict) -> None:
    """Raises ValueError for settings of several processes that exclude each other."""
    section = config.distributed
    if section.coordinator and not _is_address(section.coordinator):
        raise ValueError(
            f"distributed.coordinator is {section.coordinator!r}; expected HOST:PORT of process 0, a port from 1 to "
            f"{_LAST_PORT}"
        )
    given = [name for name in ("processes", "process") if section[name] is not None]
    if given and not section.coordinator:
        raise ValueError(
            f"distributed.{given[0]} is {section[given[0]]}, but distributed.coordinator is empty; set it to HOST:PORT "
            "of process 0, or leave the three to what JAX finds, by --config.distributed=true"
        )
    if len(given) == 2 and section.process >= section.processes:
        raise ValueError(
            f"distributed.process is {section.process} of distributed.processes={section.processes}; expected a number "
            f"from 0 to {section.processes - 1}, another one in each process"
        )
    if (section.processes or 1) > 1:
        check_several(config)


def _is_address(text: str) -> bool:
    found = re.fullmatch(r"[^\s/]+:(\d{1,5})", text)
    return found is not None and 1 <= int(found[1]) <= _LAST_PORT


def shared_folders(config: ConfigDict) -> dict[str, Path]:
    """The folders that every process writes to or reads, by the setting that names them."""
    folders = {"workdir": Path(config.workdir)}
    if config.engine.name == "sglang" and config.sglang.folder and config.sglang.sync != "folder":
        folders["sglang.folder"] = Path(config.sglang.folder)
    return folders


def check_several(config: ConfigDict) -> None:
    """Raises ValueError for settings that several processes cannot have."""
    if config.engine.name == "local":
        raise ValueError(
            "engine.name is 'local', which samples on the devices of one process, and the run has several; sample on "
            "servers by --config.engine=sglang"
        )
    if all(size == 1 for size in config.mesh.to_dict().values()):
        raise ValueError(
            "mesh is of one device, and the run has several processes; spread the policy over the devices of all of "
            "them, by --config.mesh.fsdp=-1, say"
        )
    if config.perturbation:
        raise ValueError(
            f"perturbation is {config.perturbation}, which one process alone can do; set it to 0 in several processes"
        )
    if config.model.path and config.warm_start.steps:
        raise ValueError(
            f"warm_start.steps is {config.warm_start.steps} on a model folder, which is taught in one process alone; "
            "teach and export it there, then name the result in --config.model.path with --config.warm_start.steps=0"
        )


def as_of_one(config: ConfigDict) -> ConfigDict:
    """The configuration as a run stores it: without how this start found its processes."""
    config = config.copy_and_resolve_references()
    config.distributed = base.get_config().distributed
    return config
