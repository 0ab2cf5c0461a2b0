"""What a run in several processes demands of its settings, and what its parts see of the others: `Together`.

Parameters are read and written in all processes together.
"""

import dataclasses
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

from jax.sharding import Mesh
from ml_collections import ConfigDict

from cojax.distributed.operations import LeadArrayFiles
from cojax.learner.placement import ONE_PROCESS, Hosts, hf_arrays
from cojax.policy.config import ModelConfig
from cojax.policy.pretrained import write_model
from cojax.policy.transformer import Params, initialize
from cojax.rollout.export import load_params, write_weights
from cojax.settings import base
from cojax.storage.checkpoint import ArrayFiles

_LAST_PORT = 65_535


@dataclasses.dataclass(eq=False)
class Together:
    """The processes of a run as process 0 sees them.

    `hosts` compute together, and `array_files` writes the arrays of checkpoints. `on_stop` is called with the number of
    a signal that another process received.
    """

    hosts: Hosts = ONE_PROCESS
    array_files: ArrayFiles | LeadArrayFiles = dataclasses.field(default_factory=ArrayFiles)
    on_stop: Callable[[int], None] = lambda number: None


ALONE = Together()


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


def read_params(together: Together, folder: str, model: ModelConfig, seed: int, mesh: Mesh | None) -> Params:
    """The parameters of a model folder, in all processes; drawn by `seed` where the folder is ""."""
    with together.hosts.operation("load", os.path.abspath(folder) if folder else "", seed, as_text(model)) as finish:
        return finish(load_params(Path(folder), model, mesh) if folder else initialize(model, seed))


def write_params(folder: Path, model: ModelConfig, params: Params, together: Together) -> None:
    """Writes a model folder. Parameters that are spread over processes are gathered array by array."""
    if together is ALONE:
        write_model(folder, model, params)
    else:
        write_weights(folder, model, hf_arrays(model, lambda: params, together.hosts))


def as_text(model: ModelConfig) -> str:
    """A model's shape as one process sends it to another."""
    return json.dumps(dataclasses.asdict(model))
