"""The shape of a decoder, in the field names of a Hugging Face config.json (Qwen2, Qwen2.5, Qwen3)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_DTYPES = ("float32", "bfloat16", "float16")
# Fields that change the arithmetic, with the only value this decoder computes.
_FIXED: Mapping[str, Any] = {"hidden_act": "silu", "use_sliding_window": False, "mlp_bias": False}


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """A dense decoder. `dtype` is computed in, `param_dtype` stored; head_dim 0 means hidden_size / heads.

    `attention_bias` puts a bias on query, key and value (Qwen2); `qk_norm` normalises each head's queries and keys
    (Qwen3).
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int = 0
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = True
    attention_bias: bool = False
    qk_norm: bool = True
    max_position_embeddings: int = 32_768
    dtype: str = "float32"
    param_dtype: str = "float32"

    def __post_init__(self) -> None:
        if not self.head_dim:
            if self.hidden_size % self.num_attention_heads:
                raise ValueError(
                    f"hidden_size {self.hidden_size} is no multiple of num_attention_heads {self.num_attention_heads}; "
                    "give head_dim"
                )
            object.__setattr__(self, "head_dim", self.hidden_size // self.num_attention_heads)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, (int, float)) and not isinstance(value, bool) and value <= 0:
                raise ValueError(f"{field.name} is {value}; expected a positive number")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} is no multiple of "
                f"num_key_value_heads {self.num_key_value_heads}; every key head serves equally many query heads"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd; rotary embedding turns pairs, give an even one")
        for name in (self.dtype, self.param_dtype):
            if name not in _DTYPES:
                raise ValueError(f"dtype {name!r} is not supported; available: {', '.join(_DTYPES)}")

    @classmethod
    def from_hf(cls, source: Mapping[str, Any] | str | Path, **overrides: Any) -> ModelConfig:
        """The config of a Hugging Face model: its config.json as a mapping, or the folder that holds one.

        `overrides` replace fields of the result, e.g. `dtype="bfloat16"`. Raises ValueError for a field whose value
        this decoder does not compute, FileNotFoundError where the folder has no config.json.
        """
        hf = source if isinstance(source, Mapping) else json.loads((Path(source) / "config.json").read_text())
        family = hf.get("model_type")
        if family not in ("qwen2", "qwen3"):
            raise ValueError(f"model_type {family!r} is not supported; available: qwen2, qwen3")
        _refuse_unsupported(hf)
        fields = {field.name for field in dataclasses.fields(cls)}
        values = {name: hf[name] for name in fields if hf.get(name) is not None}
        values["rope_theta"] = _rope_theta(hf)
        values["attention_bias"] = family == "qwen2"
        values["qk_norm"] = family == "qwen3"
        values["tie_word_embeddings"] = hf.get("tie_word_embeddings", False)
        values["dtype"] = values["param_dtype"] = hf.get("dtype") or hf.get("torch_dtype") or "float32"
        try:
            return cls(**{**values, **overrides})
        except TypeError as error:
            raise ValueError(f"config.json is incomplete: {error}") from error

    def to_hf(self) -> dict[str, Any]:
        """A config.json that transformers reads as Qwen3ForCausalLM or Qwen2ForCausalLM.

        Raises ValueError for a combination of bias and norm that neither family has.
        """
        if self.qk_norm == self.attention_bias:
            raise ValueError(
                f"qk_norm={self.qk_norm} with attention_bias={self.attention_bias} has no Hugging Face class; "
                "Qwen3 has the norm alone, Qwen2 the bias alone"
            )
        values = dataclasses.asdict(self)
        del values["qk_norm"], values["param_dtype"]
        family = "qwen3" if self.qk_norm else "qwen2"
        return {
            "architectures": ["Qwen3ForCausalLM" if self.qk_norm else "Qwen2ForCausalLM"],
            "model_type": family,
            **values,
            "dtype": self.param_dtype,
            "torch_dtype": self.param_dtype,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            **{name: value for name, value in _FIXED.items() if name != "mlp_bias"},
        }


def _refuse_unsupported(hf: Mapping[str, Any]) -> None:
    for name, expected in _FIXED.items():
        if hf.get(name, expected) != expected:
            raise ValueError(f"config.json has {name}={hf[name]!r}; only {expected!r} is supported")
    if hf["model_type"] == "qwen3" and hf.get("attention_bias", False):
        raise ValueError("config.json has attention_bias=True; for qwen3 only False is supported")
    for name in ("rope_scaling", "rope_parameters"):
        rope = hf.get(name) or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind != "default":
            raise ValueError(f"config.json has {name} of type {kind!r}; only plain rotary embedding is supported")


def _rope_theta(hf: Mapping[str, Any]) -> float:
    """Newer files keep it inside rope_parameters, older ones at the top."""
    return float((hf.get("rope_parameters") or {}).get("rope_theta") or hf.get("rope_theta") or 10_000.0)
