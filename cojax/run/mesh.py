"""The mesh of a configuration, and what it demands of other settings."""

from collections import Counter
from collections.abc import Sequence

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from cojax.policy.sharding import make_mesh, replicas
from cojax.settings.reading import settings


def mesh_of(config: ConfigDict) -> Mesh | None:
    """The mesh over which the policy is sharded, None for one device."""
    sizes = settings(config.mesh)
    return None if all(size == 1 for size in sizes.values()) else make_mesh(**sizes)


def described(used: Sequence[jax.Device], there: Sequence[jax.Device]) -> str:
    """The devices that a run computes on, of those that are there: their number, kind and platform."""
    counts = Counter((device.device_kind, device.platform) for device in used)
    of = f" of {len(there)}" if len(there) > len(used) else ""
    named = " and ".join(f"{count}{of} × {kind}, platform {platform}" for (kind, platform), count in counts.items())
    return f"{named}; --config.mesh.fsdp=-1 uses all of them" if of else named


def check_rows(config: ConfigDict, mesh: Mesh | None) -> None:
    """Raises ValueError for rows that the mesh cannot split evenly."""
    shards = 1 if mesh is None else mesh.shape["data"] * mesh.shape["fsdp"]
    if config.learner.micro_rows % shards:
        raise ValueError(
            f"learner.micro_rows is {config.learner.micro_rows}, the mesh splits rows {shards} ways; make it a "
            f"multiple of {shards}"
        )


def check_mesh(config: ConfigDict) -> None:
    """Raises ValueError for rows or slots that the mesh cannot split evenly, and for sampling that could hang on it."""
    mesh = mesh_of(config)
    check_rows(config, mesh)
    if mesh is None or config.engine.name != "local":
        return
    parts = replicas(mesh)
    lanes, slots = config.engine.lanes, config.engine.slots
    if (devices := parts[0].size) > 1:
        on = f"but engine.name=local samples on {devices} devices together (mesh.tensor × mesh.expert), where programs"
        halt = "that two threads start may wait for each other for ever"
        if lanes > 1:
            raise ValueError(f"engine.lanes is {lanes}, {on} {halt}; set --config.engine.lanes=1")
        if config.staleness:
            raise ValueError(
                f"staleness is {config.staleness}, {on} {halt}: those of sampling and of the update. Set "
                "--config.staleness=0, or mesh.data or mesh.fsdp in place of mesh.tensor and mesh.expert, or sample on "
                "servers by --config.engine=sglang"
            )
    if slots and slots % (count := lanes * len(parts)):
        raise ValueError(
            f"engine.slots is {slots}, but the mesh has {len(parts)} replicas (data × fsdp) of engine.lanes={lanes}, "
            f"which hold equally many; set --config.engine.slots={-(-slots // count) * count}"
        )
