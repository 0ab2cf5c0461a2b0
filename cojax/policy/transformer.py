"""The decoder: Llama, Qwen2, Qwen2.5, Qwen3 and Qwen3-MoE (pre-norm, RMSNorm, grouped-query attention, rotary, SwiGLU).

Flax NNX only defines the modules; a module holds arrays only within a trace. Parameters are `Params`, a nested dict of
arrays whose layer leaves are stacked [L, ...]. Training jits pure functions of them, never a module, and scans over the
layers. Training and sampling use the same block. Its argument `attend` decides where keys come from: the row itself in
training, the row and a cache in sampling.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from cojax.policy.adapters import merge_layer
from cojax.policy.attention import packed_attention
from cojax.policy.config import ModelConfig, compute_frequencies
from cojax.policy.gradient_sums import Summed, add_layer, finish, look_up, read, separate, strip_totals
from cojax.policy.moe import SparseFeedForward, measure_difference
from cojax.policy.parameters import Params
from cojax.policy.sharding import constrain, count_devices, join_rows, split_rows, take_rows

Attend = Callable[..., jax.Array]  # query, key, value → mixed values
Rotate = Callable[[jax.Array], jax.Array]


def make_rotation(config: ModelConfig, positions: jax.Array) -> Rotate:
    """A function that rotates [B, T, heads, head_dim] in HF's layout, where entry i pairs with i + head_dim / 2.

    The angles are θ_i(p) = p · rope_theta^(−2i / head_dim) (RoFormer, arXiv 2104.09864) of positions int32[B, T]. With
    rope scaling the frequencies are stretched, and cos and sin are multiplied by its factor.
    """
    frequencies, factor = compute_frequencies(config.rope_theta, config.head_dim, config.rope_scaling)
    angles = positions[..., None, None].astype(jnp.float32) * frequencies
    angles = jnp.concatenate([angles, angles], axis=-1)
    cos, sin = jnp.cos(angles) * factor, jnp.sin(angles) * factor

    def rotate(x: jax.Array) -> jax.Array:
        first_half, second_half = jnp.split(x, 2, axis=-1)
        quarter_turn = jnp.concatenate([-second_half, first_half], axis=-1)
        return (x * cos + quarter_turn * sin).astype(x.dtype)

    return rotate


class Attention(nnx.Module):
    """Grouped-query attention; query head h reads key head h // (heads / key heads)."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs) -> None:
        width, head_dim = config.hidden_size, config.head_dim

        def make_projection(heads: int) -> nnx.LinearGeneral:
            use_bias = config.family.attention_bias
            return _linear(config, width, (heads, head_dim), width, rngs, use_bias=use_bias)

        self.query = make_projection(config.num_attention_heads)
        self.key = make_projection(config.num_key_value_heads)
        self.value = make_projection(config.num_key_value_heads)
        heads, dot_general = config.num_attention_heads, _flat_dot_general if config.dtype == "bfloat16" else None
        fan_in = heads * head_dim * 2 * config.num_hidden_layers
        self.output = _linear(config, (heads, head_dim), width, fan_in, rngs, axis=(-2, -1), dot_general=dot_general)
        self.normed = config.family.has_parameter("layers/attention/query_norm/scale")
        if self.normed:
            self.query_norm, self.key_norm = _make_norm(config, head_dim, rngs), _make_norm(config, head_dim, rngs)

    def __call__(self, x: jax.Array, rotate: Rotate, attend: Attend) -> jax.Array:
        query, key, value = self.query(x), self.key(x), self.value(x)
        if self.normed:
            query, key = self.query_norm(query), self.key_norm(key)
        return self.output(attend(rotate(query), rotate(key), value))


class FeedForward(nnx.Module):
    """down(activation(gate(x)) · up(x)): SwiGLU, where the family's activation is silu."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs) -> None:
        width, inner_width = config.hidden_size, config.intermediate_size
        self.gate, self.up = (_linear(config, width, inner_width, width, rngs) for _ in range(2))
        self.down = _linear(config, inner_width, width, inner_width * 2 * config.num_hidden_layers, rngs)
        self.activation = config.family.activation

    def __call__(self, x: jax.Array, mesh: Mesh | None = None) -> jax.Array:
        inner_states = self.activation(self.gate(x)) * self.up(x)
        return self.down(constrain(inner_states, mesh, *[None] * (inner_states.ndim - 2), "mlp"))


class Block(nnx.Module):
    """One pre-norm layer: attention, then feed-forward, each added to its input."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs) -> None:
        self.attention_norm = _make_norm(config, config.hidden_size, rngs)
        self.attention = Attention(config, rngs)
        self.feed_forward_norm = _make_norm(config, config.hidden_size, rngs)
        self.feed_forward = (SparseFeedForward if config.sparse else FeedForward)(config, rngs)

    def __call__(self, x: jax.Array, rotate: Rotate, attend: Attend, mesh: Mesh | None = None) -> jax.Array:
        x = self.after_attention(x, rotate, attend)
        return x + self.feed_forward(self.feed_forward_norm(x), mesh)

    def after_attention(self, x: jax.Array, rotate: Rotate, attend: Attend) -> jax.Array:
        """The first half of the layer: the residual stream after attention."""
        return x + self.attention(self.attention_norm(x), rotate, attend)

    def call_with_routes(
        self, x: jax.Array, rotate: Rotate, attend: Attend, routes: jax.Array | None = None, mesh: Mesh | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Calls a sparse block, and also returns the experts that its router chooses, int32[N, k].

        With `routes` int[N, k], tokens go through those experts instead (`SparseFeedForward.replay`).
        """
        x = self.after_attention(x, rotate, attend)
        inputs, feed_forward = self.feed_forward_norm(x), self.feed_forward
        assert isinstance(feed_forward, SparseFeedForward)
        own_routing = feed_forward.route(inputs, mesh)
        routing = own_routing if routes is None else feed_forward.replay(own_routing, routes)
        return x + feed_forward.apply_routing(inputs, routing, mesh), own_routing.experts


class Embedding(nnx.Module):
    """Looks tokens up in a table. Rows are cast after the lookup, so that gradients add up in the stored dtype."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs) -> None:
        init, shape = nnx.initializers.normal(config.hidden_size**-0.5), (config.vocab_size, config.hidden_size)
        self.embedding = nnx.Param(init(rngs.params(), shape, jnp.dtype(config.param_dtype)))
        self.dtype = jnp.dtype(config.dtype)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        return jnp.take(self.embedding[...], tokens, axis=0).astype(self.dtype)


class EmbeddingAndHead(nnx.Module):
    """The modules around the layers: embedding, final norm, and a head unless it is tied to the embedding."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs) -> None:
        self.embed = Embedding(config, rngs)
        self.final_norm = _make_norm(config, config.hidden_size, rngs)
        if not config.tie_word_embeddings:
            self.head = _linear(config, config.hidden_size, config.vocab_size, config.hidden_size, rngs)


def embedding_and_head(config: ModelConfig, params: Params) -> EmbeddingAndHead:
    """Embedding, final norm and head with these parameters."""
    modules, _ = _make_embedding_and_block_graphdefs(config)
    return nnx.merge(modules, strip_totals({name: arrays for name, arrays in params.items() if name != "layers"}))


def make_block(config: ModelConfig, arrays: Params) -> Block:
    """One layer with its arrays; adapters are summed into their matrices."""
    _, block = _make_embedding_and_block_graphdefs(config)
    return nnx.merge(block, merge_layer(arrays, jnp.dtype(config.dtype)))


@functools.cache
def _make_embedding_and_block_graphdefs(config: ModelConfig) -> tuple[nnx.GraphDef, nnx.GraphDef]:
    """Graph definitions of the modules, without arrays; they are computed once per config."""
    abstract_modules = nnx.eval_shape(lambda: (EmbeddingAndHead(config, nnx.Rngs(0)), Block(config, nnx.Rngs(0))))
    return nnx.split(abstract_modules[0])[0], nnx.split(abstract_modules[1])[0]


def _make_norm(config: ModelConfig, width: int, rngs: nnx.Rngs) -> nnx.RMSNorm:
    return nnx.RMSNorm(
        width, epsilon=config.rms_norm_eps, dtype=jnp.dtype(config.dtype), param_dtype=jnp.dtype(config.param_dtype),
        rngs=rngs,
    )  # fmt: skip


def _flat_dot_general(x: jax.Array, kernel: jax.Array, dimensions: Any, **options: Any) -> jax.Array:
    """The product [..., H, S] × [H, S, D] → [..., D] over one axis of H · S numbers.

    Over two axes, jaxlib 0.12 sums the kernel's gradient in bfloat16 on CPUs. In float32 both products are equally
    precise but differ in their last bits.
    """
    flat_x = x.reshape(*x.shape[:-2], -1)
    return jax.lax.dot_general(
        flat_x, kernel.reshape(-1, kernel.shape[-1]), (((flat_x.ndim - 1,), (0,)), ((), ())), **options
    )


def _linear(
    config: ModelConfig, inputs: Any, outputs: Any, fan_in: int, rngs: nnx.Rngs, use_bias: bool = False, **options: Any
) -> nnx.LinearGeneral:
    """A matrix product whose kernel is drawn from N(0, 1 / `fan_in`)."""
    options |= {"dtype": jnp.dtype(config.dtype), "param_dtype": jnp.dtype(config.param_dtype)}
    init = nnx.initializers.normal(fan_in**-0.5)
    return nnx.LinearGeneral(inputs, outputs, kernel_init=init, use_bias=use_bias, rngs=rngs, **options)


def _is_kernel(primitive: Any, *_: Any, **parameters: Any) -> bool:
    """Whether the operation is an attention kernel, or the call of one within a rule of differentiation.

    Its results take much longer to compute again than to read. tokamax's grouped products come with their inputs
    (remat_opt), which are many times larger: they are computed again.
    """
    if primitive.name == "remat_opt":
        return False
    if primitive.name in ("pallas_call", "core_map", "mpmd_map"):
        return True
    inner_jaxprs = [value for value in parameters.values() if hasattr(value, "eqns")]
    return any(_is_kernel(equation.primitive, **equation.params) for jaxpr in inner_jaxprs for equation in jaxpr.eqns)


_POLICIES = jax.checkpoint_policies
# What the backward pass keeps of a layer; it recomputes everything else. From fastest to smallest: everything; results
# of matrix products and attention kernels; the layer's input and results of attention kernels; only the input.
REMAT: Mapping[str, Callable[[Any], Any]] = {
    "none": lambda layer: layer,
    "dots": functools.partial(
        jax.checkpoint, policy=_POLICIES.save_from_both_policies(_POLICIES.dots_with_no_batch_dims_saveable, _is_kernel)
    ),
    "layers": functools.partial(jax.checkpoint, policy=_is_kernel),
    "inputs": jax.checkpoint,
}


def initialize(config: ModelConfig, seed: int) -> Params:
    """Fresh parameters.

    The embedding is N(0, 1 / D), so that logits of a tied head begin with variance 1. Kernels are N(0, 1 / inputs);
    those that write to the residual stream are smaller by √(2L), so that its variance does not grow with depth (GPT-2).
    """
    return _initialize_from_key(config, jax.random.key(seed))


@functools.partial(jax.jit, static_argnums=0)
def _initialize_from_key(config: ModelConfig, random_key: jax.Array) -> Params:
    """One compiled program for all seeds of a shape."""
    rngs = nnx.Rngs(random_key)
    make_layers = nnx.split_rngs(splits=config.num_hidden_layers)(nnx.vmap(functools.partial(Block, config)))
    end_params, layers = nnx.state(EmbeddingAndHead(config, rngs), nnx.Param), nnx.state(make_layers(rngs), nnx.Param)
    return {**nnx.to_pure_dict(end_params), "layers": nnx.to_pure_dict(layers)}


def compute_hidden(
    config: ModelConfig,
    params: Params,
    tokens: jax.Array,
    positions: jax.Array,
    segment_ids: jax.Array,
    **settings: Any,
) -> jax.Array:
    """Final hidden states, dtype[B, T, D], of packed rows: tokens, positions and segment_ids, int32[B, T] each.

    A token sees the earlier tokens of its own segment and itself; segment 0 is padding. `remat` names an entry of
    REMAT, which decides what is kept for the backward pass. With a `mesh`, activations are spread over it and each
    device computes its own experts; B must be a multiple of data × fsdp, and T of 2 · context if that is more than 1.
    """
    mesh = settings.get("mesh")
    tokens, positions, segment_ids = (split_rows(x, mesh) for x in (tokens, positions, segment_ids))
    embedded, params = embed_tokens(config, params, tokens, mesh)
    states, _ = compute_routed_states(config, params, embedded, positions, segment_ids, None, replay=False, **settings)
    return join_rows(states, mesh)


def embed_tokens(
    config: ModelConfig, params: Params, tokens: jax.Array, mesh: Mesh | None = None
) -> tuple[jax.Array, Params]:
    """Embeddings dtype[..., D] of tokens int32[...]; and the parameters for what follows, where the embedding's sum
    of gradients includes that of these, if its leaf is a Summed. If the mesh splits rows, tokens are in their parts."""
    chex.assert_type(tokens, int)
    table = params["embed"]["embedding"]
    mesh = mesh if count_devices(mesh, "context") > 1 else None
    if not isinstance(table, Summed):
        if mesh is not None:
            return take_rows(table, tokens, mesh).astype(config.dtype), params
        return embedding_and_head(config, params).embed(tokens), params
    rows, grad_sum = look_up(mesh, table.value, table.total, tokens)
    if not config.tie_word_embeddings:  # nothing else reads the table
        rows = finish(rows, [grad_sum])
    return rows.astype(config.dtype), {**params, "embed": {"embedding": Summed(table.value, grad_sum)}}


def compute_routed_states(
    config: ModelConfig,
    params: Params,
    embedded: jax.Array,
    positions: jax.Array,
    segment_ids: jax.Array,
    routes: jax.Array | None,
    *,
    replay: bool,
    remat: str = "none",
    mesh: Mesh | None = None,
    prefix_ids: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array | None]:
    """`compute_hidden` of a sparse model, and float32[B, T]: the share of experts chosen here that are not in `routes`.

    `embedded` [B, T, D] and `params` are those of `embed_tokens`. `routes` int[B, T, L, k] are the sampler's, -1 where
    they are not known; without them the share is None. With `replay` tokens go through the experts of their routes, and
    each router scores the states that result. A token also sees the segment that `prefix_ids`
    int32[B, T] names, which comes before its own; 0 is none. If the mesh splits rows, all arrays are those of their
    parts (`split_rows`).
    """
    chex.assert_shape(embedded, (*positions.shape, config.hidden_size))
    chex.assert_rank(positions, 2)
    chex.assert_equal_shape([positions, segment_ids])
    chex.assert_type([positions, segment_ids], int)
    if routes is not None:
        chex.assert_shape(routes, (*positions.shape, config.num_hidden_layers, config.num_experts_per_tok))
    batch_shape, token_count = positions.shape, positions.size
    # Tokens are one axis between attentions: a kernel's gradient that sums over two axes is slow on CPU.
    x, rotate = constrain(embedded.reshape(token_count, -1), mesh, None), make_rotation(config, positions.reshape(-1))
    stack, totals = separate(params["layers"])
    routes_by_layer = None if routes is None else jnp.moveaxis(routes.reshape(token_count, *routes.shape[2:]), 1, 0)
    windows = None if config.layer_windows is None else jnp.asarray(config.layer_windows, jnp.int32)

    def run_layer(carry: tuple[jax.Array, list[jax.Array]], inputs: tuple[Any, ...]) -> tuple[Any, jax.Array | None]:
        (x, totals), (arrays, index, window, layer_routes) = carry, inputs
        arrays, totals = add_layer(params["layers"], arrays, totals, index)

        def attend(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
            query, key, value = (x.reshape(*batch_shape, *x.shape[1:]) for x in (query, key, value))
            output = packed_attention(query, key, value, segment_ids, mesh, window, prefix_ids)
            return output.reshape(token_count, *output.shape[2:])

        block = make_block(config, arrays)
        if layer_routes is None:
            return (constrain(block(x, rotate, attend, mesh), mesh, None), totals), None
        sampler_routes = layer_routes.astype(jnp.int32)
        x, experts = block.call_with_routes(x, rotate, attend, sampler_routes if replay else None, mesh)
        return (constrain(x, mesh, None), totals), measure_difference(experts, sampler_routes)

    inputs = stack, jnp.arange(config.num_hidden_layers), windows, routes_by_layer
    (x, totals), differing_shares = jax.lax.scan(REMAT[remat](run_layer), (x, totals), inputs)
    modules = embedding_and_head(config, {**params, "final_norm": read(params["final_norm"])})
    hidden = modules.final_norm(finish(x, totals).reshape(*batch_shape, -1))
    return hidden, None if routes is None else jnp.mean(differing_shares, axis=0).reshape(batch_shape)


def compute_logits(config: ModelConfig, params: Params, hidden: jax.Array) -> jax.Array:
    """float32[..., V] from hidden states [..., D]."""
    return score_tokens(config, find_scoring_matrix(config, params), hidden)


def find_scoring_matrix(config: ModelConfig, params: Params) -> jax.Array:
    """The matrix that scores tokens: the embedding [V, D] where it is tied, else the head's kernel [D, V]."""
    return params["embed"]["embedding"] if config.tie_word_embeddings else params["head"]["kernel"]


def score_tokens(config: ModelConfig, matrix: jax.Array, hidden: jax.Array) -> jax.Array:
    """float32[..., V]: the product of hidden states [..., D] and `find_scoring_matrix`, summed in float32."""
    dims = (((hidden.ndim - 1,), (1 if config.tie_word_embeddings else 0,)), ((), ()))
    dtype = jnp.dtype(config.dtype)
    return jax.lax.dot_general(hidden.astype(dtype), matrix.astype(dtype), dims, preferred_element_type=jnp.float32)
