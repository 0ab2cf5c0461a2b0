"""The operations and bytes that a model needs, whatever program runs it: numerators of MFU and bandwidth shares."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp

from cojax.policy.config import ModelConfig
from cojax.policy.parameters import parameters


def parameter_count(config: ModelConfig) -> int:
    """The number of parameters of the model, with every expert's."""
    return sum(math.prod(row.shape(config)) for row in parameters(config))


def layer_weights(config: ModelConfig) -> int:
    """N: the weights of all layers that one token is multiplied with; of experts only its own.

    L · (D·S·(2H + 2K) + 3·D·F); for a sparse layer D·E + 3·D·F·k in place of 3·D·F.
    """
    width, heads = config.hidden_size, config.num_attention_heads + config.num_key_value_heads
    attention = 2 * width * config.head_dim * heads
    feed_forward = 3 * width * config.intermediate_size
    if config.sparse:
        experts = 3 * width * config.moe_intermediate_size * config.num_experts_per_tok
        feed_forward = width * config.num_experts + experts
    return config.num_hidden_layers * (attention + feed_forward)


def forward_flops(config: ModelConfig, lengths: Sequence[int], scored: int) -> int:
    """Operations of one forward over texts of these lengths, with logits for `scored` tokens in all.

    2·N·Σn + 2·D·V·scored + Σ 4·L·H·S·n(n + 1)/2: a multiplication and an addition count as two, a token attends to
    itself and those before it, by two products. Norms, rotations and softmaxes do not count.
    """
    products = 2 * layer_weights(config) * sum(lengths) + 2 * config.hidden_size * config.vocab_size * scored
    pairs = sum(n * (n + 1) // 2 for n in lengths)
    width = config.num_attention_heads * config.head_dim
    return products + 4 * config.num_hidden_layers * width * pairs


def update_flops(config: ModelConfig, lengths: Sequence[int], *, reference: bool) -> int:
    """Operations of one update: a forward, a backward of twice as much, and the reference's forward where there is one.

    Recomputation in the backward pass, which saves memory, does not count. Every token is scored.
    """
    return (4 if reference else 3) * forward_flops(config, lengths, sum(lengths))


def decode_flops(config: ModelConfig, batch: int, context: float) -> float:
    """Operations of one decode step of `batch` conversations, whose tokens attend to `context` tokens on average.

    2·N·batch + 2·D·V·batch + 4·L·H·S·context·batch, counted as in `forward_flops`.
    """
    products = 2 * (layer_weights(config) + config.hidden_size * config.vocab_size)
    attention = 4 * config.num_hidden_layers * config.num_attention_heads * config.head_dim * context
    return batch * (products + attention)


def parameter_bytes(config: ModelConfig) -> int:
    """Bytes of all parameters, which any pass over many tokens must read once."""
    return parameter_count(config) * jnp.dtype(config.param_dtype).itemsize


def decode_bytes(config: ModelConfig, batch: int, context: float) -> float:
    """Bytes that one decode step must read: weights once, and keys and values of `context` tokens for each of `batch`.

    Of an embedding that is not the head too, only the rows of the batch count. Of E experts, with k a token, those
    count that an even routing is expected to visit: E · (1 − (1 − k/E)^batch).
    """
    numbers = 0.0
    for row in parameters(config):
        size = float(math.prod(row.shape(config)))
        if "experts" in row.axes:
            size *= 1 - (1 - config.num_experts_per_tok / config.num_experts) ** batch
        if row.path[0] == "embed" and not config.tie_word_embeddings:
            size *= min(1.0, batch / config.vocab_size)
        numbers += size
    cached = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * context * batch
    return numbers * jnp.dtype(config.param_dtype).itemsize + cached * jnp.dtype(config.dtype).itemsize
