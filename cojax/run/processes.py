"""Sets up a command's process, and checks the settings of a run in several processes or on several devices.

`Together` is how the parts of a run see the other processes. All processes read and write parameters together.
"""

import dataclasses
import json
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from ml_collections import ConfigDict

from cojax import warm_start
from cojax.distributed.start import DistributedError
from cojax.durable import open_own_file
from cojax.environment import EngineError, EnvironmentFailure, InstallError
from cojax.learner.placement import ONE_PROCESS, Hosts, gather_arrays
from cojax.learner.rehearsal import DeviceMemoryError
from cojax.learner.update import NonFiniteUpdate
from cojax.policy.attention import KERNEL_BLOCK, KERNELS, tokamax_serves
from cojax.policy.config import ModelConfig
from cojax.policy.pretrained import write_model
from cojax.policy.sharding import list_replicas, make_mesh
from cojax.policy.transformer import Params, initialize
from cojax.rollout.collect import RolloutError
from cojax.rollout.export import load_params, write_weights
from cojax.settings import base
from cojax.settings.base import settings
from cojax.storage.checkpoint import ORBAX_FILES, ArrayFiles
from cojax.storage.files import CheckpointError, RunDirectoryError
from cojax.unicode_forms import plain

LAST_PORT = 65_535
# Errors of a command that say in one line what was found and what to do.
EXPECTED_ERRORS = (
    ValueError, OSError, RunDirectoryError, CheckpointError, RolloutError, NonFiniteUpdate, ModuleNotFoundError,
    EnvironmentFailure, EngineError, InstallError, DeviceMemoryError, DistributedError, MemoryError,
)  # fmt: skip


@dataclasses.dataclass(eq=False)
class Together:
    """The processes of a run as process 0 sees them.

    `hosts` compute together, and `array_files` writes the arrays of checkpoints. `on_stop` is called with the number of
    a signal that another process received.
    """

    hosts: Hosts = ONE_PROCESS
    array_files: ArrayFiles = ORBAX_FILES
    on_stop: Callable[[int], None] = lambda number: None


ALONE = Together()


def is_enabled(config: ConfigDict) -> bool:
    """Whether the run is one of several processes."""
    return bool(config.distributed.enabled or config.distributed.coordinator)


def check_processes(config: ConfigDict) -> None:
    """Raises ValueError for settings of several processes that exclude each other."""
    section = config.distributed
    port_match = re.fullmatch(r"[^\s/]+:(\d{1,5})", section.coordinator)
    if section.coordinator and not (port_match and 1 <= int(port_match[1]) <= LAST_PORT):
        raise ValueError(
            f"distributed.coordinator is {section.coordinator!r}; expected HOST:PORT of process 0, a port from 1 to "
            f"{LAST_PORT}"
        )
    given_names = [setting for setting in ("processes", "process") if section[setting] is not None]
    if given_names and not section.coordinator:
        raise ValueError(
            f"distributed.{given_names[0]} is {section[given_names[0]]}, but distributed.coordinator is empty; set it "
            "to HOST:PORT of process 0, or let JAX find all three, by --config.distributed=true"
        )
    if len(given_names) == 2 and section.process >= section.processes:
        raise ValueError(
            f"distributed.process is {section.process} of distributed.processes={section.processes}; expected a number "
            f"from 0 to {section.processes - 1}, another one in each process"
        )
    if (section.processes or 1) > 1:
        check_several(config)


def list_shared_folders(config: ConfigDict) -> dict[str, Path]:
    """The folders that every process writes to or reads, by the setting that names them."""
    folder_by_setting = {"workdir": Path(config.workdir)}
    if config.engine.name == "sglang" and config.sglang.folder and config.sglang.sync != "folder":
        folder_by_setting["sglang.folder"] = Path(config.sglang.folder)
    return folder_by_setting


def check_several(config: ConfigDict) -> None:
    """Raises ValueError for settings that several processes cannot have."""
    if config.engine.name == "local":
        _check_local(config)
    if all(size == 1 for size in config.mesh.to_dict().values()):
        raise ValueError(
            "mesh has one device, but the run has several processes; spread the policy over the devices of all of "
            "them, for example by --config.mesh.fsdp=-1"
        )
    if config.perturbation:
        raise ValueError(f"perturbation is {config.perturbation}, which only a single process can apply; set it to 0")
    if config.model.path and config.warm_start.steps:
        raise ValueError(
            f"warm_start.steps is {config.warm_start.steps} on a model folder, which only a single process can teach; "
            "teach and export it there, then name the result in --config.model.path with --config.warm_start.steps=0"
        )


def _check_local(config: ConfigDict) -> None:
    """Raises ValueError for settings with which several processes cannot sample on their own devices."""
    for setting, value, expected, reason in (
        ("staleness", config.staleness, 0, "they sample and update in turn"),
        ("engine.lanes", config.engine.lanes, 1, "each replica (data × fsdp × context) has one lane"),
        ("learner.routes", config.learner.routes, "own", "they do not report which experts tokens went through"),
    ):
        if value != expected:
            raise ValueError(
                f"{setting} is {value!r}, but several processes sample by engine.name=local: {reason}; set "
                f"--config.{setting}={expected}, or sample on servers by --config.engine=sglang"
            )


def drop_distributed(config: ConfigDict) -> ConfigDict:
    """Returns the configuration as a run stores it, without the settings by which this start found its processes."""
    config = config.copy_and_resolve_references()
    config.distributed = base.get_config().distributed
    return config


def read_params(together: Together, folder: str, model: ModelConfig, seed: int, mesh: Mesh | None) -> Params:
    """Reads the parameters of a model folder in all processes; draws them by `seed` if the folder is ""."""
    with together.hosts.operation("load", os.path.abspath(folder) if folder else "", seed, as_text(model)) as finish:
        return finish(load_params(Path(folder), model, mesh) if folder else initialize(model, seed))


def write_params(folder: Path, model: ModelConfig, params: Params, together: Together) -> None:
    """Writes a model folder. Parameters that are spread over processes are gathered array by array."""
    if together is ALONE:
        write_model(folder, model, params)
    else:
        write_weights(folder, model, gather_arrays(model, lambda: params, together.hosts))


def make_outlines(tree: Any) -> Any:
    """Replaces arrays by their shapes, dtypes and shardings."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), tree)


def as_text(model: ModelConfig) -> str:
    """A model's shape as one process sends it to another."""
    return json.dumps(dataclasses.asdict(model))


class _PlainFormatter(logging.Formatter):
    """Formats a line without control characters, because warnings quote texts of models and environments."""

    def format(self, record: logging.LogRecord) -> str:
        return plain(super().format(record))


def keep_programs() -> None:
    """Keeps compiled programs on disk: a second start takes seconds where the first took half a minute."""
    jax.config.update("jax_compilation_cache_dir", str(warm_start.find_cache() / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def log_to(path: Path) -> None:
    """Logs everything to the file at `path`, and warnings to the terminal as well."""
    file_handler = logging.FileHandler(path, delay=True)
    file_handler.setStream(open(path, "a", opener=open_own_file))  # noqa: SIM115  the handler closes it
    file_handler.setFormatter(_PlainFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root_logger = logging.getLogger()
    for console_handler in list(root_logger.handlers):
        console_handler.setLevel(logging.WARNING)
        console_handler.setFormatter(_PlainFormatter("warning: %(message)s"))
    root_logger.addHandler(file_handler)
    logging.getLogger("cojax").setLevel(logging.INFO)


def describe_error(error: BaseException) -> str:
    """Words an error for the user of a command, as an error of memory may have no text of its own."""
    if not isinstance(error, MemoryError):
        return str(error)
    detail = f" ({error})" if str(error) else ""
    return f"this host's memory is used up{detail}: free some, then run the same command again to go on"


def make_mesh_of(config: ConfigDict) -> Mesh | None:
    """The mesh over which the policy is sharded, None for one device."""
    axis_sizes = settings(config.mesh)
    return None if all(size == 1 for size in axis_sizes.values()) else make_mesh(**axis_sizes)


def describe_devices(used_devices: Sequence[jax.Device], all_devices: Sequence[jax.Device]) -> str:
    """Describes the devices that a run computes on, among those available: their number, kind and platform."""
    count_by_kind = Counter((device.device_kind, device.platform) for device in used_devices)
    total_text = f" of {len(all_devices)}" if len(all_devices) > len(used_devices) else ""
    devices_text = " and ".join(
        f"{count}{total_text} × {kind}, platform {platform}" for (kind, platform), count in count_by_kind.items()
    )
    return f"{devices_text}; --config.mesh.fsdp=-1 uses all of them" if total_text else devices_text


def check_rows(config: ConfigDict, mesh: Mesh | None) -> None:
    """Raises ValueError for rows, and tokens of a row, that the mesh cannot split evenly."""
    shard_count = 1 if mesh is None else mesh.shape["data"] * mesh.shape["fsdp"]
    if mesh is not None:
        # A dtype that only the model's folder or this machine decides is taken for the one that kernels compute.
        dtype = "float32" if config.model.dtype == "float32" else "bfloat16"
        check_row_length(config.learner.row_length, mesh.shape["context"], mesh.devices.flat[0], dtype)
    if config.learner.micro_rows % shard_count:
        raise ValueError(
            f"learner.micro_rows is {config.learner.micro_rows}, the mesh splits rows {shard_count} ways; make it a "
            f"multiple of {shard_count}"
        )


def check_row_length(length: int, count: int, device: jax.Device, dtype: str) -> None:
    """Raises ValueError for rows that `count` devices cannot split, or whose parts no kernel of a card computes."""
    if count == 1:
        return
    if device.platform == "gpu" and not tokamax_serves(device, jnp.dtype(dtype)):
        raise ValueError(
            f"mesh.context is {count}, and of the kernels for GPUs only tokamax's computes parts of rows: it needs a "
            "Hopper or Blackwell card, JAX 0.11.1 or newer and --config.model.dtype=bfloat16; else set "
            "--config.mesh.context=1"
        )
    unit = count * (KERNEL_BLOCK if device.platform in KERNELS else 2)
    if length % unit:
        raise ValueError(
            f"learner.row_length is {length}, and mesh.context={count} splits a row into parts of equal work; make it "
            f"a multiple of {unit}: --config.learner.row_length={-(-length // unit) * unit}"
        )


def check_mesh(config: ConfigDict) -> None:
    """Raises ValueError for rows or slots that the mesh cannot split evenly, and for sampling that could hang on it."""
    mesh = make_mesh_of(config)
    check_rows(config, mesh)
    if mesh is None or config.engine.name != "local":
        return
    replica_meshes = list_replicas(mesh)
    lanes, slots = config.engine.lanes, config.engine.slots
    if (devices := replica_meshes[0].size) > 1:
        why = f"but engine.name=local samples on {devices} devices together (mesh.tensor × mesh.expert), where programs"
        hang_note = "that two threads start may wait for each other for ever"
        if lanes > 1:
            raise ValueError(f"engine.lanes is {lanes}, {why} {hang_note}; set --config.engine.lanes=1")
        if config.staleness:
            raise ValueError(
                f"staleness is {config.staleness}, {why} {hang_note}: those of sampling and of the update. Set "
                "--config.staleness=0, or mesh.data or mesh.fsdp in place of mesh.tensor and mesh.expert, or sample on "
                "servers by --config.engine=sglang"
            )
    if slots and slots % (divisor := lanes * len(replica_meshes)):
        raise ValueError(
            f"engine.slots is {slots}, but the mesh has {len(replica_meshes)} replicas (data × fsdp × context) of "
            f"engine.lanes={lanes}, which hold equally many; set --config.engine.slots={-(-slots // divisor) * divisor}"
        )
