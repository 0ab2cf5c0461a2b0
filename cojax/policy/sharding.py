"""Spreads parameters, batches and activations over devices, by a mesh of five axes and one rule per logical axis.

Along the axis `context` a row's tokens are split (Ring Attention with a balanced load, as in Llama 3, arXiv 2407.21783,
§3.3.2): the row is cut into 2C blocks, and device i of C computes block i and block 2C − 1 − i, its part of the row. So
each device has as many pairs of a token and an earlier one as every other.
"""

import math
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from cojax.policy.config import ModelConfig
from cojax.policy.parameters import Parameter, Params, get_leaf, list_axis_sizes, parameters, with_leaf

MESH_AXES = ("data", "fsdp", "context", "tensor", "expert")
ROWS = ("data", "fsdp")  # the mesh axes over which the rows of a batch are split
TOKENS = (*ROWS, "context")  # the mesh axes over which the tokens of a batch are split
SAMPLING_AXES = ("tensor", "expert")  # the mesh axes over which a policy that only samples is split

# Logical axis → mesh axis, or the mesh axes that split it together. Axes that are not listed are replicated.
SHARDS = ("fsdp", "context")
RULES: Mapping[str, str | tuple[str, ...]] = {
    "vocabulary": "tensor",
    "embed": SHARDS,
    "heads": "tensor",
    "kv_heads": "tensor",
    "mlp": "tensor",
    "experts": "expert",
}


def make_mesh(
    *, data: int = 1, fsdp: int = 1, context: int = 1, tensor: int = 1, expert: int = 1,
    devices: Sequence[jax.Device] | None = None,
) -> Mesh:  # fmt: skip
    """A mesh of the given sizes; one of them may be -1, which takes all remaining devices.

    Raises ValueError unless the sizes multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = [data, fsdp, context, tensor, expert]
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


def list_axes(entry: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """The mesh axes of one entry of a PartitionSpec or of RULES."""
    return () if entry is None else (entry,) if isinstance(entry, str) else entry


def partition(parameter: Parameter) -> PartitionSpec:
    """The mesh axes of each of a parameter's axes."""
    return PartitionSpec(*(RULES.get(axis) for axis in parameter.axes))


def check_divides(config: ModelConfig, mesh: Mesh) -> None:
    """Raises ValueError for a parameter axis that its mesh axis does not divide."""
    sizes = list_axis_sizes(config)
    for parameter in parameters(config):
        for axis in parameter.axes:
            names = [name for name in list_axes(RULES.get(axis)) if mesh.shape[name] > 1]
            if sizes[axis] % (shard_count := count_devices(mesh, *names)):
                raise ValueError(
                    f"{parameter.name} has {axis}={sizes[axis]}, which {' × '.join(names)}={shard_count} does not "
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

    There is one for each coordinate of data, fsdp and context, in order, over its tensor × expert devices.
    """
    device_groups = mesh.devices.reshape(-1, 1, 1, 1, *mesh.devices.shape[len(TOKENS) :])
    return tuple(Mesh(device_group, MESH_AXES) for device_group in device_groups)


def copies(parameter: Parameter, mesh: Mesh | None, axes: Sequence[str] = MESH_AXES) -> int:
    """The number of copies of a parameter on all devices of the mesh together, if only `axes` of the mesh split it."""
    if mesh is None:
        return 1
    names = [name for entry in partition(parameter) for name in list_axes(entry) if name in axes]
    return mesh.size // count_devices(mesh, *names)


def batch_sharding(mesh: Mesh, *lead_axes: None) -> NamedSharding:
    """Splits rows of [B, T] arrays over data and fsdp together, and their tokens over context in order.

    B must be a multiple of the first two sizes' product, and T of the third. Leading axes are not split.
    """
    tokens = ("context",) if mesh.shape["context"] > 1 else ()
    return NamedSharding(mesh, PartitionSpec(*lead_axes, ROWS, *tokens))


def split_rows(x: jax.Array, mesh: Mesh | None) -> jax.Array:
    """[B, T, …] → [B · C, T / C, …]: the parts of each row, in an order that `TOKENS` splits over the devices.

    T must be a multiple of 2C. Without a context axis, C = 1, the rows stay as they are.
    """
    if (count := count_devices(mesh, "context")) == 1:
        return x
    shards, (row_count, length) = count_devices(mesh, *ROWS), x.shape[:2]
    blocks = x.reshape(shards, row_count // shards, 2 * count, length // (2 * count), *x.shape[2:])
    parts = jnp.stack([blocks[:, :, :count], blocks[:, :, : count - 1 : -1]], axis=3)
    return constrain(jnp.moveaxis(parts, 2, 1).reshape(row_count * count, length // count, *x.shape[2:]), mesh)


def join_rows(parts: jax.Array, mesh: Mesh | None) -> jax.Array:
    """[B · C, T / C, …] → [B, T, …]: the inverse of `split_rows`."""
    if mesh is None or (count := count_devices(mesh, "context")) == 1:
        return parts
    rows = join_parts(parts, count, count_devices(mesh, *ROWS))
    return jax.lax.with_sharding_constraint(rows, batch_sharding(mesh))


def join_parts(parts: jax.Array, count: int, shards: int = 1) -> jax.Array:
    """[S · C · b, T / C, …] → [S · b, T, …]: rows from their `count` (C) parts; each of S `shards` has its own rows."""
    blocks = jnp.moveaxis(parts.reshape(shards, count, -1, 2, parts.shape[1] // 2, *parts.shape[2:]), 1, 2)
    blocks = jnp.concatenate([blocks[:, :, :, 0], blocks[:, :, ::-1, 1]], axis=2)
    return blocks.reshape(-1, count * parts.shape[1], *parts.shape[2:])


def index_part(part: jax.Array | int, count: int, length: int) -> jax.Array:
    """int32[length]: the indices in a row of the tokens of its part number `part` of `count`."""
    block_length = length // 2
    starts = jnp.stack([jnp.asarray(part), 2 * count - 1 - part]) * block_length
    return (starts[:, None] + jnp.arange(block_length)).reshape(-1)


def take_rows(table: jax.Array, tokens: jax.Array, mesh: Mesh) -> jax.Array:
    """table[tokens] [P, t, D] of a table [V, D] laid out as an embedding and tokens int32[P, t] of rows' parts.

    Each device takes its columns for the tokens of all devices that hold other columns, and they exchange them. So
    neither the table nor the states of other tokens are gathered, and the same holds for the gradient.
    """
    vocabulary, embed = RULES["vocabulary"], RULES["embed"]

    def take(table: jax.Array, tokens: jax.Array) -> jax.Array:
        indices = jax.lax.all_gather(tokens, embed, tiled=True) - jax.lax.axis_index(vocabulary) * table.shape[0]
        is_here = (indices >= 0) & (indices < table.shape[0])
        columns = jnp.where(is_here[..., None], jnp.take(table, indices, axis=0, mode="clip"), 0)
        rows = jax.lax.all_to_all(columns, embed, split_axis=0, concat_axis=2, tiled=True)
        return jax.lax.psum(rows, vocabulary) if mesh.shape[vocabulary] > 1 else rows

    specs, by_part = (PartitionSpec(vocabulary, embed), PartitionSpec(TOKENS)), PartitionSpec(TOKENS)
    return jax.shard_map(take, mesh=mesh, in_specs=specs, out_specs=by_part, check_vma=False)(table, tokens)


def constrain(x: jax.Array, mesh: Mesh | None, *axes: str | None) -> jax.Array:
    """Constrains an activation's layout: axis 0 over the mesh axes of tokens, each further axis by its name's rule.

    Without a mesh the activation is returned unchanged.
    """
    if mesh is None:
        return x
    spec = PartitionSpec(TOKENS, *(None if axis is None else RULES.get(axis) for axis in axes))
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))
