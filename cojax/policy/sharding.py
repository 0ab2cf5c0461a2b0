"""Spreads parameters, batches and activations over devices, by a mesh of four axes and one rule per logical axis."""

import math
from collections.abc import Mapping, Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from cojax.policy.config import ModelConfig
from cojax.policy.parameters import Parameter, Params, get_leaf, list_axis_sizes, parameters, with_leaf

MESH_AXES = ("data", "fsdp", "tensor", "expert")
ROWS = ("data", "fsdp")  # the mesh axes over which the rows of a batch are split
SAMPLING_AXES = ("tensor", "expert")  # the mesh axes over which a policy that only samples is split

# Logical axis → mesh axis. Axes that are not listed are replicated.
RULES: Mapping[str, str] = {
    "vocabulary": "tensor",
    "embed": "fsdp",
    "heads": "tensor",
    "kv_heads": "tensor",
    "mlp": "tensor",
    "experts": "expert",
}


def make_mesh(
    *, data: int = 1, fsdp: int = 1, tensor: int = 1, expert: int = 1, devices: Sequence[jax.Device] | None = None
) -> Mesh:
    """A mesh of the given sizes; one of them may be -1, which takes all remaining devices.

    Raises ValueError unless the sizes multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = [data, fsdp, tensor, expert]
    layout = " × ".join(f"{name}={size}" for name, size in zip(MESH_AXES, sizes, strict=True))
    if wrong_sizes := [size for size in sizes if size < 1 and size != -1]:
        raise ValueError(f"a mesh of {layout}: {wrong_sizes[0]} is not a size; give positive sizes, or -1 for the rest")
    if sizes.count(-1) > 1:
        raise ValueError(f"a mesh of {layout}: only one size can be -1; give the others")
    if -1 in sizes:
        known_product = -int(np.prod(sizes))
        sizes[sizes.index(-1)] = max(1, len(devices) // known_product)
    if int(np.prod(sizes)) != len(devices):
        raise ValueError(f"{layout} makes {int(np.prod(sizes))} devices, but there are {len(devices)}; change one size")
    return Mesh(np.asarray(devices).reshape(sizes), MESH_AXES)


def find_platform(mesh: Mesh | None) -> str:
    """The platform ("cpu", "gpu", "tpu") of the mesh's devices; without a mesh, of the default device."""
    return (jax.devices()[0] if mesh is None else mesh.devices.flat[0]).platform


def count_devices(mesh: Mesh | None, *axes: str) -> int:
    """The product of the mesh's sizes along these axes; 1 without a mesh."""
    return 1 if mesh is None else math.prod(mesh.shape[axis] for axis in axes)


def partition(parameter: Parameter) -> PartitionSpec:
    """The mesh axis of each of a parameter's axes."""
    return PartitionSpec(*(RULES.get(axis) for axis in parameter.axes))


def check_divides(config: ModelConfig, mesh: Mesh) -> None:
    """Raises ValueError for a parameter axis that its mesh axis does not divide."""
    sizes = list_axis_sizes(config)
    for parameter in parameters(config):
        for axis in parameter.axes:
            shard_count = mesh.shape.get(RULES.get(axis, ""), 1)
            if sizes[axis] % shard_count:
                raise ValueError(
                    f"{parameter.name} has {axis}={sizes[axis]}, which {RULES[axis]}={shard_count} does not "
                    "divide; choose a mesh size that does"
                )


def place(leaf: jax.Array | np.ndarray, sharding: Sharding) -> jax.Array:
    """Gives an array, or its ShapeDtypeStruct, this layout.

    Over several hosts, each puts its part of an array that all of them have onto its own devices.
    """
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)  # type: ignore[return-value]
    is_local = not isinstance(leaf, jax.Array) or leaf.is_fully_addressable
    if is_local and not sharding.is_fully_addressable:
        host_array = np.asarray(leaf)
        return jax.make_array_from_process_local_data(sharding, host_array, host_array.shape)
    return jax.device_put(leaf, sharding)


def shard(config: ModelConfig, params: Params, mesh: Mesh, table: Sequence[Parameter] = ()) -> Params:
    """Spreads the parameters over the mesh; `table` describes the leaves, () means the model's own table.

    ShapeDtypeStructs stay such, as in `place`. Raises ValueError for an axis that its mesh axis does not divide.
    """
    check_divides(config, mesh)
    tree: Params = {}
    for parameter in table or parameters(config):
        tree = with_leaf(tree, parameter, place(get_leaf(params, parameter), NamedSharding(mesh, partition(parameter))))
    return tree


def list_replicas(mesh: Mesh) -> tuple[Mesh, ...]:
    """The parts of a mesh that each hold a whole copy of a policy that only samples.

    There is one for each coordinate of data and fsdp, in order, over its tensor × expert devices.
    """
    device_groups = mesh.devices.reshape(-1, 1, 1, *mesh.devices.shape[len(ROWS) :])
    return tuple(Mesh(device_group, MESH_AXES) for device_group in device_groups)


def copies(parameter: Parameter, mesh: Mesh | None, axes: Sequence[str] = MESH_AXES) -> int:
    """The number of copies of a parameter on all devices of the mesh together, if only `axes` of the mesh split it."""
    if mesh is None:
        return 1
    return mesh.size // math.prod(mesh.shape[axis] for axis in partition(parameter) if axis in axes)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Splits rows of [B, T] arrays over data and fsdp together; B must be a multiple of both sizes' product."""
    return NamedSharding(mesh, PartitionSpec(ROWS))


def constrain(x: jax.Array, mesh: Mesh | None, *axes: str | None) -> jax.Array:
    """Constrains an activation's layout: axis 0 over the mesh axes of rows, each further axis by the rule of its name.

    Without a mesh the activation is returned unchanged.
    """
    if mesh is None:
        return x
    spec = PartitionSpec(ROWS, *(None if axis is None else RULES.get(axis) for axis in axes))
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))
