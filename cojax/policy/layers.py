"""The Flax modules of the decoder: attention, feed-forward, a layer, embedding and head.

Training and sampling use the same block. Its argument `attend` decides where keys come from: the row itself in
training, the row and a cache in sampling. A module with arrays exists only within one trace.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from cojax.policy.adapters import merge_layer
from cojax.policy.config import ModelConfig
from cojax.policy.moe import SparseFeedForward
from cojax.policy.parameters import Params
from cojax.policy.rope import frequencies
from cojax.policy.sharding import constrain

Attend = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]  # query, key, value → mixed values


class Rotation(NamedTuple):
    """cos and sin of every position's angles, float32[B, T, 1, head_dim]."""

    cos: jax.Array
    sin: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        """Rotates [B, T, heads, head_dim] in HF's layout: entry i pairs with i + head_dim / 2."""
        first, second = jnp.split(x, 2, axis=-1)
        turned = jnp.concatenate([-second, first], axis=-1)
        return (x * self.cos + turned * self.sin).astype(x.dtype)


def rotation(config: ModelConfig, positions: jax.Array) -> Rotation:
    """Angles θ_i(p) = p · rope_theta^(−2i / head_dim) (RoFormer, arXiv 2104.09864) of positions int32[B, T].

    With rope scaling the frequencies are stretched, and cos and sin are multiplied by its factor.
    """
    turns, factor = frequencies(config.rope_theta, config.head_dim, config.rope_scaling)
    angles = positions[..., None, None].astype(jnp.float32) * turns
    angles = jnp.concatenate([angles, angles], axis=-1)
    return Rotation(jnp.cos(angles) * factor, jnp.sin(angles) * factor)


class Attention(nnx.Module):
    """Grouped-query attention; query head h reads key head h // (heads / key heads)."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs) -> None:
        width, size = config.hidden_size, config.head_dim

        def project(heads: int) -> nnx.LinearGeneral:
            bias = config.attention_bias
            return nnx.LinearGeneral(width, (heads, size), use_bias=bias, **_linear(config, width), rngs=rngs)

        self.query = project(config.num_attention_heads)
        self.key = project(config.num_key_value_heads)
        self.value = project(config.num_key_value_heads)
        self.output = nnx.LinearGeneral(
            (config.num_attention_heads, size), width, axis=(-2, -1), use_bias=False, rngs=rngs,
            dot_general=_flat_product if config.dtype == "bfloat16" else None,
            **_linear(config, config.num_attention_heads * size * 2 * config.num_hidden_layers),
        )  # fmt: skip
        if config.qk_norm:
            self.query_norm, self.key_norm = _norm(config, size, rngs), _norm(config, size, rngs)
        self.normed = config.qk_norm

    def __call__(self, x: jax.Array, rotate: Rotation, attend: Attend) -> jax.Array:
        query, key, value = self.query(x), self.key(x), self.value(x)
        if self.normed:
            query, key = self.query_norm(query), self.key_norm(key)
        return self.output(attend(rotate(query), rotate(key), value))


class FeedForward(nnx.Module):
    """SwiGLU: down(silu(gate(x)) · up(x))."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs) -> None:
        width, inner = config.hidden_size, config.intermediate_size
        self.gate = nnx.LinearGeneral(width, inner, use_bias=False, **_linear(config, width), rngs=rngs)
        self.up = nnx.LinearGeneral(width, inner, use_bias=False, **_linear(config, width), rngs=rngs)
        fan = inner * 2 * config.num_hidden_layers
        self.down = nnx.LinearGeneral(inner, width, use_bias=False, **_linear(config, fan), rngs=rngs)

    def __call__(self, x: jax.Array, mesh: Mesh | None = None) -> jax.Array:
        inner = jax.nn.silu(self.gate(x)) * self.up(x)
        return self.down(constrain(inner, mesh, *[None] * (inner.ndim - 2), "mlp"))


class Block(nnx.Module):
    """One pre-norm layer: attention, then feed-forward, each added to its input."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs) -> None:
        self.attention_norm = _norm(config, config.hidden_size, rngs)
        self.attention = Attention(config, rngs)
        self.feed_forward_norm = _norm(config, config.hidden_size, rngs)
        self.feed_forward = (SparseFeedForward if config.sparse else FeedForward)(config, rngs)

    def __call__(self, x: jax.Array, rotate: Rotation, attend: Attend, mesh: Mesh | None = None) -> jax.Array:
        x = self.after_attention(x, rotate, attend)
        return x + self.feed_forward(self.feed_forward_norm(x), mesh)

    def after_attention(self, x: jax.Array, rotate: Rotation, attend: Attend) -> jax.Array:
        """The first half of the layer: the residual stream after attention."""
        return x + self.attention(self.attention_norm(x), rotate, attend)

    def routed(
        self, x: jax.Array, rotate: Rotation, attend: Attend, routes: jax.Array | None = None, mesh: Mesh | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Calls a sparse block, and returns the experts that its router chooses too, int32[N, k].

        With `routes` int[N, k] tokens go through those experts instead (`SparseFeedForward.replay`).
        """
        x = self.after_attention(x, rotate, attend)
        normed, experts = self.feed_forward_norm(x), self.feed_forward
        assert isinstance(experts, SparseFeedForward)
        own = experts.route(normed)
        routing = own if routes is None else experts.replay(own, routes)
        return x + experts.mixed(normed, routing, mesh), own.experts


class Embedding(nnx.Module):
    """Looks tokens up in a table. Rows are cast after the look-up, so that gradients add up in the stored dtype."""

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
        self.final_norm = _norm(config, config.hidden_size, rngs)
        if not config.tie_word_embeddings:
            self.head = nnx.LinearGeneral(
                config.hidden_size, config.vocab_size, use_bias=False, **_linear(config, config.hidden_size), rngs=rngs
            )


def embedding_and_head(config: ModelConfig, params: Params) -> EmbeddingAndHead:
    """Embedding, final norm and head with these parameters."""
    ends, _ = _definitions(config)
    return nnx.merge(ends, {name: arrays for name, arrays in params.items() if name != "layers"})


def block_of(config: ModelConfig, arrays: Params) -> Block:
    """One layer with its arrays; adapters among them are summed into their matrices."""
    _, block = _definitions(config)
    return nnx.merge(block, merge_layer(arrays, jnp.dtype(config.dtype)))


@functools.cache
def _definitions(config: ModelConfig) -> tuple[Any, Any]:
    """The definitions of the modules, without arrays, made once per config."""
    abstract = nnx.eval_shape(lambda: (EmbeddingAndHead(config, nnx.Rngs(0)), Block(config, nnx.Rngs(0))))
    return nnx.split(abstract[0])[0], nnx.split(abstract[1])[0]


def _norm(config: ModelConfig, size: int, rngs: nnx.Rngs) -> nnx.RMSNorm:
    return nnx.RMSNorm(
        size, epsilon=config.rms_norm_eps, dtype=jnp.dtype(config.dtype), param_dtype=jnp.dtype(config.param_dtype),
        rngs=rngs,
    )  # fmt: skip


def _flat_product(x: jax.Array, kernel: jax.Array, dimensions: Any, **options: Any) -> jax.Array:
    """The product [..., H, S] × [H, S, D] → [..., D] over one axis of H · S numbers.

    Over two axes, jaxlib 0.12 sums the kernel's gradient in bfloat16 on CPUs. In float32 both have the same precision,
    and other bits.
    """
    flat = x.reshape(*x.shape[:-2], -1)
    return jax.lax.dot_general(
        flat, kernel.reshape(-1, kernel.shape[-1]), (((flat.ndim - 1,), (0,)), ((), ())), **options
    )


def _linear(config: ModelConfig, fan_in: int) -> dict[str, Any]:
    return {
        "kernel_init": nnx.initializers.normal(fan_in**-0.5),
        "dtype": jnp.dtype(config.dtype),
        "param_dtype": jnp.dtype(config.param_dtype),
    }
