"""Arrays from process 0 to all others, by a collective of all devices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

_T = TypeVar("_T")
# Bytes that travel at once: all messages have one of two shapes, so that two programs serve them.
_SMALL, _LARGE = 2**16, 2**24
# What a command says of an array: the name of its dtype, and its shape.
Described = tuple[str, Sequence[int]]


def describe(array: np.ndarray) -> Described:
    return array.dtype.name, list(array.shape)


def send(arrays: Sequence[np.ndarray]) -> None:
    """In process 0: sends the bytes of arrays, which the others receive by `receive` at the same time."""
    data = np.concatenate([np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays])
    for start, size in _parts(data.size):
        part = np.zeros(size, np.uint8)
        piece = data[start : start + size]
        part[: piece.size] = piece
        multihost_utils.broadcast_one_to_all(part, is_source=True)


def receive(described: Sequence[Described]) -> list[np.ndarray]:
    """In every other process: the arrays that process 0 sends."""
    counts = [math.prod(shape) * jnp.dtype(name).itemsize for name, shape in described]
    data = np.empty(sum(counts), np.uint8)
    for start, size in _parts(data.size):
        part = multihost_utils.broadcast_one_to_all(np.zeros(size, np.uint8), is_source=False)
        data[start : start + size] = part[: data.size - start]
    arrays, start = [], 0
    for (name, shape), count in zip(described, counts, strict=True):
        # A copy begins where its dtype may begin.
        arrays.append(data[start : start + count].copy().view(jnp.dtype(name)).reshape(shape))
        start += count
    return arrays


def finish(result: _T) -> _T:
    """The result of an operation, once its arrays are computed: calls of JAX return before."""
    return jax.block_until_ready(result)


def _parts(size: int) -> list[tuple[int, int]]:
    """(start, bytes) of the parts in which `size` bytes travel."""
    parts, start = [], 0
    while start < size:
        part = _LARGE if size - start > 16 * _SMALL else _SMALL
        parts.append((start, part))
        start += part
    return parts
