"""Attention alone: the kernels of `cojax.policy.attention` that serve this device, beside plain XLA."""

import functools
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu.numbers import relative_difference
from benchmarks.results import Row, time_calls
from cojax.policy.attention import KERNELS, attend_blockwise

_HEADS, _KEY_HEADS = 16, 8  # of the 0.6B and the 1.7B shapes
# The backward pass computes five products of the size of which the forward pass computes two (arXiv 2205.14135).
_BOTH_PASSES = 7 / 2
Compute = Callable[..., jax.Array]


def measure_kernels(length: int, head_size: int, segment_counts: Sequence[int], repeats: int) -> list[Row]:
    """Rows of `attend_blockwise`, then of each kernel, in bfloat16: one for each number of segments in a row of
    `length` tokens.

    Operations are those of the pairs of tokens that see each other. `difference` is the largest of output and
    gradients, ‖kernel − blockwise‖ / ‖blockwise‖. A kernel that does not serve this device, or fails, says so under
    `result`.
    """
    rng = np.random.default_rng(0)
    segment_rows = {count: _draw_segments(rng, length, count) for count in segment_counts}
    shapes = [(1, length, heads, head_size) for heads in (_HEADS, _KEY_HEADS, _KEY_HEADS, _HEADS)]
    arrays = [jnp.asarray(rng.standard_normal(shape, np.float32), jnp.bfloat16) for shape in shapes]
    first_results: dict[int, list[np.ndarray]] = {}
    rows: list[Row] = []
    for name, kernel in _list_kernels():
        if kernel is None:
            rows.append({"kernel": name, "result": "not served here"})
            continue
        passes = jax.jit(kernel), jax.jit(functools.partial(_compute_both, kernel))
        for count, segment_ids in segment_rows.items():
            row: Row = {"kernel": name, "tokens": length, "segments": count}
            try:
                results = [np.asarray(x, np.float32) for x in passes[1](*arrays, segment_ids)]
                figures = _time_passes(passes, arrays, segment_ids, repeats)
            except Exception as error:  # of any type: the other kernels follow
                rows.append({**row, "result": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"})
                continue
            difference = max(map(relative_difference, results, first_results.setdefault(count, results)))
            rows.append({**row, "result": "measured", **figures, "difference": difference})
    return rows


def _list_kernels() -> Iterator[tuple[str, Compute | None]]:
    """Name and function of each; None in place of the function of one that does not serve this device."""
    device = jax.devices()[0]
    yield "blockwise", attend_blockwise
    for platform, kernels in KERNELS.items():
        for kernel, serves in kernels:
            is_served = platform == device.platform and serves(device, jnp.dtype(jnp.bfloat16))
            yield kernel.__name__, kernel if is_served else None


def _draw_segments(rng: np.random.Generator, length: int, count: int) -> jax.Array:
    """int32[1, T]: 1, 2, … `count`, which begin at random places."""
    starts = np.sort(rng.choice(np.arange(1, length), count - 1, replace=False))
    return jnp.asarray(np.searchsorted(starts, np.arange(length), side="right")[None] + 1, jnp.int32)


def _compute_both(
    kernel: Compute, query: jax.Array, key: jax.Array, value: jax.Array, cotangent: jax.Array, segment_ids: jax.Array
) -> tuple[jax.Array, ...]:
    """The output, and the gradients of query, key and value."""
    output, pull = jax.vjp(lambda *inputs: kernel(*inputs, segment_ids), query, key, value)
    return output, *pull(cotangent)


def _time_passes(
    passes: Sequence[Callable[..., object]], arrays: Sequence[jax.Array], segment_ids: jax.Array, repeats: int
) -> Row:
    forward, both = passes
    _, forward_s = time_calls(lambda: jax.block_until_ready(forward(*arrays[:3], segment_ids)), repeats)
    _, both_s = time_calls(lambda: jax.block_until_ready(both(*arrays, segment_ids)), repeats)
    lengths = np.bincount(np.asarray(segment_ids[0]))
    flops = 4 * _HEADS * arrays[0].shape[-1] * float((lengths * (lengths + 1) // 2).sum())
    return {
        "forward_ms": forward_s.map(lambda value: value * 1e3),
        "forward_tflops_per_second": forward_s.map(lambda value: flops / value / 1e12),
        "both_passes_ms": both_s.map(lambda value: value * 1e3),
        "both_passes_tflops_per_second": both_s.map(lambda value: _BOTH_PASSES * flops / value / 1e12),
    }
