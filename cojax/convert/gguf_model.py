"""A Llama model in a GGUF file: its shape, its weights under their Hugging Face names, and its tokenizer.

The tokenizer becomes one for transformers: byte-level BPE, control tokens and the chat template.
"""

import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import MODEL_ARCH, get_tensor_name_map
from gguf.constants import TokenType
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from cojax.convert.gguf_file import ADVICE, GgufFile
from cojax.policy.config import ModelConfig
from cojax.policy.parameters import parameters

EMBEDDING_NAME, HEAD_NAME = "token_embd.weight", "output.weight"
_LLAMA = tomllib.loads(Path(__file__).with_name("llama.toml").read_text("utf-8"))
# Arrays whose rows llama.cpp reorders: it interleaves the two halves of a head, which rotate as pairs.
_REORDERED_ARRAYS = ("self_attn.q_proj.weight", "self_attn.k_proj.weight")
_KEY = "tokenizer.ggml."
# Name of a way to split texts before merges → its steps before GPT-2's pattern, which writes bytes as letters.
_PRE_TOKENIZERS: dict[str, list[pre_tokenizers.PreTokenizer]] = {
    "gpt-2": [],
    "smollm": [pre_tokenizers.Digits(individual_digits=True)],
}
_MAX_TEMPLATE = 100_000  # characters
_MAX_TOKEN = 1_000  # characters
_MARKS = ("<tool_call>", "</tool_call>")
# Control tokens that no conversation needs: reserved ones, and those that mark repositories' files in pretraining.
_SPARE_PATTERN = re.compile(
    r"reserved|unused|\A<(?:repo_?name|file_sep|filename|gh_stars|(?:issue|jupyter)_\w+|empty_output)>\Z"
)


def read_shape(file: GgufFile) -> ModelConfig:
    """The model's shape, in float32, checked against every tensor's name and shape.

    Raises ValueError for another architecture, for metadata that is missing or not supported, and for tensors that are
    missing, unexpected or of another shape.
    """
    architecture = file.metadata.get("general.architecture")
    if architecture != "llama":
        raise ValueError(f"{file.path} has architecture {architecture!r:.80}; only llama can be converted; {ADVICE}")
    _refuse_unsupported(file)
    head_count = _read_count(file, "attention.head_count")
    width, layer_count = _read_count(file, "embedding_length"), _read_count(file, "block_count")
    if layer_count > len(file.arrays):
        raise ValueError(f"{file.path} has llama.block_count {layer_count}, but only {len(file.arrays)} tensors")
    head_dim = _read_count(file, "attention.key_length", _read_count(file, "rope.dimension_count", width // head_count))
    for size_key in ("rope.dimension_count", "attention.value_length"):
        if (key_size := _read_count(file, size_key, head_dim)) != head_dim:
            raise ValueError(
                f"{file.path} has llama.{size_key} {key_size}; only that of a head, {head_dim}, is supported: {ADVICE}"
            )
    if EMBEDDING_NAME not in file.arrays:
        raise ValueError(f"{file.path} has no tensor {EMBEDDING_NAME}; expected a whole model")
    config = ModelConfig.from_hf(
        {
            "model_type": "llama",
            "vocab_size": _read_count(file, "vocab_size", file.arrays[EMBEDDING_NAME].shape[0]),
            "hidden_size": width,
            "intermediate_size": _read_count(file, "feed_forward_length"),
            "num_hidden_layers": layer_count,
            "num_attention_heads": head_count,
            "num_key_value_heads": _read_count(file, "attention.head_count_kv", head_count),
            "head_dim": head_dim,
            "rope_theta": _read_number(file, "rope.freq_base", 10_000.0),
            "rms_norm_eps": _read_number(file, "attention.layer_norm_rms_epsilon"),
            "tie_word_embeddings": HEAD_NAME not in file.arrays,
            "max_position_embeddings": _read_count(file, "context_length"),
        }
    )
    _check_arrays(file, config)
    return config


def read_arrays(file: GgufFile, config: ModelConfig) -> Iterator[tuple[str, np.ndarray]]:
    """Yields (Hugging Face name, float32 array), one at a time, in the order of `write_arrays`."""
    head_counts = {"q": config.num_attention_heads, "k": config.num_key_value_heads}
    for hf_name, gguf_name, _ in _list_arrays(config):
        array = file.read_tensor(gguf_name)
        if hf_name.endswith(_REORDERED_ARRAYS):
            array = separate_halves(array, head_counts[hf_name.split(".")[-2][0]])
        yield hf_name, array


def separate_halves(array: np.ndarray, head_count: int) -> np.ndarray:
    """The rows [heads · S, D] of a projection in Hugging Face's order: row i of a head rotates with row i + S / 2.

    In a GGUF file of this architecture row 2i rotates with row 2i + 1.
    """
    row_count, width = array.shape
    return array.reshape(head_count, row_count // head_count // 2, 2, width).swapaxes(1, 2).reshape(row_count, width)


def _list_arrays(config: ModelConfig) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Hugging Face name, GGUF name and shape of every array."""
    gguf_names = get_tensor_name_map(MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for parameter in parameters(config):
        for _, hf_name in parameter.hf_names(config):
            gguf_name = gguf_names.get_name(hf_name, try_suffixes=(".weight",))
            assert gguf_name is not None, hf_name
            yield hf_name, gguf_name, parameter.hf_shape(config)


def _check_arrays(file: GgufFile, config: ModelConfig) -> None:
    shape_by_name = {gguf_name: shape for _, gguf_name, shape in _list_arrays(config)}
    faults = [f"{name} is missing" for name in shape_by_name if name not in file.arrays]
    for name, array in file.arrays.items():
        if name == "rope_freqs.weight":
            raise ValueError(
                f"{file.path} scales rotary frequencies (tensor {name}); only unscaled ones are supported: {ADVICE}"
            )
        if name not in shape_by_name:
            faults.append(f"{name} is not part of a Llama model without biases and experts")
        elif array.shape != shape_by_name[name]:
            faults.append(f"{name} has shape {array.shape}, expected {shape_by_name[name]}")
    if faults:
        more_text = f", and {len(faults) - 3} more" if len(faults) > 3 else ""
        raise ValueError(f"{file.path} cannot be converted: {'; '.join(faults[:3])}{more_text}; {ADVICE}")


def _refuse_unsupported(file: GgufFile) -> None:
    """Raises ValueError, naming the key, for metadata that changes the arithmetic and is not supported."""
    for key, value in file.metadata.items():
        family, _, name = key.partition(".")
        if family == "llama" and name not in _LLAMA["known"]:
            raise ValueError(f"{file.path} has {key}={value!r:.80}, which is not supported: {ADVICE}")
    for key, neutral in (("rope.scaling.type", "none"), ("expert_count", 0), ("expert_used_count", 0)):
        actual = file.metadata.get(f"llama.{key}", neutral)
        if actual != neutral:
            raise ValueError(f"{file.path} has llama.{key}={actual!r:.80}; only {neutral!r} is supported: {ADVICE}")


def _read_number(file: GgufFile, key: str, default: float | None = None) -> Any:
    value = file.metadata.get(f"llama.{key}", default)
    if value is None:
        raise ValueError(f"{file.path} has no metadata llama.{key}; expected a number above 0")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise ValueError(f"{file.path} has llama.{key}={value!r:.80}; expected a number above 0")
    return value


def _read_count(file: GgufFile, key: str, default: int | None = None) -> int:
    value = _read_number(file, key, default)
    if not isinstance(value, int):
        raise ValueError(f"{file.path} has llama.{key}={value!r:.80}; expected a whole number above 0")
    return value


def make_tokenizer(file: GgufFile, token_count: int, position_count: int) -> PreTrainedTokenizerFast:
    """The tokenizer for a model whose embedding has `token_count` rows and which has `position_count` positions.

    Raises ValueError for another kind of tokenizer, and for lists that are missing, damaged or do not fit the model.
    """
    _refuse_tokenizer(file)
    tokens, token_types = list(_read_list(file, "tokens", str)), list(_read_list(file, "token_type", int))
    if not len(tokens) == len(token_types) == token_count == len(set(tokens)):
        raise ValueError(
            f"{file.path} has {len(tokens)} tokens, {len(set(tokens))} of them different, and {len(token_types)} types "
            f"of tokens; expected {token_count} of each, one for each row of the embedding"
        )
    if any(len(token) > _MAX_TOKEN for token in tokens):
        raise ValueError(f"{file.path} has a token of more than {_MAX_TOKEN:,} characters; the file is damaged")
    for token_id, mark in choose_tool_marks(file).items():
        # Not special, as in Qwen's vocabularies: decoding without special tokens then keeps the calls.
        tokens[token_id], token_types[token_id] = mark, TokenType.USER_DEFINED
    merges = [tuple(merge.split(" ")) for merge in _read_list(file, "merges", str)]
    try:
        tokenizer = Tokenizer(models.BPE({token: token_id for token_id, token in enumerate(tokens)}, merges))
    except Exception as error:  # the package raises no other type
        raise ValueError(f"{file.path} has merges that do not fit its tokens: {str(error)!r:.200}") from error
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*_PRE_TOKENIZERS[file.metadata[_KEY + "pre"]], pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special_by_type = {TokenType.CONTROL: True, TokenType.USER_DEFINED: False}
    tokenizer.add_tokens(
        [
            AddedToken(token, special=special_by_type[TokenType(token_type)], normalized=False)
            for token, token_type in zip(tokens, token_types, strict=True)
            if token_type in special_by_type
        ]
    )
    special_tokens = {
        name: tokens[index] for name, key in _LLAMA["named"].items() if (index := _id_of(file, key, tokens)) is not None
    }
    if file.metadata.get(_KEY + "add_bos_token"):
        if "bos_token" not in special_tokens:
            raise ValueError(f"{file.path} has {_KEY}add_bos_token, but no {_KEY}bos_token_id")
        bos_token = special_tokens["bos_token"]
        tokenizer.post_processor = processors.TemplateProcessing(
            f"{bos_token} $A", special_tokens=[(bos_token, tokens.index(bos_token))]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, chat_template=_read_template(file), model_max_length=position_count,
        clean_up_tokenization_spaces=False, **special_tokens,
    )  # fmt: skip


def choose_tool_marks(file: GgufFile) -> dict[int, str]:
    """Token → the mark of a tool call that it becomes: two spare control tokens, if the vocabulary has no such mark.

    With marks of one token instead of about five, calls are as short as in families that know calls.
    """
    tokens, token_types = _read_list(file, "tokens", str), _read_list(file, "token_type", int)
    template = _read_template(file) or ""
    spare_ids = [
        token_id
        for token_id, (token, token_type) in enumerate(zip(tokens, token_types, strict=False))
        if token_type == TokenType.CONTROL and _SPARE_PATTERN.search(token) and token not in template
    ]
    named_ids = {_id_of(file, key, tokens) for key in _LLAMA["named"].values()}
    spare_ids = [token_id for token_id in spare_ids if token_id not in named_ids][:2]
    return dict(zip(spare_ids, _MARKS, strict=True)) if len(spare_ids) == 2 and not {*_MARKS} & {*tokens} else {}


def _refuse_tokenizer(file: GgufFile) -> None:
    choices_by_key: dict[str, Sequence[Any]] = {
        "model": ("gpt2",), "pre": tuple(_PRE_TOKENIZERS), "add_space_prefix": (False,), "add_eos_token": (False,),
    }  # fmt: skip
    for key, choices in choices_by_key.items():
        value = file.metadata.get(_KEY + key, choices[0] if key.startswith("add_") else None)
        if value not in choices:
            listing = " and ".join(map(repr, choices))
            raise ValueError(f"{file.path} has {_KEY}{key}={value!r:.80}; only {listing} can be converted: {ADVICE}")


def _read_list(file: GgufFile, key: str, kind: type) -> list[Any]:
    values = file.metadata.get(_KEY + key)
    if not isinstance(values, list) or not all(type(value) is kind for value in values):
        raise ValueError(f"{file.path} has no list {_KEY}{key} of {kind.__name__}; expected a file with its tokenizer")
    return values


def _id_of(file: GgufFile, key: str, tokens: Sequence[str]) -> int | None:
    token_id = file.metadata.get(_KEY + key)
    if token_id is not None and (type(token_id) is not int or not 0 <= token_id < len(tokens)):
        raise ValueError(f"{file.path} has {_KEY}{key}={token_id!r:.80}; expected a number below {len(tokens)}")
    return token_id


def _read_template(file: GgufFile) -> str | None:
    template = file.metadata.get("tokenizer.chat_template")
    if template is not None and (not isinstance(template, str) or len(template) > _MAX_TEMPLATE):
        raise ValueError(f"{file.path} has no text tokenizer.chat_template of at most {_MAX_TEMPLATE:,} characters")
    return template
