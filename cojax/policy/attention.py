"""Causal attention over packed rows: a flash kernel where the platform has one, plain XLA elsewhere.

The kernels are those of tokamax and JAX. Each maps query [B, T, H, S], key and value [B, T, K, S] and segment_ids
int32[B, T] to [B, T, H, S]; T is a multiple of KERNEL_BLOCK. Tests run them on a CPU, slowly, with `interpret`.
"""

import functools
import importlib.util
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from cojax.policy.sharding import ROWS, RULES, TOKENS, count_devices, index_part, join_parts

# Blocks that a row's queries are cut into; block i of n reads only the first (i + 1)/n of the keys.
_BLOCK_COUNT = 8
_MIN_BLOCK_LENGTH = 32  # tokens a block, below which matrix products are too small to be fast
_HIDDEN_SCORE = -1e30  # a score whose softmax weight is exactly 0
KERNEL_BLOCK = 128  # tokens; a kernel computes rows, and parts of rows, of a multiple of this


# Of queries [B, t, H, S] that are a part of their rows (`split_rows`), while keys and values are those of whole rows:
# their segment_ids int32[B, t] and the part's number int32[].
Part = tuple[jax.Array, jax.Array]
# What a token sees: segment_ids int32[N, T], prefix_ids int32[N, t] or None, window int32[] or None; and if queries are
# a part of their rows, their segment_ids int32[N, t] and indices int32[t].
Visibility = tuple[jax.Array, jax.Array | None, jax.Array | None, tuple[jax.Array, jax.Array] | None]


def run_tokamax(
    query: jax.Array, key: jax.Array, value: jax.Array, segment_ids: jax.Array, *, operation: Any = None,
    part: Part | None = None,
) -> jax.Array:  # fmt: skip
    """tokamax's Mosaic kernel. Its forward pass skips the blocks before a token's segment."""
    if operation is None:
        from tokamax._src.ops.attention.pallas_mosaic_gpu import PallasMosaicGpuFlashAttention

        operation = PallasMosaicGpuFlashAttention()
    # A segment's tokens are neighbours: what a token sees begins where its segment does.
    is_segment_start = jnp.pad(segment_ids[:, 1:] != segment_ids[:, :-1], ((0, 0), (1, 0)))
    starts = jax.lax.cummax(jnp.where(is_segment_start, jnp.arange(segment_ids.shape[1]), 0), axis=1)
    if part is None:
        return _attend_tokamax(operation, query, key, value, starts, None)
    indices = index_part(part[1], key.shape[1] // query.shape[1], query.shape[1])
    return _attend_tokamax(operation, query, key, value, starts[:, indices], indices + 1)


# A rule of our own, because tokamax's keeps query, key and value beside the results.
@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend_tokamax(
    operation: Any, query: jax.Array, key: jax.Array, value: jax.Array, starts: jax.Array, ends: jax.Array | None
) -> jax.Array:
    return operation(query, key, value, **_make_tokamax_settings(query, starts, ends))  # type: ignore[no-any-return]


def _make_tokamax_settings(query: jax.Array, starts: jax.Array, ends: jax.Array | None) -> dict[str, Any]:
    """Query i sees the keys from starts[:, i] to itself, or to before ends[i] where the queries are a part."""
    from tokamax._src.ops.attention.base import Mask

    last = {"is_causal": True} if ends is None else {"k_end": ends[None, None]}
    return {"mask": Mask(k_start=starts[:, None], **last), "logits_scale": query.shape[-1] ** -0.5}


def _tokamax_forward(operation: Any, *arrays: jax.Array) -> tuple[jax.Array, Any]:
    query, key, value, *bounds = arrays
    output, statistics = operation(query, key, value, **_make_tokamax_settings(query, *bounds), return_residuals=True)
    return output, (arrays, output, statistics)


def _tokamax_backward(operation: Any, residuals: Any, cotangent: jax.Array) -> tuple[Any, ...]:
    (query, key, value, *bounds), output, statistics = residuals
    bound_arguments = operation.bind(query, key, value, **_make_tokamax_settings(query, *bounds))
    settings = {name: setting for name, setting in bound_arguments.kwargs.items() if name != "return_residuals"}
    gradients = operation.vjp(statistics, output, cotangent, *bound_arguments.args, **settings)
    return gradients["q"], gradients["k"], gradients["v"], None, None


_attend_tokamax.defvjp(_tokamax_forward, _tokamax_backward)


def tokamax_serves(device: jax.Device, dtype: jnp.dtype, generations: Sequence[str] = ("9", "10")) -> bool:
    """Whether tokamax is there, since JAX 0.11.1, and has a kernel: of 16 bits, for cards of these generations."""
    generation = str(getattr(device, "compute_capability", None)).partition(".")[0]
    is_installed = jax.__version_info__ >= (0, 11, 1) and importlib.util.find_spec("tokamax") is not None
    return is_installed and generation in generations and dtype.itemsize == 2


def run_triton(
    query: jax.Array, key: jax.Array, value: jax.Array, segment_ids: jax.Array, *, interpret: bool = False
) -> jax.Array:
    """JAX's Triton kernel, which needs one key head for every query head."""
    # Imported here: the package cannot be used on another platform.
    from jax.experimental.pallas.ops.gpu.attention import BlockSizes, mha

    head_count, head_dim = query.shape[2:]
    key, value = (jnp.repeat(x, head_count // x.shape[2], axis=2) for x in (key, value))
    # In float32, blocks of 128 need more shared memory than an H100 has, where heads have 128 numbers.
    block_size = KERNEL_BLOCK if query.dtype.itemsize == 2 else KERNEL_BLOCK // 2
    block_sizes = BlockSizes(block_size, block_size, block_q_dkv=64, block_kv_dkv=64, block_q_dq=64, block_kv_dq=64)
    return mha(query, key, value, segment_ids, head_dim**-0.5, True, block_sizes=block_sizes, interpret=interpret)


def run_splash(
    query: jax.Array, key: jax.Array, value: jax.Array, segment_ids: jax.Array, *, interpret: bool = False,
    part: Part | None = None,
) -> jax.Array:  # fmt: skip
    """Splash attention, row by row."""
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    length, part_count, (head_count, head_dim) = key.shape[1], key.shape[1] // query.shape[1], query.shape[2:]
    size = next(size for size in (512, 256, KERNEL_BLOCK) if query.shape[1] % size == 0)
    mask = splash.CausalMask((length, length))
    if part is not None:
        with jax.ensure_compile_time_eval():
            mask.q_sequence = np.concatenate([index_part(i, part_count, query.shape[1]) for i in range(part_count)])
    block_sizes = splash.BlockSizes(
        block_q=size, block_kv=size, block_q_dkv=size, block_kv_dkv=size, block_q_dq=size, block_kv_dq=size
    )
    kernel: Any = splash.make_splash_mha(
        mask=splash.MultiHeadMask([mask] * head_count),
        block_sizes=block_sizes,
        head_shards=1,
        q_seq_shards=part_count,
        interpret=interpret,
    )
    if part is not None:
        # What the kernel knows of the mask is laid out as [heads, blocks of queries, blocks of keys], or [queries].
        split = functools.partial(jnp.split, indices_or_sections=part_count)
        stacks = jax.tree.map(lambda leaf: jnp.stack(split(leaf, axis=min(1, leaf.ndim - 1))), kernel)
        kernel = jax.tree.map(lambda stack: jnp.take(stack, part[1], axis=0), stacks)

    def attend_row(query: jax.Array, key: jax.Array, value: jax.Array, *segment_ids: jax.Array) -> jax.Array:
        query, key, value = (x.swapaxes(0, 1) for x in (query * head_dim**-0.5, key, value))
        return kernel(query, key, value, splash.SegmentIds(*segment_ids)).swapaxes(0, 1)

    return jax.vmap(attend_row)(query, key, value, segment_ids if part is None else part[0], segment_ids)


# Platform → its kernels, the fastest first, each with whether it serves a device and a dtype.
Kernel = tuple[Callable[..., jax.Array], Callable[[jax.Device, jnp.dtype], bool]]
KERNELS: Mapping[str, Sequence[Kernel]] = {
    "gpu": ((run_tokamax, tokamax_serves), (run_triton, lambda device, dtype: True)),
    "tpu": ((run_splash, lambda device, dtype: True),),
}


def packed_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    segment_ids: jax.Array,
    mesh: Mesh | None = None,
    window: jax.Array | None = None,
    prefix_ids: jax.Array | None = None,
) -> jax.Array:
    """softmax(q·k / √S) v, where a token sees the earlier tokens of its own segment and itself.

    With `prefix_ids`, int32[B, T], it also sees the earlier segment of that number; 0 is none. With a `window`,
    int32[], it sees only the last `window` of these.

    query [B, T, H, S], key and value [B, T, K, S] with H a multiple of K; segment_ids int32[B, T]. Returns
    [B, T, H, S] in the dtype of the query; the softmax is in float32. The platform is that of the `mesh`, or of the
    default device. `attend_blockwise` computes rows shorter than a kernel's block, windows, and prefixes, on every
    platform. If the mesh splits rows, all arrays are those of their parts (`split_rows`), and devices gather the keys,
    values and segments of whole rows.
    """
    device = jax.devices()[0] if mesh is None else mesh.devices.flat[0]
    kernels = [kernel for kernel, supports in KERNELS.get(device.platform, ()) if supports(device, query.dtype)]
    if mesh is not None and count_devices(mesh, "context") > 1:
        kernels = [kernel for kernel in kernels if kernel is not run_triton and query.shape[1] % KERNEL_BLOCK == 0]
        return _attend_parts(kernels, mesh, query, key, value, segment_ids, window, prefix_ids)
    if not kernels or query.shape[1] < KERNEL_BLOCK or not (window is None and prefix_ids is None):
        return attend_blockwise(query, key, value, segment_ids, window, prefix_ids)
    length, kernel = query.shape[1], kernels[0]
    # The row is padded with segment 0, which no token of another segment sees.
    padding = -length % KERNEL_BLOCK
    inputs = [jnp.pad(x, [(0, 0), (0, padding)] + [(0, 0)] * (x.ndim - 2)) for x in (query, key, value, segment_ids)]
    if mesh is not None:
        # The partitioner cannot see into a kernel, so each device gets its own rows and heads.
        by_head, by_row = PartitionSpec(ROWS, None, RULES["heads"]), PartitionSpec(ROWS)
        kernel = jax.shard_map(
            kernel, mesh=mesh, in_specs=(by_head, by_head, by_head, by_row), out_specs=by_head, check_vma=False
        )
    return kernel(*inputs)[:, :length]


def _attend_parts(kernels: Sequence[Callable[..., jax.Array]], mesh: Mesh, *arrays: Any) -> jax.Array:
    """`packed_attention` of parts of rows by the first kernel, or by `attend_blockwise` where none computes it."""

    def attend(query: jax.Array, *arrays: Any) -> jax.Array:
        *inputs, window, prefix_ids = arrays
        gathered = (jax.lax.all_gather(x, "context", tiled=True) for x in inputs)
        key, value, segment_ids = (join_parts(x, count_devices(mesh, "context")) for x in gathered)
        part = inputs[2], jax.lax.axis_index("context")
        if kernels and window is None and prefix_ids is None:
            return kernels[0](query, key, value, segment_ids, part=part)
        return attend_blockwise(query, key, value, segment_ids, window, prefix_ids, part)

    by_head, by_part = PartitionSpec(TOKENS, None, RULES["heads"]), PartitionSpec(TOKENS)
    specs = (*[by_head] * 3, by_part, PartitionSpec(), by_part)
    return jax.shard_map(attend, mesh=mesh, in_specs=specs, out_specs=by_head, check_vma=False)(*arrays)


def attend_blockwise(
    query: jax.Array, key: jax.Array, value: jax.Array, segment_ids: jax.Array, window: jax.Array | None = None,
    prefix_ids: jax.Array | None = None, part: Part | None = None,
) -> jax.Array:  # fmt: skip
    """`packed_attention` in plain XLA, block by block of queries: the weights of a whole row never exist at once.

    With a `part`, the queries are those of a part of the rows, and so are `prefix_ids`.
    """
    row_count, length, head_count, head_dim = query.shape
    kv_head_count = key.shape[2]
    group_size = head_count // kv_head_count
    indices = None if part is None else index_part(part[1], key.shape[1] // length, length)
    # [B·K, …]: one batch axis in front lets every product run as a plain batched matrix product.
    query = query.reshape(row_count, length, kv_head_count, group_size, head_dim).transpose(0, 2, 3, 1, 4)
    query = query.reshape(row_count * kv_head_count, group_size, length, head_dim)
    key, value = (x.transpose(0, 2, 1, 3).reshape(row_count * kv_head_count, -1, head_dim) for x in (key, value))
    # Without the barrier XLA would compute query, key and value anew for every block that reads them.
    repeated_ids = jax.tree.map(lambda ids: jnp.repeat(ids, kv_head_count, axis=0), (segment_ids, prefix_ids))
    own = None if part is None else (jnp.repeat(part[0], kv_head_count, axis=0), indices)
    visibility = *repeated_ids, window, own
    output = _attend(*jax.lax.optimization_barrier((query, key, value)), visibility)
    output = output.reshape(row_count, kv_head_count, group_size, length, head_dim).transpose(0, 3, 1, 2, 4)
    return output.reshape(row_count, length, head_count, head_dim)


@jax.custom_vjp
def _attend(query: jax.Array, key: jax.Array, value: jax.Array, visibility: Visibility) -> jax.Array:
    """query [N, R, t, S], key and value [N, T, S] → [N, R, t, S]: R heads share a key head."""
    return _attend_fwd(query, key, value, visibility)[0]


def _attend_fwd(query: jax.Array, key: jax.Array, value: jax.Array, visibility: Visibility) -> tuple[jax.Array, tuple]:
    """The result, and the arrays that the backward pass reads; that pass recomputes the weights by blocks."""
    block_outputs, block_log_sums = [], []
    for start, end in _split_queries(query.shape[2]):
        key_end = _find_key_end(visibility, end)
        scores = _compute_scores(query, key, visibility, start, end)
        max_scores = jnp.max(scores, axis=-1, keepdims=True)
        weights = jnp.exp(scores - max_scores)
        weight_sum = jnp.sum(weights, axis=-1, keepdims=True)
        product = _multiply(weights.astype(value.dtype), value[:, :key_end], 1)
        block_outputs.append(_split_heads(product / weight_sum.astype(jnp.float32), query).astype(query.dtype))
        block_log_sums.append(_split_heads(max_scores + jnp.log(weight_sum), query))
    output, log_sums = jnp.concatenate(block_outputs, axis=2), jnp.concatenate(block_log_sums, axis=2)
    return output, (query, key, value, visibility, output, log_sums)


def _attend_bwd(residuals: tuple, cotangent: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, None]:
    """The gradient of FlashAttention (arXiv 2205.14135, Algorithm 4), over the blocks of `_attend_fwd`."""
    query, key, value, visibility, output, log_sums = residuals
    cotangent = jax.lax.optimization_barrier(cotangent)
    cotangent_dots = jnp.sum(cotangent.astype(jnp.float32) * output.astype(jnp.float32), axis=-1, keepdims=True)
    d_query_blocks, d_key, d_value = [], jnp.zeros(key.shape, jnp.float32), jnp.zeros(value.shape, jnp.float32)
    for start, end in _split_queries(query.shape[2]):
        block_queries, block_cotangents, block_dots, block_log_sums = (
            _merge_heads(x[:, :, start:end]) for x in (query, cotangent, cotangent_dots, log_sums)
        )
        key_end = _find_key_end(visibility, end)
        weights = jnp.exp(_compute_scores(query, key, visibility, start, end) - block_log_sums)
        d_scores = weights * (_multiply(block_cotangents, value[:, :key_end], 2) - block_dots) * query.shape[-1] ** -0.5
        weights, d_scores = weights.astype(value.dtype), d_scores.astype(key.dtype)
        d_query_blocks.append(_split_heads(_multiply(d_scores, key[:, :key_end], 1), query))
        d_key = d_key.at[:, :key_end].add(_multiply_transposed(d_scores, block_queries))
        d_value = d_value.at[:, :key_end].add(_multiply_transposed(weights, block_cotangents))
    d_query = jnp.concatenate(d_query_blocks, axis=2)
    return d_query.astype(query.dtype), d_key.astype(key.dtype), d_value.astype(value.dtype), None


_attend.defvjp(_attend_fwd, _attend_bwd)


def _find_key_end(visibility: Visibility, end: int) -> int:
    """How many keys queries before `end` read: those before it, or of whole rows if the queries are a part."""
    return end if visibility[3] is None else visibility[0].shape[1]


def _split_queries(length: int) -> Iterator[tuple[int, int]]:
    """Start and end of each block of queries; a block's keys are those before its end, or all for a part of a row."""
    block_size = max(_MIN_BLOCK_LENGTH, math.ceil(length / _BLOCK_COUNT))
    return ((start, min(start + block_size, length)) for start in range(0, length, block_size))


def count_block_bytes(length: int) -> int:
    """Bytes of one head's scores, in float32, of the block of queries that has the most."""
    return 4 * max(((end - start) * end for start, end in _split_queries(length)), default=0)


def _compute_scores(query: jax.Array, key: jax.Array, visibility: Visibility, start: int, end: int) -> jax.Array:
    """float32[N, R · (end − start), K] of queries start … end and the K keys that they read; _HIDDEN_SCORE where a
    query does not see a key."""
    (batch_size, group_size), key_count = query.shape[:2], _find_key_end(visibility, end)
    scores = _multiply(_merge_heads(query[:, :, start:end]), key[:, :key_count], 2) * query.shape[-1] ** -0.5
    segment_ids, prefix_ids, window, part = visibility
    own_ids = segment_ids if part is None else part[0]
    is_visible = own_ids[:, start:end, None] == segment_ids[:, None, :key_count]
    if prefix_ids is not None:
        is_visible |= prefix_ids[:, start:end, None] == segment_ids[:, None, :key_count]
    indices = jnp.arange(start, end) if part is None else part[1][start:end]
    is_visible &= indices[:, None] >= jnp.arange(key_count)[None]
    if window is not None:
        is_visible &= indices[:, None] - jnp.arange(key_count)[None] < window
    scores = scores.reshape(batch_size, group_size, end - start, key_count)
    return jnp.where(is_visible[:, None], scores, _HIDDEN_SCORE).reshape(batch_size, -1, key_count)


def _merge_heads(x: jax.Array) -> jax.Array:
    """[N, R, t, c] → [N, R · t, c]."""
    return x.reshape(x.shape[0], -1, x.shape[-1])


def _split_heads(x: jax.Array, query: jax.Array) -> jax.Array:
    """[N, R · t, c] → [N, R, t, c]."""
    return x.reshape(x.shape[0], query.shape[1], -1, x.shape[-1])


def _multiply(lhs: jax.Array, rhs: jax.Array, axis: int) -> jax.Array:
    """float32: [N, a, c] with [N, …], summed over the last axis of the left and `axis` of the right."""
    return jax.lax.dot_general(lhs, rhs, (((2,), (axis,)), ((0,), (0,))), preferred_element_type=jnp.float32)


def _multiply_transposed(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """float32[N, c, d] from [N, a, c] and [N, a, d]."""
    return jax.lax.dot_general(lhs, rhs, (((1,), (1,)), ((0,), (0,))), preferred_element_type=jnp.float32)
