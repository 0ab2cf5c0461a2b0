"""ModelConfig: what it reads of a config.json, what it refuses, what it writes."""

import dataclasses
import json
import math
from pathlib import Path

import jax
import pytest
from transformers import AutoConfig

from cojax.policy.config import FAMILIES, ModelConfig, RopeScaling
from cojax.policy.family import FULL, LLAMA, QWEN3_MOE, SLIDING, Family
from cojax.policy.parameters import parameters
from cojax.policy.transformer import compute_hidden, initialize

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
    assert config.model_type == "qwen3"
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
    assert config.model_type == "qwen2"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gemma"}, "model_type 'gemma'"),
        ({"model_type": "llama", "attention_bias": True}, "attention_bias=True; for llama only False"),
        ({"model_type": "llama", "mlp_bias": True}, "mlp_bias=True; only False"),
        ({"model_type": "llama", "pretraining_tp": 2}, "pretraining_tp=2; only 1"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"use_sliding_window": True}, "use_sliding_window=True"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "rope_scaling of type 'dynamic'"),
        ({"attention_bias": True}, "attention_bias=True"),
        ({"vocab_size": None}, "incomplete: .*vocab_size"),
        ({"num_key_value_heads": 3}, "not a multiple of num_key_value_heads 3"),
        ({"torch_dtype": "int8", "dtype": "int8"}, "dtype 'int8'"),
        ({"head_dim": 15}, "head_dim 15 is odd"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types with 'sliding_attention'"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
        ({"model_type": "qwen2"}, "attention_bias=False; for qwen2 only True"),
    ],
)
def test_refuses_what_it_does_not_compute(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_hf({**TINY.to_hf(), **change})


@pytest.mark.parametrize(
    ("name", "model_type"), [("Qwen3Config", "qwen3"), ("Qwen2Config", "qwen2"), ("LlamaConfig", "llama")]
)
def test_transformers_reads_what_it_writes(tmp_path: Path, name: str, model_type: str) -> None:
    config = dataclasses.replace(TINY, model_type=model_type)
    (tmp_path / "config.json").write_text(json.dumps(config.to_hf()))
    read = AutoConfig.from_pretrained(tmp_path)
    assert type(read).__name__ == name
    assert (read.hidden_size, read.num_key_value_heads, read.head_dim) == (32, 2, 16)
    assert read.rope_parameters["rope_theta"] == 5e5
    assert ModelConfig.from_hf(tmp_path) == config
    assert ModelConfig.from_hf(read.to_dict()) == config


def test_reads_llama_with_what_its_files_leave_out() -> None:
    """Heads that are not grouped and 2,048 positions; and tokens 1 and 2 end no text unless a file says so."""
    hf = {
        "model_type": "llama", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
        "num_hidden_layers": 32, "num_attention_heads": 32, "rms_norm_eps": 1e-6, "pretraining_tp": 1,
    }  # fmt: skip
    config = ModelConfig.from_hf(hf)
    assert (config.num_key_value_heads, config.head_dim, config.max_position_embeddings) == (32, 128, 2_048)
    assert (config.model_type, config.tie_word_embeddings) == ("llama", False)
    written = config.to_hf()
    assert (written["bos_token_id"], written["eos_token_id"]) == (None, None)


@pytest.fixture
def banded(monkeypatch: pytest.MonkeyPatch) -> ModelConfig:
    """A model of a family whose files no other reads: windows in every second layer, a rope and names of its own."""
    rows = tuple((path, axes, name.replace("self_attn", "attn"), inputs) for path, axes, name, inputs in LLAMA.rows)
    family = Family(
        "banded", "BandedForCausalLM", rows, hidden_act="gelu", activation=jax.nn.gelu, layers=(SLIDING, FULL),
        rope_theta=1e6,
    )  # fmt: skip
    monkeypatch.setitem(FAMILIES, "banded", family)  # type: ignore[arg-type]
    return dataclasses.replace(TINY, num_hidden_layers=3, model_type="banded", sliding_window=4)


def test_a_further_family_is_an_entry(banded: ModelConfig) -> None:
    written = banded.to_hf()
    assert (written["architectures"], written["hidden_act"]) == (["BandedForCausalLM"], "gelu")
    assert written["layer_types"] == ["sliding_attention", "full_attention", "sliding_attention"]
    assert (written["sliding_window"], written["use_sliding_window"]) == (4, True)
    assert ModelConfig.from_hf(written) == banded
    left_out = {"rope_theta": None, "rope_parameters": None, "layer_types": None, "use_sliding_window": None}
    assert ModelConfig.from_hf({**written, **left_out}) == dataclasses.replace(banded, rope_theta=1e6)
    assert {"model.layers.2.attn.q_proj.weight", "lm_head.weight"} <= {
        name
        for row in parameters(dataclasses.replace(banded, tie_word_embeddings=False))
        for _, name in row.hf_names(banded)
    }


def test_layers_have_the_windows_of_their_kind(banded: ModelConfig) -> None:
    assert (banded.layer_windows, TINY.layer_windows) == ((4, 2**31 - 1, 4), None)
    plain = dataclasses.replace(banded, sliding_window=0)
    assert (plain.layer_windows, set(plain.layer_types)) == (None, {"full_attention"})
    # Files of Qwen2 name a window that no layer has.
    assert ModelConfig.from_hf({**TINY.to_hf(), "sliding_window": 4}) == TINY
    with pytest.raises(ValueError, match="layer_types with 'full_attention'; only 'sliding_attention'"):
        ModelConfig.from_hf({**banded.to_hf(), "layer_types": ["full_attention"] * 3})
    with pytest.raises(ValueError, match="use_sliding_window=False; only True"):
        ModelConfig.from_hf({**banded.to_hf(), "use_sliding_window": False})
    with pytest.raises(ValueError, match="hidden_act='silu'; only 'gelu'"):
        ModelConfig.from_hf({**banded.to_hf(), "hidden_act": "silu"})
    with pytest.raises(ValueError, match="sliding_window is 4, but no layer of qwen3 is sliding_attention"):
        dataclasses.replace(TINY, sliding_window=4)
    with pytest.raises(ValueError, match="sliding_window is -1; expected a positive number"):
        dataclasses.replace(banded, sliding_window=-1)


def test_refuses_a_family_that_it_does_not_compute() -> None:
    with pytest.raises(ValueError, match=r"banded has layers .*chunked_attention.*expected one or more of full_att"):
        Family("banded", "", LLAMA.rows, layers=("chunked_attention",))
    with pytest.raises(ValueError, match="banded has experts with gelu"):
        Family("banded", "", QWEN3_MOE.rows, hidden_act="gelu", activation=jax.nn.gelu)
    with pytest.raises(ValueError, match="model_type 'qwen9' is not supported; available: llama, qwen2"):
        dataclasses.replace(TINY, model_type="qwen9")
    with pytest.raises(ValueError, match="num_experts is 8, but layers of qwen3 have none"):
        dataclasses.replace(MOE, model_type="qwen3")
    with pytest.raises(ValueError, match="num_experts is 0, but layers of qwen3_moe have some"):
        dataclasses.replace(TINY, model_type="qwen3_moe")


def test_a_config_survives_json() -> None:
    config = dataclasses.replace(TINY, rope_scaling=RopeScaling("yarn", 4.0, 64))
    assert ModelConfig(**json.loads(json.dumps(dataclasses.asdict(config)))) == config


MOE = ModelConfig(
    61,
    32,
    40,
    2,
    4,
    2,
    16,
    model_type="qwen3_moe",
    num_experts=8,
    num_experts_per_tok=2,
    moe_intermediate_size=24,
    norm_topk_prob=True,
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mlp_only_layers": [0]}, r"mlp_only_layers=\[0\]"),
        ({"decoder_sparse_step": 2}, "decoder_sparse_step=2"),
        ({"num_experts": None}, "num_experts is missing"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok 9 exceeds num_experts 8"),
        ({"moe_intermediate_size": 0}, "moe_intermediate_size is 0"),
    ],
)
def test_refuses_what_it_does_not_compute_of_experts(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_hf({**MOE.to_hf(), **change})


def test_transformers_reads_the_experts_it_writes(tmp_path: Path) -> None:
    config = dataclasses.replace(MOE, rope_scaling=RopeScaling("yarn", 4.0, 8_192, 1.5))
    (tmp_path / "config.json").write_text(json.dumps(config.to_hf()))
    read = AutoConfig.from_pretrained(tmp_path)
    assert type(read).__name__ == "Qwen3MoeConfig"
    assert (read.num_experts, read.num_experts_per_tok, read.moe_intermediate_size) == (8, 2, 24)
    assert read.norm_topk_prob
    assert (read.rope_parameters["rope_type"], read.rope_parameters["attention_factor"]) == ("yarn", 1.5)
    assert ModelConfig.from_hf(tmp_path) == config
    assert ModelConfig.from_hf(read.to_dict()) == config  # with num_local_experts


def test_inactive_fields_are_no_fault() -> None:
    """Published files carry sliding windows that are switched off, and a dense model may name experts."""
    hf = {**TINY.to_hf(), "sliding_window": 4096, "max_window_layers": 1, "layer_types": ["full_attention"] * 2}
    assert ModelConfig.from_hf({**hf, "num_experts": 8, "rope_scaling": None}) == TINY


def test_head_size_that_a_file_leaves_out() -> None:
    """Qwen3's class fixes it to 128; Qwen2 and Qwen3-MoE divide the width."""
    without = {name: value for name, value in TINY.to_hf().items() if name != "head_dim"}
    assert ModelConfig.from_hf(without).head_dim == 128
    without = {name: value for name, value in MOE.to_hf().items() if name != "head_dim"}
    assert ModelConfig.from_hf(without).head_dim == 8


# As published beside the weights of the four models.
_PUBLISHED = {
    "hidden_act": "silu", "attention_dropout": 0.0, "initializer_range": 0.02, "rms_norm_eps": 1e-06,
    "torch_dtype": "bfloat16", "use_cache": True, "use_sliding_window": False,
}  # fmt: skip
PUBLISHED = {
    134_515_008: {
        **_PUBLISHED, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False,
        "hidden_size": 576, "intermediate_size": 1536, "max_position_embeddings": 8192, "mlp_bias": False,
        "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3, "pretraining_tp": 1,
        "rms_norm_eps": 1e-05, "rope_interleaved": False, "rope_scaling": None, "rope_theta": 100000,
        "tie_word_embeddings": True, "vocab_size": 49152, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2,
    },
    7_615_616_512: {
        **_PUBLISHED, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 3584,
        "intermediate_size": 18944, "max_position_embeddings": 32768, "max_window_layers": 28,
        "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4, "rope_theta": 1000000.0,
        "sliding_window": 131072, "tie_word_embeddings": False, "vocab_size": 152064,
    },
    4_022_468_096: {
        **_PUBLISHED, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False,
        "head_dim": 128, "hidden_size": 2560, "intermediate_size": 9728, "max_position_embeddings": 262144,
        "max_window_layers": 36, "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8,
        "rope_scaling": None, "rope_theta": 5000000, "sliding_window": None, "tie_word_embeddings": True,
        "vocab_size": 151936,
    },
    30_532_122_624: {
        **_PUBLISHED, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "attention_bias": False,
        "decoder_sparse_step": 1, "head_dim": 128, "hidden_size": 2048, "intermediate_size": 6144,
        "max_position_embeddings": 262144, "max_window_layers": 48, "mlp_only_layers": [],
        "moe_intermediate_size": 768, "norm_topk_prob": True, "num_attention_heads": 32, "num_experts": 128,
        "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4, "output_router_logits": False,
        "rope_scaling": None, "rope_theta": 10000000, "router_aux_loss_coef": 0.001, "sliding_window": None,
        "tie_word_embeddings": False, "vocab_size": 151936,
    },
}  # fmt: skip


@pytest.mark.parametrize(("count", "hf"), PUBLISHED.items(), ids=["SmolLM2-135M", "2.5-7B", "3-4B", "3-30B-A3B"])
def test_published_models_build_with_their_number_of_parameters(count: int, hf: dict) -> None:
    config = ModelConfig.from_hf(hf)
    abstract = jax.eval_shape(lambda: initialize(config, 0))
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(abstract)) == count
    assert {leaf.dtype.name for leaf in jax.tree.leaves(abstract)} == {"bfloat16"}
    tokens = jax.ShapeDtypeStruct((1, 8), "int32")
    hidden = jax.eval_shape(lambda p, t: compute_hidden(config, p, t, t, t), abstract, tokens)
    assert hidden.shape == (1, 8, hf["hidden_size"])


def test_no_heads_are_named() -> None:
    with pytest.raises(ValueError, match="num_attention_heads is 0; expected a positive number"):
        ModelConfig(10, 4, 8, 3, 0, 1)


DEEP: list = []
for _ in range(900):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": 2.5}, "num_hidden_layers is 2.5; expected a whole number of at most 1,000"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; expected a whole number of at most 1,000"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True; expected a whole number"),
        ({"num_attention_heads": "4"}, "num_attention_heads is '4'; expected a whole number"),
        ({"vocab_size": 10**400}, "vocab_size is 1000.*; expected a whole number of at most 2,147,483,647"),
        ({"hidden_size": 1e999}, "hidden_size is inf; expected a whole number"),
        ({"rms_norm_eps": 1e999}, "rms_norm_eps is inf; expected a finite number"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan; expected a finite number"),
        ({"rope_parameters": None, "rope_theta": [1]}, "config.json is damaged or incomplete: float"),
        ({"rope_parameters": None, "rope_theta": 1e999}, "rope_theta is inf; expected a finite number"),
        ({"model_type": []}, "config.json is damaged or incomplete: unhashable type"),
        ({"model_type": "x" * 1_000}, "model_type 'xx.* is not supported"),
        ({"layer_types": 5}, "config.json is damaged or incomplete: 'int' object"),
        ({"hidden_act": DEEP}, r"has hidden_act=\[\[\["),
        ({"dtype": DEEP, "torch_dtype": DEEP}, r"dtype \[\[\["),
        ({"rope_scaling": {"type": "linear", "factor": 1e999}}, "rope scaling has factor inf; expected a positive"),
        (
            {"rope_scaling": {"type": "yarn", "factor": 2, "original_max_position_embeddings": 1e999}},
            "config.json is damaged or incomplete: cannot convert float infinity",
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": 2, "attention_factor": 1e999}},
            "rope_scaling with attention factor inf; expected a positive number",
        ),
        ({"rope_scaling": {"type": "yarn", "factor": 2, "rope_theta": 1}}, "rope_theta is 1.0; expected more than 1"),
    ],
)
def test_a_value_that_no_model_has_is_one_line(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        ModelConfig.from_hf({**TINY.to_hf(), **change})
    assert len(str(error.value)) < 300
    assert "\n" not in str(error.value)


def test_more_experts_than_any_model_has() -> None:
    with pytest.raises(ValueError, match=r"num_experts is 100000; expected a whole number of at most 1,024"):
        ModelConfig.from_hf({**MOE.to_hf(), "num_experts": 100_000})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "config.json cannot be read: maximum recursion depth.*; expected a JSON object"),
        ('{"hidden_size": 1' + "0" * 5_000 + "}", "config.json cannot be read: Exceeds the limit"),
        ("[]", "config.json holds list, expected an object"),
        ("\ud800", "config.json cannot be read"),
    ],
)
def test_a_file_that_holds_no_config_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.json").write_bytes(text.encode(errors="surrogatepass"))
    for source in (tmp_path, str(tmp_path)):
        with pytest.raises(ValueError, match=message):
            ModelConfig.from_hf(source)
