"""The decoder: Qwen2, Qwen2.5 and Qwen3 (pre-norm, RMSNorm, grouped-query attention, rotary positions, SwiGLU).

Flax NNX only defines it. What travels is `Params`, a nested dict of arrays whose layer leaves are stacked [L, ...], and
pure functions of it: training jits those, never a module. Layers run under one `lax.scan`.

The block is written once. Where its keys come from is handed in as `attend`: the row itself in training, the row and a
cache when sampling.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from cojax.policy.attention import packed_attention
from cojax.policy.config import ModelConfig

Params = dict[str, Any]
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
    """Angles θ_i(p) = p · rope_theta^(−2i / head_dim) (RoFormer, arXiv 2104.09864) of positions int32[B, T]."""
    half = config.head_dim // 2
    frequencies = config.rope_theta ** -(jnp.arange(half, dtype=jnp.float32) / half)
    angles = positions[..., None, None].astype(jnp.float32) * frequencies
    angles = jnp.concatenate([angles, angles], axis=-1)
    return Rotation(jnp.cos(angles), jnp.sin(angles))


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

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down(jax.nn.silu(self.gate(x)) * self.up(x))


class Block(nnx.Module):
    """One pre-norm layer."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs) -> None:
        self.attention_norm = _norm(config, config.hidden_size, rngs)
        self.attention = Attention(config, rngs)
        self.feed_forward_norm = _norm(config, config.hidden_size, rngs)
        self.feed_forward = FeedForward(config, rngs)

    def __call__(self, x: jax.Array, rotate: Rotation, attend: Attend) -> jax.Array:
        x = x + self.attention(self.attention_norm(x), rotate, attend)
        return x + self.feed_forward(self.feed_forward_norm(x))


class Ends(nnx.Module):
    """What surrounds the layers: embedding, final norm, and a head unless it is tied to the embedding."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(
            config.vocab_size, config.hidden_size, embedding_init=nnx.initializers.normal(config.hidden_size**-0.5),
            dtype=jnp.dtype(config.dtype), param_dtype=jnp.dtype(config.param_dtype), rngs=rngs,
        )  # fmt: skip
        self.final_norm = _norm(config, config.hidden_size, rngs)
        if not config.tie_word_embeddings:
            self.head = nnx.LinearGeneral(
                config.hidden_size, config.vocab_size, use_bias=False, **_linear(config, config.hidden_size), rngs=rngs
            )


def initialize(config: ModelConfig, seed: int) -> Params:
    """Fresh parameters: embedding N(0, 1 / D), so that logits of a tied head begin with variance 1, kernels
    N(0, 1 / inputs), and those that write to the residual stream smaller by √(2L), so that its variance does not grow
    with depth (GPT-2)."""

    @jax.jit
    def make() -> Params:
        rngs = nnx.Rngs(seed)
        stack = nnx.split_rngs(splits=config.num_hidden_layers)(nnx.vmap(functools.partial(Block, config)))
        ends, layers = nnx.state(Ends(config, rngs), nnx.Param), nnx.state(stack(rngs), nnx.Param)
        return {**nnx.to_pure_dict(ends), "layers": nnx.to_pure_dict(layers)}

    return make()


def hidden_states(
    config: ModelConfig,
    params: Params,
    tokens: jax.Array,
    positions: jax.Array,
    segment_ids: jax.Array,
    *,
    remat: bool = False,
) -> jax.Array:
    """Final hidden states, dtype[B, T, D], of packed rows.

    tokens, positions, segment_ids are int32[B, T]; a token sees the earlier tokens of its own segment and itself;
    segment 0 is padding. `remat` keeps only layer inputs for the backward pass and computes the rest again.
    """
    shape, count = tokens.shape, tokens.size
    ends, rotate = _ends(config, params), rotation(config, positions.reshape(count))

    def attend(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        query, key, value = (x.reshape(*shape, *x.shape[1:]) for x in (query, key, value))
        mixed = packed_attention(query, key, value, segment_ids)
        return mixed.reshape(count, *mixed.shape[2:])

    def layer(x: jax.Array, arrays: Params) -> tuple[jax.Array, None]:
        return _block(config, arrays)(x, rotate, attend), None

    # Tokens stand in one axis between attentions: a kernel's gradient that sums over two is slow on CPU.
    x = ends.embed(tokens.reshape(count))
    x, _ = jax.lax.scan(jax.checkpoint(layer) if remat else layer, x, params["layers"])
    x = x.reshape(*shape, -1)
    return ends.final_norm(x)


class Cache(NamedTuple):
    """Keys and values of one layer: [S, kv_heads, head_dim, T] and [S, kv_heads, T, head_dim] for S slots.

    Positions run along the last axis of the keys, so that both products read memory in order.
    """

    key: jax.Array
    value: jax.Array


def make_cache(config: ModelConfig, slots: int, length: int) -> tuple[Cache, ...]:
    """An empty cache per layer. Stale entries are never seen, but must be finite: 0 · NaN is not 0."""
    heads, size = config.num_key_value_heads, config.head_dim
    dtype = jnp.dtype(config.dtype)
    return tuple(
        Cache(jnp.zeros((slots, heads, size, length), dtype), jnp.zeros((slots, heads, length, size), dtype))
        for _ in range(config.num_hidden_layers)
    )


def unstack(config: ModelConfig, params: Params) -> Params:
    """The same parameters with `layers` as a tuple of L trees, for `cached_hidden_states`."""
    layers = params["layers"]
    split = tuple(jax.tree.map(lambda x, i=i: x[i], layers) for i in range(config.num_hidden_layers))
    return {**params, "layers": split}


def cached_hidden_states(
    config: ModelConfig,
    params: Params,
    cache: tuple[Cache, ...],
    tokens: jax.Array,
    positions: jax.Array,
    slots: jax.Array | None = None,
    span: int | None = None,
) -> tuple[jax.Array, tuple[Cache, ...]]:
    """Final hidden states, dtype[R, C, D], of new tokens, and the cache with them written to it.

    tokens, positions are int32[R, C], slots int32[R] says whose cache each row continues; None means one row per slot,
    in order. A position ≥ the cache's length or a slot ≥ S is padding: nothing is written and the state means nothing.
    `span` bounds how far a row of `slots` looks, and must exceed its positions.
    `params` come from `unstack`. Layers are unrolled: a cache carried through a scan would be copied every step.
    """
    rows = jnp.arange(tokens.shape[0]) if slots is None else slots
    rotate = rotation(config, positions)
    ends = _ends(config, params)
    x = ends.embed(tokens)
    written = []
    for old, arrays in zip(cache, params["layers"], strict=True):

        def attend(query: jax.Array, key: jax.Array, value: jax.Array, old: Cache = old) -> jax.Array:
            # Written before it is read: the other order would make XLA copy the whole cache.
            new = Cache(
                old.key.at[rows[:, None], :, :, positions].set(key, mode="drop"),
                old.value.at[rows[:, None], :, positions].set(value, mode="drop"),
            )
            written.append(new)
            seen = new
            if slots is not None:
                near = Cache(new.key[..., :span], new.value[:, :, :span])
                seen = Cache(*(entries.at[slots].get(mode="clip") for entries in near))
            return _attend_cache(query, seen, positions)

        x = _block(config, arrays)(x, rotate, attend)
    return ends.final_norm(x), tuple(written)


def _attend_cache(query: jax.Array, cache: Cache, positions: jax.Array) -> jax.Array:
    """Softmax over the cache's whole fixed length; what lies after a query's position gets weight exactly 0."""
    rows, chunk, heads, size = query.shape
    kv_heads, length = cache.key.shape[1], cache.key.shape[-1]
    query = query.reshape(rows, chunk, kv_heads, -1, size) * size**-0.5
    query = jnp.moveaxis(query, 1, 3).reshape(rows, kv_heads, -1, size)
    scores = jnp.einsum("rkqh,rkht->rkqt", query, cache.key, preferred_element_type=jnp.float32)
    scores = scores.reshape(rows, kv_heads, -1, chunk, length)
    visible = (jnp.arange(length) <= positions[..., None])[:, None, None]
    weights = jax.nn.softmax(jnp.where(visible, scores, -1e30), axis=-1).reshape(rows, kv_heads, -1, length)
    mixed = jnp.einsum("rkqt,rkth->rkqh", weights.astype(cache.value.dtype), cache.value)
    return jnp.moveaxis(mixed.reshape(rows, kv_heads, -1, chunk, size), 3, 1).reshape(rows, chunk, heads, size)


def logits(config: ModelConfig, params: Params, hidden: jax.Array) -> jax.Array:
    """float32[..., V] from hidden states [..., D]."""
    ends = _ends(config, params)
    scores = ends.embed.attend(hidden) if config.tie_word_embeddings else ends.head(hidden)
    return scores.astype(jnp.float32)


def _ends(config: ModelConfig, params: Params) -> Ends:
    ends, _ = _definitions(config)
    return nnx.merge(ends, {name: arrays for name, arrays in params.items() if name != "layers"})


def _block(config: ModelConfig, arrays: Params) -> Block:
    """One layer, of its own arrays."""
    _, block = _definitions(config)
    return nnx.merge(block, arrays)


@functools.cache
def _definitions(config: ModelConfig) -> tuple[Any, Any]:
    """The modules without arrays: what merging needs, made once per config."""
    abstract = nnx.eval_shape(lambda: (Ends(config, nnx.Rngs(0)), Block(config, nnx.Rngs(0))))
    return nnx.split(abstract[0])[0], nnx.split(abstract[1])[0]


def _norm(config: ModelConfig, size: int, rngs: nnx.Rngs) -> nnx.RMSNorm:
    return nnx.RMSNorm(
        size, epsilon=config.rms_norm_eps, dtype=jnp.dtype(config.dtype), param_dtype=jnp.dtype(config.param_dtype),
        rngs=rngs,
    )  # fmt: skip


def _linear(config: ModelConfig, fan_in: int) -> dict[str, Any]:
    return {
        "kernel_init": nnx.initializers.normal(fan_in**-0.5),
        "dtype": jnp.dtype(config.dtype),
        "param_dtype": jnp.dtype(config.param_dtype),
    }
