"""ModelConfig: what it reads of a config.json, what it refuses, what it writes."""

import json
from pathlib import Path

import pytest
from transformers import AutoConfig

from cojax.policy.config import ModelConfig

TINY = ModelConfig(61, 32, 40, 2, 4, 2, 16, rope_theta=5e5)


def test_reads_the_published_qwen3_4b_file() -> None:
    hf = {
        "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 2560, "intermediate_size": 9728,
        "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "rope_theta": 5000000, "rope_scaling": None, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
        "attention_bias": False, "use_sliding_window": False, "sliding_window": None, "hidden_act": "silu",
        "max_position_embeddings": 262144, "torch_dtype": "bfloat16", "transformers_version": "4.51.0",
    }  # fmt: skip
    config = ModelConfig.from_hf(hf)
    assert (config.head_dim, config.rope_theta, config.dtype) == (128, 5e6, "bfloat16")
    assert config.qk_norm
    assert not config.attention_bias
    assert ModelConfig.from_hf(hf, dtype="float32").param_dtype == "bfloat16"


def test_reads_qwen2_with_its_bias_and_default_head_size(tmp_path: Path) -> None:
    hf = {
        "model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944,
        "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}, "tie_word_embeddings": False,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(hf))
    config = ModelConfig.from_hf(tmp_path)
    assert (config.head_dim, config.rope_theta) == (128, 1e6)
    assert config.attention_bias
    assert not config.qk_norm


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "llama"}, "model_type 'llama'"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"use_sliding_window": True}, "use_sliding_window=True"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "rope_scaling of type 'dynamic'"),
        ({"attention_bias": True}, "attention_bias=True"),
        ({"vocab_size": None}, "incomplete: .*vocab_size"),
        ({"num_key_value_heads": 3}, "no multiple of num_key_value_heads 3"),
        ({"torch_dtype": "int8", "dtype": "int8"}, "dtype 'int8'"),
        ({"head_dim": 15}, "head_dim 15 is odd"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
    ],
)
def test_refuses_what_it_does_not_compute(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_hf({**TINY.to_hf(), **change})


@pytest.mark.parametrize("qk_norm", [True, False])
def test_transformers_reads_what_it_writes(tmp_path: Path, qk_norm: bool) -> None:
    config = ModelConfig(61, 32, 40, 2, 4, 2, 16, rope_theta=5e5, qk_norm=qk_norm, attention_bias=not qk_norm)
    (tmp_path / "config.json").write_text(json.dumps(config.to_hf()))
    read = AutoConfig.from_pretrained(tmp_path)
    assert type(read).__name__ == ("Qwen3Config" if qk_norm else "Qwen2Config")
    assert (read.hidden_size, read.num_key_value_heads, read.head_dim) == (32, 2, 16)
    assert read.rope_parameters["rope_theta"] == 5e5
    assert ModelConfig.from_hf(tmp_path) == config
    assert ModelConfig.from_hf(read.to_dict()) == config


def test_has_no_name_for_norm_with_bias() -> None:
    with pytest.raises(ValueError, match="has no Hugging Face class"):
        ModelConfig(61, 32, 40, 2, 4, 2, 16, attention_bias=True).to_hf()
