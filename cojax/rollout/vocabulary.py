"""Makes tokenizers in HF format for policies trained from scratch, with the ChatML template that Qwen uses.

`word_tokenizer` is for small environments with a fixed vocabulary. Each word is one token. Each fixed run of
punctuation and keys around a tool call is also one token, so that a call takes about nine tokens. Names of things are
the same tokens in a sentence and in JSON, without spaces, so that a small policy can copy them; other words include the
spaces around them. An unknown word is one `<unk>`.

`train_byte_tokenizer` is for any environment: byte-pair encoding over bytes, so that every text can be encoded and
decodes unchanged.
"""

import re
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from cojax.rollout.chat import CHATML

CONTROL_TOKENS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>",
)  # fmt: skip
# One digit | a name or word with the space before it | punctuation as JSON runs it together | white space.
_PIECE_PATTERN = r"\p{N}| ?[\p{L}\p{M}_]+| ?[^\s\p{L}\p{M}\p{N}_]+(?: [^\s\p{L}\p{M}\p{N}_]+)*|\s"
_ROLES = ("system\n", "user\n", "assistant\n")


def word_tokenizer(
    names: Iterable[str], texts: Iterable[str], tools: Sequence[Mapping[str, Any]]
) -> PreTrainedTokenizerFast:
    """The word tokenizer of an environment with a fixed vocabulary.

    `names` are words for things, in sentences and as arguments. `texts` are samples of all other text. `tools` are
    documents in OpenAI function format; the names of tools and of their arguments get their own tokens.
    """
    names = sorted({*names, *(tool["function"]["name"] for tool in tools)}, key=lambda name: (-len(name), name))
    argument_names = sorted({key for tool in tools for key in tool["function"]["parameters"].get("properties", {})})
    fixed_runs = sorted(_list_fixed_runs(argument_names), key=lambda run: (-len(run), run))
    pattern = _build_pattern(names, fixed_runs)
    splitter = re.compile(pattern)
    words = sorted({word for text in texts for word in splitter.findall(text)})
    vocabulary = {"<unk>": 0}
    for token_text in (*fixed_runs, *sorted(names), *words, *string.printable):
        vocabulary.setdefault(token_text, len(vocabulary))
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return _add_template(tokenizer, unk_token="<unk>")


def train_byte_tokenizer(texts: Iterable[str], size: int) -> PreTrainedTokenizerFast:
    """Byte-pair encoding over bytes, trained on `texts`: lossless on any text, deterministic in `texts`.

    It has at most `size` entries: the 256 bytes, the control tokens and the pairs merged from the texts. Each digit is
    a token, so that numbers are copied digit by digit. Raises ValueError for a size too small for the bytes.
    """
    min_size = 256 + len(CONTROL_TOKENS)
    if size < min_size:
        raise ValueError(f"a byte-level vocabulary of {size} entries; expected at least {min_size}: bytes and controls")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECE_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(CONTROL_TOKENS),
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _add_template(tokenizer, clean_up_tokenization_spaces=False)


def _add_template(tokenizer: Tokenizer, **options: Any) -> PreTrainedTokenizerFast:
    """The tokenizer with the control tokens and the template that writes them."""
    tokenizer.add_tokens([AddedToken(literal, special=True, normalized=False) for literal in CONTROL_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<|endoftext|>", eos_token="<|im_end|>", chat_template=CHATML, **options
    )


def _list_fixed_runs(argument_names: Sequence[str]) -> list[str]:
    """Runs of punctuation and keys in a tool call, as `json.dumps` writes it, and the role names of the template."""
    first_runs = [f'", "arguments": {{"{argument_name}": "' for argument_name in argument_names]
    later_runs = [f'", "{argument_name}": "' for argument_name in argument_names]
    return ['\n{"name": "', '", "arguments": {}}\n', '"}}\n', *first_runs, *later_runs, *_ROLES]


def _build_pattern(names: Sequence[str], fixed_runs: Sequence[str]) -> str:
    """Fixed runs | bare names | other words with the comma and spaces around them | any one character."""
    name_pattern = "(?:" + "|".join(map(re.escape, names)) + ")(?![A-Za-z0-9_])"
    run_pattern = "|".join(map(re.escape, fixed_runs))
    return rf"{run_pattern}|{name_pattern}|[,.;:]? ?(?!{name_pattern})[A-Za-z]+(?: (?={name_pattern}))?|[\s\S]"
