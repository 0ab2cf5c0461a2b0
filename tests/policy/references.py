"""Tiny models with reference values: files that fixtures/make_reference.py wrote with transformers and torch."""

import functools
import json
from pathlib import Path
from typing import Any

import compiling
import jax
import numpy as np

from cojax.policy import cached, transformer
from cojax.policy.config import ModelConfig
from cojax.policy.parameters import from_hf
from cojax.policy.transformer import Params

# Compiled once per config and shape: operation by operation they would take seconds.
initialize = functools.cache(compiling.drawn)
hidden_states = jax.jit(transformer.compute_hidden, static_argnums=0)
cached_hidden_states = jax.jit(cached.compute_cached_states, static_argnums=0, static_argnames="span")

FIXTURES = Path(__file__).parent / "fixtures"


@functools.cache
def reference(name: str) -> tuple[ModelConfig, Params, dict[str, np.ndarray]]:
    """Config, parameters, and `tokens` int32[1, T], `logits` [T, V], `logprobs` [T − 1] of "qwen2" or "qwen3"."""
    with np.load(FIXTURES / f"{name}.npz") as file:
        arrays: dict[str, Any] = dict(file)
    config = ModelConfig.from_hf(json.loads(str(arrays.pop("config"))))
    values = {key: arrays.pop(key) for key in ("tokens", "logits", "logprobs")}
    values["tokens"] = values["tokens"][None].astype(np.int32)
    return config, from_hf(config, arrays), values


def one_segment(tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """positions and segment_ids, int32[B, T], of rows that are one segment each."""
    positions = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)
    return positions, np.ones_like(tokens)
