"""The shape and the weights of a Llama model in a GGUF file, under their Hugging Face names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from gguf import MODEL_ARCH, get_tensor_name_map

from cojax.convert.gguf_file import INSTEAD, GgufFile
from cojax.policy.config import ModelConfig
from cojax.policy.parameters import parameters

EMBEDDING, HEAD = "token_embd.weight", "output.weight"
# Keys below "llama." that this module reads; another could change the arithmetic unnoticed.
_KNOWN = frozenset(
    {
        "vocab_size", "context_length", "embedding_length", "block_count", "feed_forward_length",
        "attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length",
        "attention.layer_norm_rms_epsilon", "rope.dimension_count", "rope.freq_base", "rope.scaling.type",
        "expert_count", "expert_used_count",
    }
)  # fmt: skip
# Arrays whose rows llama.cpp reorders: the two halves of a head, which rotate as pairs, lie interleaved.
_REORDERED = ("self_attn.q_proj.weight", "self_attn.k_proj.weight")


def shape_of(file: GgufFile) -> ModelConfig:
    """The model's shape, in float32, after every tensor's name and shape was compared with it.

    Raises ValueError for another architecture, for metadata that is missing or not supported, and for tensors that are
    missing, too many or of another shape.
    """
    architecture = file.metadata.get("general.architecture")
    if architecture != "llama":
        raise ValueError(f"{file.path} has architecture {architecture!r:.80}; only llama can be converted; {INSTEAD}")
    _refuse_unsupported(file)
    heads = _count(file, "attention.head_count")
    width, layers = _count(file, "embedding_length"), _count(file, "block_count")
    if layers > len(file.arrays):
        raise ValueError(f"{file.path} has llama.block_count {layers}, but only {len(file.arrays)} tensors")
    size = _count(file, "attention.key_length", _count(file, "rope.dimension_count", width // heads))
    for key in ("rope.dimension_count", "attention.value_length"):
        if (found := _count(file, key, size)) != size:
            raise ValueError(
                f"{file.path} has llama.{key} {found}; only that of a head, {size}, is supported: {INSTEAD}"
            )
    if EMBEDDING not in file.arrays:
        raise ValueError(f"{file.path} has no tensor {EMBEDDING}; expected a whole model")
    config = ModelConfig.from_hf(
        {
            "model_type": "llama",
            "vocab_size": _count(file, "vocab_size", file.arrays[EMBEDDING].shape[0]),
            "hidden_size": width,
            "intermediate_size": _count(file, "feed_forward_length"),
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": _count(file, "attention.head_count_kv", heads),
            "head_dim": size,
            "rope_theta": _number(file, "rope.freq_base", 10_000.0),
            "rms_norm_eps": _number(file, "attention.layer_norm_rms_epsilon"),
            "tie_word_embeddings": HEAD not in file.arrays,
            "max_position_embeddings": _count(file, "context_length"),
        }
    )
    _check_arrays(file, config)
    return config


def arrays_of(file: GgufFile, config: ModelConfig) -> Iterator[tuple[str, np.ndarray]]:
    """(Hugging Face name, float32 array), one at a time, in the order of `write_arrays`."""
    heads = {"q": config.num_attention_heads, "k": config.num_key_value_heads}
    for name, stored, _ in _names(config):
        array = file.read(stored)
        if name.endswith(_REORDERED):
            array = halves_apart(array, heads[name.split(".")[-2][0]])
        yield name, array


def halves_apart(array: np.ndarray, heads: int) -> np.ndarray:
    """The rows [heads · S, D] of a projection in Hugging Face's order: row i of a head rotates with row i + S / 2.

    In a GGUF file of this architecture row 2i rotates with row 2i + 1.
    """
    rows, width = array.shape
    return array.reshape(heads, rows // heads // 2, 2, width).swapaxes(1, 2).reshape(rows, width)


def _names(config: ModelConfig) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Hugging Face name, GGUF name and shape of every array."""
    known = get_tensor_name_map(MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for row in parameters(config):
        for _, name in row.pieces(config):
            stored = known.get_name(name, try_suffixes=(".weight",))
            assert stored is not None, name
            yield name, stored, row.hf_shape(config)


def _check_arrays(file: GgufFile, config: ModelConfig) -> None:
    expected = {stored: shape for _, stored, shape in _names(config)}
    faults = [f"{name} is missing" for name in expected if name not in file.arrays]
    for name, array in file.arrays.items():
        if name == "rope_freqs.weight":
            raise ValueError(
                f"{file.path} scales rotary frequencies (tensor {name}); only unscaled ones are supported: {INSTEAD}"
            )
        if name not in expected:
            faults.append(f"{name} is no part of a Llama model without biases and experts")
        elif array.shape != expected[name]:
            faults.append(f"{name} has shape {array.shape}, expected {expected[name]}")
    if faults:
        more = f", and {len(faults) - 3} more" if len(faults) > 3 else ""
        raise ValueError(f"{file.path} cannot be converted: {'; '.join(faults[:3])}{more}; {INSTEAD}")


def _refuse_unsupported(file: GgufFile) -> None:
    """Raises ValueError, naming the key, for metadata that changes the arithmetic and is not supported."""
    for key, value in file.metadata.items():
        family, _, name = key.partition(".")
        if family == "llama" and name not in _KNOWN:
            raise ValueError(f"{file.path} has {key}={value!r:.80}, which is not supported: {INSTEAD}")
    for key, expected in (("rope.scaling.type", "none"), ("expert_count", 0), ("expert_used_count", 0)):
        found = file.metadata.get(f"llama.{key}", expected)
        if found != expected:
            raise ValueError(f"{file.path} has llama.{key}={found!r:.80}; only {expected!r} is supported: {INSTEAD}")


def _number(file: GgufFile, key: str, default: float | None = None) -> Any:
    value = file.metadata.get(f"llama.{key}", default)
    if value is None:
        raise ValueError(f"{file.path} has no metadata llama.{key}; expected a number above 0")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise ValueError(f"{file.path} has llama.{key}={value!r:.80}; expected a number above 0")
    return value


def _count(file: GgufFile, key: str, default: int | None = None) -> int:
    value = _number(file, key, default)
    if not isinstance(value, int):
        raise ValueError(f"{file.path} has llama.{key}={value!r:.80}; expected a whole number above 0")
    return value
