"""Small tokenizers with the control tokens and the chat templates of real families; chat_templates/NOTICE.md."""

from collections.abc import Callable, Mapping
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from cojax.rollout.chat import Chat, Tool, whole_document

_FOLDER = Path(__file__).parent / "chat_templates"
_CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_CALLS = ("<tool_call>", "</tool_call>")
_LLAMA = (
    "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>",
)  # fmt: skip
_RESPONSES = ("<tool_response>", "</tool_response>", "<think>", "</think>")
# Template → the family's control tokens; those from `_CALLS` on are not special, as in the families.
CONTROLS: Mapping[str, tuple[str, ...]] = {
    "qwen2_5": (*_CHATML, *_CALLS),
    "qwen3": (*_CHATML, *_CALLS, *_RESPONSES),
    "qwen3_instruct_2507": (*_CHATML, *_CALLS, *_RESPONSES),
    "llama3": _LLAMA,
    "smollm2": (*_CHATML, "<repo_name>", "<reponame>"),
    "smollm2 converted": (*_CHATML, *_CALLS),
}


def tokenizer(family: str) -> PreTrainedTokenizerFast:
    """Bytes as tokens, then the family's control tokens, with its template."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: place for place, letter in enumerate(letters)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    written = {*_CALLS, *_RESPONSES}
    made.add_tokens([AddedToken(text, special=text not in written, normalized=False) for text in CONTROLS[family]])
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token="<|begin_of_text|>" if family == "llama3" else None,
        eos_token="<|eot_id|>" if family == "llama3" else "<|im_end|>",
        chat_template=(_FOLDER / f"{family.split()[0]}.jinja").read_text(),
        clean_up_tokenization_spaces=False,
    )


def chat(family: str, shown: Callable[[Tool], Tool | None] = whole_document) -> Chat:
    return Chat(tokenizer(family), shown)
