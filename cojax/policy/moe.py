"""The sparse feed-forward of Qwen3-MoE: every token visits the k experts that its router scores highest.

No token is ever dropped: experts have no capacity limit, so padding and other rows cannot push a token out.
The routes of a token are the experts that it went through when it was sampled.
"""

import base64
import binascii
import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, PartitionSpec

from cojax.policy.attention import tokamax_serves
from cojax.policy.config import ModelConfig
from cojax.policy.sharding import RULES, TOKENS, count_devices

# The most experts whose numbers, and -1, fit into one byte.
_MAX_INT8_EXPERTS = 128
# The SwiGLU matrices of E experts: gate and up [E, D, F], down [E, F, D].
Kernels = tuple[jax.Array, jax.Array, jax.Array]
Product = Callable[..., jax.Array]  # ([M, D], [G, D, F], group sizes int32[G]) → [M, F]
_EXPERT, _TENSOR = RULES["experts"], RULES["mlp"]


class Routing(NamedTuple):
    """Where N tokens go: `experts` int32[N, k], their weights float32[N, k], all probabilities float32[N, E]."""

    experts: jax.Array
    weights: jax.Array
    probabilities: jax.Array


class SparseFeedForward(nnx.Module):
    """Σ_e w_e · down_e(silu(gate_e(x)) · up_e(x)) over the chosen experts e; router and weights are in float32."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs) -> None:
        width, inner_width, expert_count = config.hidden_size, config.moe_intermediate_size, config.num_experts

        def draw_kernel(shape: tuple[int, ...], fan_in: int) -> nnx.Param:
            init = nnx.initializers.normal(fan_in**-0.5)
            return nnx.Param(init(rngs.params(), shape, jnp.dtype(config.param_dtype)))

        self.router = draw_kernel((width, expert_count), width)
        self.gate = draw_kernel((expert_count, width, inner_width), width)
        self.up = draw_kernel((expert_count, width, inner_width), width)
        self.down = draw_kernel((expert_count, inner_width, width), inner_width * 2 * config.num_hidden_layers)
        self.top_k, self.normalise = config.num_experts_per_tok, config.norm_topk_prob
        self.dtype = jnp.dtype(config.dtype)

    def route(self, x: jax.Array, mesh: Mesh | None = None) -> Routing:
        """The routing of [..., D], leading axes flattened to N; a mesh that splits rows splits these too."""
        x = x.reshape(-1, x.shape[-1]).astype(jnp.float32)
        scores = jnp.dot(x, self.router[...].astype(jnp.float32), precision=jax.lax.Precision.HIGHEST)
        probabilities = jax.nn.softmax(scores, axis=-1)
        if mesh is not None and count_devices(mesh, "context") > 1:
            experts = _choose_locally(mesh, jax.lax.stop_gradient(probabilities), self.top_k)
            return self.replay(Routing(experts, probabilities, probabilities), experts)
        weights, experts = jax.lax.top_k(probabilities, self.top_k)
        return Routing(experts, self._normalise_weights(weights), probabilities)

    def replay(self, routing: Routing, routes: jax.Array) -> Routing:
        """Routes to the experts `routes` int[N, k] instead, weighed by the router's own probabilities of them.

        A token whose routes are -1 keeps its own. Weights have a gradient; the choice of experts has none.
        """
        experts = jnp.where(routes < 0, routing.experts, routes)
        weights = jnp.take_along_axis(routing.probabilities, experts, axis=-1)
        return Routing(experts, self._normalise_weights(weights), routing.probabilities)

    def _normalise_weights(self, weights: jax.Array) -> jax.Array:
        return weights / jnp.sum(weights, axis=-1, keepdims=True) if self.normalise else weights

    def __call__(self, x: jax.Array, mesh: Mesh | None = None) -> jax.Array:
        """[..., D] → [..., D]; over a mesh each device computes its own experts, and the results are summed."""
        return self.apply_routing(x, self.route(x, mesh), mesh)

    def apply_routing(self, x: jax.Array, routing: Routing, mesh: Mesh | None = None) -> jax.Array:
        """[..., D] → [..., D] by the given routing of these tokens."""
        matrices = self.gate[...].astype(self.dtype), self.up[...].astype(self.dtype), self.down[...].astype(self.dtype)
        flat_x = x.reshape(-1, x.shape[-1])
        compute = functools.partial(mix, dot=choose_product(mesh, self.dtype))
        arguments = flat_x, routing, matrices
        output = compute(*arguments) if mesh is None else _mix_over_mesh(mesh, compute, *arguments)
        return output.reshape(x.shape)


def _choose_locally(mesh: Mesh, probabilities: jax.Array, top_k: int) -> jax.Array:
    """int32[N, k] of the most probable experts: XLA would gather the probabilities of all tokens on each device."""

    def choose(probabilities: jax.Array) -> jax.Array:
        return jax.lax.top_k(probabilities, top_k)[1]

    spec = PartitionSpec(TOKENS)
    return jax.shard_map(choose, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)(probabilities)


def choose_product(mesh: Mesh | None, dtype: jnp.dtype) -> Product:
    """The grouped product of the mesh's devices, or of the default device: tokamax's where it serves them, or JAX's.

    XLA has none for GPUs: there JAX's becomes products over all experts.
    """
    # For Blackwell tokamax has no gradient of the matrices.
    if not tokamax_serves(jax.devices()[0] if mesh is None else mesh.devices.flat[0], dtype, ("9",)):
        return jax.lax.ragged_dot
    import tokamax

    return tokamax.ragged_dot  # type: ignore[no-any-return]


def mix(
    x: jax.Array, routing: Routing, matrices: Kernels, first: jax.Array | int = 0, dot: Product = jax.lax.ragged_dot
) -> jax.Array:
    """What the experts `first`, `first` + 1, … of these matrices contribute to tokens [N, D], by the grouped product
    `dot`.

    XLA for CPU computes ragged_dot as one product over all experts, with every token copied k times. On CPU this also
    multiplies by all experts, but without the copies.
    """
    arrays = x, routing.experts, routing.weights, matrices, jnp.asarray(first, jnp.int32)
    return jax.lax.platform_dependent(*arrays, cpu=mix_dense, default=functools.partial(mix_grouped, dot=dot))


def mix_grouped(
    x: jax.Array,
    experts: jax.Array,
    weights: jax.Array,
    matrices: Kernels,
    first: jax.Array,
    dot: Product = jax.lax.ragged_dot,
) -> jax.Array:
    """`mix` by grouped products: the N · k visits, sorted by expert, times the matrices of their expert."""
    gate, up, down = matrices
    local_count, (token_count, top_k) = gate.shape[0], experts.shape
    local_experts = experts.reshape(-1) - first
    local_experts = jnp.where((local_experts >= 0) & (local_experts < local_count), local_experts, local_count)
    order = jnp.argsort(local_experts, stable=True)
    group_sizes = jnp.bincount(local_experts, length=local_count).astype(jnp.int32)
    # Rows after the last group belong to other devices; a grouped product leaves them undefined.
    is_local = (jnp.arange(token_count * top_k) < jnp.sum(group_sizes))[:, None]
    visits = jnp.where(is_local, _permute(jnp.repeat(x, top_k, axis=0), order), 0)
    # Masked before they are multiplied: a gradient would be 0 times what is undefined, which may be NaN.
    inner_states = jax.nn.silu(jnp.where(is_local, dot(visits, gate, group_sizes), 0))
    inner_states = inner_states * jnp.where(is_local, dot(visits, up, group_sizes), 0)
    outputs = jnp.where(is_local, dot(inner_states, down, group_sizes), 0)
    outputs = _permute(outputs, jnp.argsort(order)).reshape(token_count, top_k, -1)
    return jnp.sum(outputs.astype(jnp.float32) * weights[..., None], axis=1).astype(x.dtype)


def mix_dense(x: jax.Array, experts: jax.Array, weights: jax.Array, matrices: Kernels, first: jax.Array) -> jax.Array:
    """Computes `mix` by products over all experts, with weight 0 for the others: no row depends on another."""
    gate, up, down = matrices
    local_count, width = gate.shape[0], x.shape[1]
    local_experts = first + jnp.arange(local_count)
    shares = jnp.sum(jnp.where(experts[:, :, None] == local_experts, weights[:, :, None], 0.0), axis=1)
    multiply = functools.partial(jnp.einsum, "nd,edf->nef", x)
    inner_states = jax.nn.silu(multiply(gate)) * multiply(up)
    # A select and not only a product: the output of an expert that was not chosen need not be finite.
    inner_states = jnp.where(shares[..., None] > 0, inner_states * shares[..., None].astype(inner_states.dtype), 0)
    return inner_states.reshape(x.shape[0], -1) @ down.reshape(-1, width)


def _mix_over_mesh(
    mesh: Mesh, compute: Callable[..., jax.Array], x: jax.Array, routing: Routing, matrices: Kernels
) -> jax.Array:
    """`mix` by `compute`, experts split over the expert axis and their inner width over the tensor axis."""

    def mix_shard(x: jax.Array, routing: Routing, gate: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
        first_expert = jax.lax.axis_index(_EXPERT) * gate.shape[0]
        # Partial sums are added in float32, as they are within one device.
        output = compute(x, routing, (gate, up, down), first_expert).astype(jnp.float32)
        return jax.lax.psum(output, (_EXPERT, _TENSOR)).astype(x.dtype)

    # Not check_vma=True: with it jax 0.10 drops part of ragged_dot's gradient where the experts are split.
    rows, wide, tall = PartitionSpec(TOKENS), PartitionSpec(_EXPERT, None, _TENSOR), PartitionSpec(_EXPERT, _TENSOR)
    run = jax.shard_map(mix_shard, mesh=mesh, in_specs=(rows, rows, wide, wide, tall), out_specs=rows, check_vma=False)
    return run(x, routing, *matrices)


def _permute(visits: jax.Array, order: jax.Array) -> jax.Array:
    """visits[order] for a permutation; the gradient then writes each visit once."""
    return visits.at[order].get(unique_indices=True, mode="promise_in_bounds")


def measure_difference(experts: jax.Array, routes: jax.Array) -> jax.Array:
    """float32[N]: the share of a token's own experts int[N, k] that are not in its routes int[N, k].

    It is 0 where the routes are -1. The order of experts does not matter.
    """
    is_route = jnp.any(experts[:, :, None] == routes[:, None, :], axis=-1)
    differing_share = 1.0 - jnp.mean(is_route.astype(jnp.float32), axis=-1)
    return jnp.where(routes[:, 0] < 0, 0.0, differing_share)


@dataclasses.dataclass(frozen=True)
class RouteShape:
    """The shape of a sparse model's routes, [..., L, k]: `top_k` (k) of `experts` in each of `layers` (L).

    A token whose routes are not known has -1 throughout; the learner's own router then chooses for it.
    """

    layers: int
    top_k: int
    experts: int

    @classmethod
    def of(cls, config: ModelConfig) -> "RouteShape":
        """Raises ValueError for a dense model."""
        if not config.sparse:
            raise ValueError("the model has num_experts 0: its tokens have no routes; set --config.learner.routes=own")
        return cls(config.num_hidden_layers, config.num_experts_per_tok, config.num_experts)

    @property
    def dtype(self) -> np.dtype:
        """int8, or int16 where there are more than 128 experts; little-endian."""
        return np.dtype("<i1" if self.experts <= _MAX_INT8_EXPERTS else "<i2")

    def make_unknown(self, *lead_shape: int) -> np.ndarray:
        """Unknown routes: -1 throughout, [*leading, L, k]."""
        return np.full((*lead_shape, self.layers, self.top_k), -1, self.dtype)

    def encode(self, routes: np.ndarray) -> str:
        """Base64 of [N, L, k] in `dtype`: L · k bytes a token, or twice as many."""
        return base64.b64encode(np.ascontiguousarray(routes, self.dtype).tobytes()).decode("ascii")

    def decode(self, encoded_routes: str, dtype: np.dtype | None = None) -> np.ndarray:
        """[N, L, k] in the shape's `dtype`, from numbers written in that dtype or another.

        Raises ValueError for text that `encode` cannot have written for this shape.
        """
        dtype = dtype or self.dtype
        try:
            content = base64.b64decode(encoded_routes, validate=True)
        except (binascii.Error, ValueError) as error:
            raise ValueError(f"routes are not base64: {error}") from error
        stride = self.layers * self.top_k * dtype.itemsize
        if len(content) % stride:
            raise ValueError(
                f"routes have {len(content)} bytes; expected a multiple of {stride}, which are {self.layers} layers × "
                f"{self.top_k} experts of {dtype.itemsize} bytes"
            )
        routes = np.frombuffer(content, dtype).reshape(-1, self.layers, self.top_k)
        if routes.size and (routes.min() < 0 or routes.max() >= self.experts):
            raise ValueError(f"routes name experts {routes.min()}–{routes.max()}; the model has 0–{self.experts - 1}")
        sorted_routes = np.sort(routes, axis=-1)
        if (sorted_routes[..., 1:] == sorted_routes[..., :-1]).any():
            raise ValueError("routes name an expert twice for one token and layer; expected each at most once")
        return routes.astype(self.dtype)
