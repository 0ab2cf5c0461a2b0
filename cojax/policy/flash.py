"""Flash attention over packed rows on accelerators: JAX's own Pallas kernels, one for each platform.

Each maps query [B, T, H, S], key and value [B, T, K, S] and segment_ids int32[B, T] to [B, T, H, S]; T is a multiple of
BLOCK. `interpret` runs the same kernel on a CPU, slowly, which is how it is tested.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

BLOCK = 128


def gpu(
    query: jax.Array, key: jax.Array, value: jax.Array, segment_ids: jax.Array, *, interpret: bool = False
) -> jax.Array:
    """The Triton kernel, which needs one key head for every query head."""
    # Imported here: the package cannot be used on another platform.
    from jax.experimental.pallas.ops.gpu.attention import BlockSizes, mha

    heads, size = query.shape[2:]
    key, value = (jnp.repeat(x, heads // x.shape[2], axis=2) for x in (key, value))
    blocks = BlockSizes(BLOCK, BLOCK, block_q_dkv=64, block_kv_dkv=64, block_q_dq=64, block_kv_dq=64)
    return mha(query, key, value, segment_ids, size**-0.5, True, block_sizes=blocks, interpret=interpret)


def tpu(
    query: jax.Array, key: jax.Array, value: jax.Array, segment_ids: jax.Array, *, interpret: bool = False
) -> jax.Array:
    """Splash attention, row by row."""
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    length, heads, size = query.shape[1:]
    block = next(block for block in (512, 256, BLOCK) if length % block == 0)
    sizes = splash.BlockSizes(
        block_q=block, block_kv=block, block_q_dkv=block, block_kv_dkv=block, block_q_dq=block, block_kv_dq=block
    )
    kernel: Any = splash.make_splash_mha(
        mask=splash.MultiHeadMask([splash.CausalMask((length, length))] * heads),
        block_sizes=sizes,
        head_shards=1,
        q_seq_shards=1,
        interpret=interpret,
    )

    def row(query: jax.Array, key: jax.Array, value: jax.Array, segment_ids: jax.Array) -> jax.Array:
        query, key, value = (x.swapaxes(0, 1) for x in (query * size**-0.5, key, value))
        return kernel(query, key, value, splash.SegmentIds(segment_ids, segment_ids)).swapaxes(0, 1)

    return jax.vmap(row)(query, key, value, segment_ids)


KERNELS: dict[str, Callable[..., jax.Array]] = {"gpu": gpu, "tpu": tpu}
