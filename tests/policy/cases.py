"""Small models of every architecture: their config.json, weights drawn by NumPy from a seed, and rows of tokens.

The same values go to transformers (fixtures/make_reference.py, test_live_parity.py) and to cojax. Scales are chosen
such that attention, positions and routing all matter and logits have a standard deviation of at least 1.
"""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cojax.policy.config import ModelConfig
from cojax.policy.parameters import Params, from_hf, parameters

FIXTURES = Path(__file__).parent / "fixtures"
LENGTHS = (24, 17, 21)  # real tokens of the three rows; the second is padded on the left, the third on the right
WIDTH = max(LENGTHS)

_BASE: Mapping[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "rope_theta": 1e4,
    "torch_dtype": "float32",
}
_QWEN2 = {**_BASE, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": False}
_QWEN3 = {
    **_BASE, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 16, "rope_theta": 1e6,
    "tie_word_embeddings": True, "attention_bias": False,
}  # fmt: skip
_MOE = {
    **_QWEN3, "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 8,
    "num_experts_per_tok": 2, "moe_intermediate_size": 24, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "tie_word_embeddings": False,
}  # fmt: skip
_LLAMA = {
    **_BASE, "model_type": "llama", "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": False,
    "attention_bias": False, "mlp_bias": False, "pretraining_tp": 1, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
_TUNED = {
    **_YARN, "original_max_position_embeddings": 64, "rope_theta": 5e3, "beta_fast": 4.0, "beta_slow": 0.5,
    "attention_factor": 1.3, "truncate": False,
}  # fmt: skip


def without(hf: Mapping[str, Any], field: str) -> dict[str, Any]:
    return {name: value for name, value in hf.items() if name != field}


@dataclasses.dataclass(frozen=True)
class Case:
    """`hf` is config.json; a row's tokens stand at positions `first`, `first` + `stride`, …"""

    name: str
    hf: Mapping[str, Any]
    first: int = 0
    stride: int = 1

    @functools.cached_property
    def config(self) -> ModelConfig:
        return ModelConfig.from_hf(self.hf)

    @functools.cached_property
    def weights(self) -> dict[str, np.ndarray]:
        """Hugging Face name → float32 array."""
        draw = np.random.default_rng(zlib.crc32(self.name.encode()))
        arrays = {}
        for row in parameters(self.config):
            shape = row.hf_shape(self.config)
            for _, name in row.hf_names(self.config):
                noise = draw.standard_normal(shape).astype(np.float32)
                arrays[name] = (_center(name) + _scale(name, shape) * noise).astype(np.float32)
        return arrays

    @functools.cached_property
    def params(self) -> Params:
        return from_hf(self.config, self.weights)

    @functools.cached_property
    def rows(self) -> list[np.ndarray]:
        """Three texts of LENGTHS tokens."""
        draw = np.random.default_rng(zlib.crc32(self.name.encode()) + 1)
        return [draw.integers(0, self.hf["vocab_size"], length).astype(np.int32) for length in LENGTHS]

    def _positions(self, count: int) -> np.ndarray:
        return (self.first + self.stride * np.arange(count)).astype(np.int32)

    def padded(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """tokens, positions and segment_ids, int32[3, WIDTH]: none, left and right padding."""
        tokens, positions, segments = (np.zeros((3, WIDTH), np.int32) for _ in range(3))
        for index, row in enumerate(self.rows):
            start = WIDTH - len(row) if index == 1 else 0
            here = slice(start, start + len(row))
            tokens[index, here], segments[index, here] = row, 1
            positions[index, here] = self._positions(len(row))
        return tokens, positions, segments

    def packed(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The same texts in one row, int32[1, ΣLENGTHS]."""
        positions = [self._positions(len(row)) for row in self.rows]
        segments = [np.full(len(row), index + 1, np.int32) for index, row in enumerate(self.rows)]
        return tuple(np.concatenate(parts)[None] for parts in (self.rows, positions, segments))  # type: ignore[return-value]


def _center(name: str) -> float:
    return 1.0 if "norm" in name else 0.0


def _scale(name: str, shape: tuple[int, ...]) -> float:
    if "norm" in name or "bias" in name:
        return 0.3
    if "embed" in name:
        return 0.5
    if name.endswith("mlp.gate.weight"):
        return 0.4
    return (2.0 if "q_proj" in name or "k_proj" in name else 1.2) * shape[-1] ** -0.5


CASES = {
    case.name: case
    for case in (
        Case("qwen2_tied_ratio1", {**_QWEN2, "tie_word_embeddings": True, "num_key_value_heads": 4}),
        Case("qwen2_untied_ratio2", _QWEN2),
        Case(
            "qwen2_ratio7",
            {**_QWEN2, "hidden_size": 56, "num_attention_heads": 7, "num_key_value_heads": 1, "rope_theta": 1e6},
        ),
        Case("qwen2_linear", {**_QWEN2, "rope_scaling": {"type": "linear", "factor": 2.5}}),
        Case("qwen3_wide_heads", _QWEN3),
        Case("qwen3_long", {**_QWEN3, "max_position_embeddings": 40_960}, first=5_000, stride=1_100),
        Case("qwen3_yarn", {**_QWEN3, "rope_theta": 1e4, "rope_scaling": _YARN}, first=30),
        Case(
            "qwen3_yarn_tuned",
            {
                **without(_QWEN3, "rope_theta"),
                "rope_parameters": _TUNED,
                "max_position_embeddings": 256,
            },
            stride=9,
        ),
        Case("moe_normalised", {**_MOE, "norm_topk_prob": True}),
        Case("moe_plain", {**_MOE, "norm_topk_prob": False}),
        # SmolLM2's ratio of heads, with its base.
        Case(
            "llama_tied_ratio3",
            {
                **_LLAMA, "tie_word_embeddings": True, "hidden_size": 72, "num_attention_heads": 9,
                "num_key_value_heads": 3, "rope_theta": 1e5, "rms_norm_eps": 1e-5,
            },
        ),
        # Wide heads, and one for each key head, by a file of the first kind that does not count these.
        Case("llama_untied_ratio1", {**without(_LLAMA, "num_key_value_heads"), "head_dim": 16}),
        # Pairs that are kept, interpolated and divided by the factor.
        Case(
            "llama_rope3",
            {
                **without(_LLAMA, "rope_theta"), "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 16,
                "rope_parameters": {
                    "rope_type": "llama3", "rope_theta": 5e2, "factor": 8.0, "low_freq_factor": 1.5,
                    "high_freq_factor": 5.0, "original_max_position_embeddings": 256,
                },
                "max_position_embeddings": 2_048,
            },
            stride=31,
        ),
    )
}  # fmt: skip
