"""Low-rank adapters (LoRA, arXiv 2106.09685): small matrices that learn while the model's own matrices are frozen.

A matrix W of a layer becomes W + alpha / rank · A·B. A [inputs, rank] is random and B [rank, outputs] zero at first, so
that the policy begins unchanged. A and B have the axes of W, including those over layers and experts, and rows in the
parameter table. The scan over layers computes the sum, so neither it nor its gradient exists for all layers at once.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp

from cojax.policy.config import ModelConfig
from cojax.policy.parameters import Parameter, Params, get_leaf, parameters, with_leaf


@dataclasses.dataclass(frozen=True)
class Lora:
    """Settings of adapters; `targets` names matrices: query, key, value, output, gate, up, down; () means all."""

    rank: int
    alpha: float = 16.0
    targets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank is {self.rank}; adapters need at least 1")

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LowRank:
    """A matrix and its adapters, as the matrix's leaf in a tree of parameters.

    base: [L, (E,) inputs…, outputs…]; a: float32[L, (E,) inputs…, rank]; b: float32[L, (E,) rank, outputs…]; within
    the scan over layers they have no axis L.
    """

    base: jax.Array
    a: jax.Array
    b: jax.Array
    scale: float = dataclasses.field(metadata={"static": True})

    def merge(self, dtype: jnp.dtype) -> jax.Array:
        """base + scale · A·B of one layer, summed in float32, as `dtype`."""
        a, b = self.a, self.b
        # Experts are a batch axis. Without experts, add one of length 1: rematerialisation by "dots" keeps the result
        # of every product without batch axes, and this one is as large as the matrix.
        has_experts = a.ndim + b.ndim - 2 > self.base.ndim
        if not has_experts:
            a, b = a[None], b[None]
        dimensions = (((a.ndim - 1,), (1,)), ((0,), (0,)))
        low_rank_product = jax.lax.dot_general(a, b, dimensions, precision=jax.lax.Precision.HIGHEST)
        return (self.base.astype(jnp.float32) + self.scale * low_rank_product.reshape(self.base.shape)).astype(dtype)


def merge_layer(arrays: Params, dtype: jnp.dtype) -> Params:
    """Sums every LowRank among one layer's arrays into its matrix; other leaves stay as they are."""
    return jax.tree.map(lambda leaf: leaf.merge(dtype) if _is_low_rank(leaf) else leaf, arrays, is_leaf=_is_low_rank)


def list_adapted(config: ModelConfig, lora: Lora) -> tuple[Parameter, ...]:
    """Rows of the table that get adapters. Raises ValueError for a target that the model does not have."""
    matrices = {
        row.path[2]: row for row in parameters(config) if row.lead_axes and row.input_axes and "router" not in row.axes
    }
    if unknown_targets := [target for target in lora.targets if target not in matrices]:
        raise ValueError(f"lora.targets has {unknown_targets[0]!r}; the model's matrices are {', '.join(matrices)}")
    return tuple(row for target, row in matrices.items() if target in (lora.targets or matrices))


def make_factors(matrix: Parameter) -> tuple[Parameter, Parameter]:
    """The table rows of a matrix's A and B: they have its axes and the axis `rank`, which no sharding rule splits."""
    assert matrix.input_axes
    lead_axes, inputs_end = matrix.lead_axes, len(matrix.lead_axes) + matrix.input_axes
    a_parameter = Parameter((*matrix.path, "a"), (*matrix.axes[:inputs_end], "rank"), "")
    return a_parameter, Parameter((*matrix.path, "b"), (*lead_axes, "rank", *matrix.axes[inputs_end:]), "")


def initialize_adapters(config: ModelConfig, lora: Lora, seed: int) -> Params:
    """Adapters that do not change the policy yet: A from N(0, 1 / inputs), B zero; float32, as {path: {a, b}}."""
    return _initialize_from_key(config, lora, jax.random.key(seed))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _initialize_from_key(config: ModelConfig, lora: Lora, random_key: jax.Array) -> Params:
    """One compiled program for all seeds of a shape."""
    adapters: Params = {}
    for index, matrix in enumerate(list_adapted(config, lora)):
        a_row, b_row = make_factors(matrix)
        shape, lead = matrix.shape(config), len(matrix.lead_axes)
        end = lead + (matrix.input_axes or 0)
        matrix_key = jax.random.fold_in(random_key, index)
        a = jax.random.normal(matrix_key, (*shape[:end], lora.rank)) * math.prod(shape[lead:end]) ** -0.5
        adapters = with_leaf(with_leaf(adapters, a_row, a), b_row, jnp.zeros((*shape[:lead], lora.rank, *shape[end:])))
    return adapters


def add_adapters(config: ModelConfig, lora: Lora, base: Params, adapters: Params) -> Params:
    """The parameters of the policy: `base` with a LowRank for every matrix that has adapters."""
    params = base
    for matrix in list_adapted(config, lora):
        a, b = (get_leaf(adapters, factor) for factor in make_factors(matrix))
        params = with_leaf(params, matrix, LowRank(get_leaf(base, matrix), a, b, lora.scale))  # type: ignore[arg-type]
    return params


def merge(config: ModelConfig, lora: Lora, base: Params, adapters: Params) -> Params:
    """The same policy with its adapters merged, for an engine or a model folder; each sum has its matrix's dtype.

    Layers are summed one after another, as in the forward pass.
    """
    params = add_adapters(config, lora, base, adapters)
    for matrix in list_adapted(config, lora):
        params = with_leaf(params, matrix, _merge_stack(get_leaf(params, matrix)))  # type: ignore[arg-type]
    return params


@jax.jit
def _merge_stack(stack: LowRank) -> jax.Array:
    return jax.lax.map(lambda layer: layer.merge(stack.base.dtype), stack)


def _is_low_rank(x: object) -> bool:
    return isinstance(x, LowRank)
