"""Sums the gradients of micro-batches where they arise: in float32, in place, layer by layer.

A policy's gradient is as large as the policy, and adding it to a sum of gradients takes both. Here a learned leaf
brings its sum along, and the gradient *with respect to the sum* is defined as the sum plus the gradient of the leaf. So
the backward pass over the layers carries the sums and adds to them, and no gradient of all layers exists.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from cojax.policy.sharding import take_rows


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Summed:
    """A learned leaf: its `value`, and `total`, float32 of its shape, the sum of its gradients so far.

    Each sum is used by `add_gradient` or `look_up` as often as its leaf is read, from one to the next, and last by
    `finish`.
    """

    value: jax.Array
    total: jax.Array


def _is_summed(leaf: object) -> bool:
    return isinstance(leaf, Summed)


def separate(tree: Any) -> tuple[Any, list[jax.Array]]:
    """The tree with values in place of every Summed, and their sums of gradients in order."""
    leaves = jax.tree.leaves(tree, is_leaf=_is_summed)
    return strip_totals(tree), [leaf.total for leaf in leaves if _is_summed(leaf)]


def strip_totals(tree: Any) -> Any:
    """The tree with values in place of every Summed."""
    return jax.tree.map(lambda leaf: leaf.value if _is_summed(leaf) else leaf, tree, is_leaf=_is_summed)


def read(tree: Any) -> Any:
    """`strip_totals` of leaves that are read once."""
    return finish(*add_layer(tree, *separate(tree), None))


def add_layer(stack: Any, layer: Any, totals: list[jax.Array], index: jax.Array | None) -> tuple[Any, list[jax.Array]]:
    """`add_gradient` of one layer's arrays, whose gradients go to `index` in those sums that `stack` has."""
    leaves, structure = jax.tree.flatten(layer)
    remaining_sums, new_leaves, new_sums = iter(totals), [], []
    for stack_leaf, leaf in zip(jax.tree.leaves(stack, is_leaf=_is_summed), leaves, strict=True):
        if _is_summed(stack_leaf):
            leaf, grad_sum = add_gradient(leaf, next(remaining_sums), index)
            new_sums.append(grad_sum)
        new_leaves.append(leaf)
    return jax.tree.unflatten(structure, new_leaves), new_sums


@jax.custom_vjp
def add_gradient(value: jax.Array, total: jax.Array, index: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """The value and the sum; the value's gradient is added to the sum, or to `index` along its first axis."""
    return value, total


def _add_gradient_bwd(index: jax.Array | None, cotangents: tuple[jax.Array, jax.Array]) -> tuple[None, jax.Array, None]:
    gradient, grad_sum = cotangents
    gradient = gradient.astype(grad_sum.dtype)
    return None, grad_sum + gradient if index is None else grad_sum.at[index].add(gradient), None


add_gradient.defvjp(lambda value, total, index: ((value, total), index), _add_gradient_bwd)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def look_up(mesh: Mesh | None, table: jax.Array, total: jax.Array, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    """table[rows] and the sum [V, D]; the gradient of each of the rows int32[…] is added to its row of the sum.

    With a `mesh`, which splits rows, devices exchange as `take_rows` says.
    """
    return jnp.take(table, rows, axis=0) if mesh is None else take_rows(table, rows, mesh), total


def _look_up_bwd(
    mesh: Mesh | None, rows: jax.Array, cotangents: tuple[jax.Array, jax.Array]
) -> tuple[None, jax.Array, None]:
    gradient, grad_sum = cotangents
    if mesh is None:
        return None, grad_sum.at[rows].add(gradient.astype(grad_sum.dtype)), None
    add_rows = jax.linear_transpose(functools.partial(take_rows, tokens=rows, mesh=mesh), grad_sum)
    return None, grad_sum + add_rows(gradient.astype(grad_sum.dtype))[0], None


look_up.defvjp(lambda mesh, table, total, rows: (look_up(mesh, table, total, rows), rows), _look_up_bwd)


@jax.custom_vjp
def finish(x: Any, totals: Sequence[jax.Array]) -> Any:
    """x; in the backward pass the sums begin here, with their values."""
    return x


finish.defvjp(lambda x, totals: (x, totals), lambda totals, gradient: (gradient, totals))


@jax.custom_vjp
def reach(loss: jax.Array, scores: jax.Array) -> jax.Array:
    """The loss; its backward pass reaches the sums behind `scores` even if the loss does not depend on them."""
    return loss


reach.defvjp(lambda loss, scores: (loss, scores), lambda scores, gradient: (gradient, jnp.zeros_like(scores)))
