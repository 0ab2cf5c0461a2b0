"""The tokenizer of a GGUF file as one of transformers: byte-level BPE, control tokens and the chat template."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from gguf.constants import TokenType
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from cojax.convert.gguf_file import INSTEAD, GgufFile

_KEY = "tokenizer.ggml."
# Name of a way to cut texts before merges → its steps, before the bytes are written as letters by GPT-2's pattern.
_CUTS: dict[str, list[pre_tokenizers.PreTokenizer]] = {
    "gpt-2": [],
    "smollm": [pre_tokenizers.Digits(individual_digits=True)],
}
_NAMED = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
_LARGEST_TEMPLATE = 100_000  # characters
_LONGEST_TOKEN = 1_000  # characters
_MARKS = ("<tool_call>", "</tool_call>")
# Control tokens that no conversation needs: reserved ones, and those that mark files of repositories in pretraining.
_SPARE = re.compile(
    r"reserved|unused|\A<(?:repo_?name|file_sep|filename|gh_stars|(?:issue|jupyter)_\w+|empty_output)>\Z"
)


def tokenizer_of(file: GgufFile, vocabulary: int, positions: int) -> PreTrainedTokenizerFast:
    """The tokenizer, for a model of `vocabulary` rows and `positions`.

    Raises ValueError for another kind of tokenizer, for lists that are missing, damaged or do not fit the model.
    """
    _refuse_unsupported(file)
    tokens, kinds = list(_list(file, "tokens", str)), list(_list(file, "token_type", int))
    if not len(tokens) == len(kinds) == vocabulary == len(set(tokens)):
        raise ValueError(
            f"{file.path} has {len(tokens)} tokens, {len(set(tokens))} of them different, and {len(kinds)} types of "
            f"tokens; expected {vocabulary} of each, as the embedding has rows"
        )
    if any(len(token) > _LONGEST_TOKEN for token in tokens):
        raise ValueError(f"{file.path} has a token of more than {_LONGEST_TOKEN:,} characters; the file is damaged")
    for place, mark in tool_marks(file).items():
        # As in Qwen's vocabularies no special token: a text that is decoded without these keeps its calls.
        tokens[place], kinds[place] = mark, TokenType.USER_DEFINED
    merges = [tuple(merge.split(" ")) for merge in _list(file, "merges", str)]
    try:
        made = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
    except Exception as error:  # the package raises no other type
        raise ValueError(f"{file.path} has merges that do not fit its tokens: {str(error)!r:.200}") from error
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [*_CUTS[file.metadata[_KEY + "pre"]], pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    made.decoder = decoders.ByteLevel()
    added = {TokenType.CONTROL: True, TokenType.USER_DEFINED: False}
    made.add_tokens(
        [
            AddedToken(token, special=added[TokenType(kind)], normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind in added
        ]
    )
    named = {name: tokens[number] for name, key in _NAMED.items() if (number := _id(file, key, tokens)) is not None}
    if file.metadata.get(_KEY + "add_bos_token"):
        if "bos_token" not in named:
            raise ValueError(f"{file.path} has {_KEY}add_bos_token, but no {_KEY}bos_token_id")
        first = named["bos_token"]
        made.post_processor = processors.TemplateProcessing(
            f"{first} $A", special_tokens=[(first, tokens.index(first))]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        chat_template=_template(file),
        model_max_length=positions,
        clean_up_tokenization_spaces=False,
        **named,
    )


def tool_marks(file: GgufFile) -> dict[int, str]:
    """Token → mark of a tool call that it becomes: two spare control tokens, where the vocabulary has no such mark.

    A mark that is one token instead of about five makes a call as short as in families that know calls.
    """
    tokens, kinds = _list(file, "tokens", str), _list(file, "token_type", int)
    template = _template(file) or ""
    spare = [
        number
        for number, (token, kind) in enumerate(zip(tokens, kinds, strict=False))
        if kind == TokenType.CONTROL and _SPARE.search(token) and token not in template
    ]
    named = {_id(file, key, tokens) for key in _NAMED.values()}
    spare = [number for number in spare if number not in named][:2]
    return dict(zip(spare, _MARKS, strict=True)) if len(spare) == 2 and not {*_MARKS} & {*tokens} else {}


def _refuse_unsupported(file: GgufFile) -> None:
    supported: dict[str, Sequence[Any]] = {
        "model": ("gpt2",), "pre": tuple(_CUTS), "add_space_prefix": (False,), "add_eos_token": (False,),
    }  # fmt: skip
    for key, values in supported.items():
        found = file.metadata.get(_KEY + key, values[0] if key.startswith("add_") else None)
        if found not in values:
            expected = " and ".join(map(repr, values))
            raise ValueError(f"{file.path} has {_KEY}{key}={found!r:.80}; only {expected} can be converted: {INSTEAD}")


def _list(file: GgufFile, key: str, kind: type) -> list[Any]:
    found = file.metadata.get(_KEY + key)
    if not isinstance(found, list) or not all(type(value) is kind for value in found):
        raise ValueError(f"{file.path} has no list {_KEY}{key} of {kind.__name__}; expected a file with its tokenizer")
    return found


def _id(file: GgufFile, key: str, tokens: Sequence[str]) -> int | None:
    found = file.metadata.get(_KEY + key)
    if found is not None and (type(found) is not int or not 0 <= found < len(tokens)):
        raise ValueError(f"{file.path} has {_KEY}{key}={found!r:.80}; expected a number below {len(tokens)}")
    return found


def _template(file: GgufFile) -> str | None:
    found = file.metadata.get("tokenizer.chat_template")
    if found is not None and (not isinstance(found, str) or len(found) > _LARGEST_TEMPLATE):
        raise ValueError(f"{file.path} has a tokenizer.chat_template that is no text of a template")
    return found
