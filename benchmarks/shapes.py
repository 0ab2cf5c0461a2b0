"""Shapes of decoders to measure, by name, and the operations and bytes that a model needs, whatever program runs it.

The shapes are the published Qwen configurations and two small ones. The operations and bytes are the numerators of MFU
and of shares of bandwidth.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from cojax.compile.programs import count_forward_flops, count_parameters, layer_weights
from cojax.policy.config import ModelConfig
from cojax.policy.parameters import parameters
from cojax.settings.base import choose

_QWEN3: Mapping[str, Any] = {"vocab_size": 151_936, "head_dim": 128, "num_key_value_heads": 8, "rope_theta": 1e6}

SHAPES: Mapping[str, ModelConfig] = {
    # The shape that comparable projects were measured with on a CPU.
    "nano": ModelConfig(4096, 256, 768, 4, 8, 4, 32, rope_theta=1e6, max_position_embeddings=4096),
    # The policy of experiments/desk.py.
    "demo": ModelConfig(432, 128, 384, 4, 4, 2, max_position_embeddings=4096),
    # Qwen/Qwen3-0.6B, Qwen3-1.7B and Qwen3-4B-Instruct-2507; below, Qwen3-30B-A3B-Instruct-2507.
    "0.6b": ModelConfig(
        hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
        **_QWEN3, max_position_embeddings=40_960,
    ),
    "1.7b": ModelConfig(
        hidden_size=2048, intermediate_size=6144, num_hidden_layers=28, num_attention_heads=16,
        **_QWEN3, max_position_embeddings=40_960,
    ),
    "4b": ModelConfig(
        hidden_size=2560, intermediate_size=9728, num_hidden_layers=36, num_attention_heads=32,
        **{**_QWEN3, "rope_theta": 5e6}, max_position_embeddings=262_144,
    ),
    # Qwen/Qwen2.5-7B-Instruct.
    "7b": ModelConfig(
        vocab_size=152_064, hidden_size=3584, intermediate_size=18_944, num_hidden_layers=28, num_attention_heads=28,
        num_key_value_heads=4, rope_theta=1e6, tie_word_embeddings=False, model_type="qwen2",
    ),
    "30b-a3b": ModelConfig(
        hidden_size=2048, intermediate_size=6144, num_hidden_layers=48, num_attention_heads=32,
        **{**_QWEN3, "rope_theta": 1e7, "num_key_value_heads": 4}, max_position_embeddings=262_144,
        tie_word_embeddings=False, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768,
        model_type="qwen3_moe", norm_topk_prob=True,
    ),
}  # fmt: skip


def model_config(
    shape: str, layers: int | None, override: Sequence[str], dtype: str, param_dtype: str | None = None
) -> ModelConfig:
    """The named shape, with another number of layers and with fields replaced by `override`, "field=value" each.

    `dtype` is that of computation, `param_dtype` that of parameters (None: the same). Raises ValueError for an unknown
    shape, field or value.
    """
    config: ModelConfig = choose(SHAPES, shape, "shape")
    fields = {field.name: field.type for field in dataclasses.fields(ModelConfig)}
    flag_of_field = {"num_hidden_layers": "--layers", "dtype": "--dtype", "param_dtype": "--param-dtype"}
    values: dict[str, Any] = {}
    for assignment in override:
        field_name, _, text = assignment.partition("=")
        if field_name in flag_of_field:
            raise ValueError(f"--override={assignment}: use {flag_of_field[field_name]} for that")
        if field_name not in fields or not text:
            raise ValueError(f"--override={assignment}: expected field=value, with a field of {', '.join(fields)}")
        values[field_name] = _parse_value(assignment, text, fields[field_name])
    if layers is not None:
        values["num_hidden_layers"] = layers
    return dataclasses.replace(config, **values, dtype=dtype, param_dtype=param_dtype or dtype)


_VALUE_KINDS = {bool: "true or false", int: "a whole number, such as 64", float: "a number, such as 1e6"}


def _parse_value(assignment: str, text: str, value_type: Any) -> bool | int | float:
    """The text as the field's type, which is int, float or bool for what a flag can set."""
    parsers: dict[Any, Callable[[str], Any]] = {bool: _parse_bool, int: int, float: float}
    if value_type not in parsers:
        raise ValueError(f"--override={assignment}: only numbers, true and false can be set; choose another --shape")
    try:
        return parsers[value_type](text)
    except (KeyError, ValueError) as error:
        raise ValueError(f"--override={assignment}: expected {_VALUE_KINDS[value_type]}") from error


def _parse_bool(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def update_flops(config: ModelConfig, lengths: Sequence[int], *, reference: bool, prompt_length: int = 0) -> int:
    """Operations of one update: a forward, a backward of twice as much, and the reference's forward if there is one.

    Recomputation in the backward pass, which saves memory, does not count. The texts begin with the same
    `prompt_length` tokens: these count once, and every token behind them is scored.
    """
    scored_count = sum(lengths) - prompt_length * len(lengths)
    repeated_flops = (len(lengths) - 1) * count_forward_flops(config, [prompt_length], 0)
    return (4 if reference else 3) * (count_forward_flops(config, lengths, scored_count) - repeated_flops)


def decode_flops(config: ModelConfig, batch: int, context: float) -> float:
    """Operations of one decode step of `batch` conversations, whose tokens attend to `context` tokens on average.

    2·N·batch + 2·D·V·batch + 4·L·H·S·context·batch, counted as in `count_forward_flops`.
    """
    product_flops = 2 * (layer_weights(config) + config.hidden_size * config.vocab_size)
    attention_flops = 4 * config.num_hidden_layers * config.num_attention_heads * config.head_dim * context
    return batch * (product_flops + attention_flops)


def parameter_bytes(config: ModelConfig) -> int:
    """Bytes of all parameters, which any pass over many tokens must read once."""
    return count_parameters(config) * jnp.dtype(config.param_dtype).itemsize


def decode_bytes(config: ModelConfig, batch: int, context: float) -> float:
    """Bytes that one decode step must read: weights once, and keys and values of `context` tokens for each of `batch`.

    Of an embedding that is not the head too, only the rows of the batch count. Of E experts, with k a token, those
    count that an even routing is expected to visit: E · (1 − (1 − k/E)^batch).
    """
    parameter_numbers = 0.0
    for row in parameters(config):
        row_numbers = float(math.prod(row.shape(config)))
        if "experts" in row.axes:
            row_numbers *= 1 - (1 - config.num_experts_per_tok / config.num_experts) ** batch
        if row.path[0] == "embed" and not config.tie_word_embeddings:
            row_numbers *= min(1.0, batch / config.vocab_size)
        parameter_numbers += row_numbers
    cache_numbers = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * context * batch
    return parameter_numbers * jnp.dtype(config.param_dtype).itemsize + cache_numbers * jnp.dtype(config.dtype).itemsize
