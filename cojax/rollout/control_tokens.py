"""Encodes rendered chat templates so that control tokens come only from the template, never from its input text.

A control literal is the text of a control token, such as <|im_end|>. A template is rendered twice. In the first
rendering the control literals in the input text are replaced by private-use characters. In the second, every input
character that occurs in some literal is replaced. So any literal found there is the template's own, even if the
template cuts, joins or reverses its input.
"""

import functools
import itertools
import json
import re
from collections.abc import Callable
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

# Characters used as placeholders while the template runs, except those that the input text contains.
_PRIVATE_CODES = range(0xF0000, 0x10FFFE)
_PRIVATE_PATTERN = re.compile("[\U000f0000-\U0010fffd]")
# Words of JSON schemas. A template may compare values with them, so they are not masked in a tool's documentation.
_SCHEMA_WORDS = frozenset((
    "type", "function", "name", "description", "parameters", "properties", "required", "items", "enum", "default",
    "arguments", "return", "anyOf", "additionalProperties", "object", "string", "integer", "number", "boolean",
    "array", "null",
))  # fmt: skip
# The literals that a policy may write within its own message; all others begin or end a message.
_ACTION_LITERALS = frozenset(("<tool_call>", "</tool_call>", "<think>", "</think>"))
Mask = Callable[[str], str]  # text → the text that the template is given instead


class ControlTokens:
    """The control tokens of a tokenizer: literal → id."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        id_by_literal = {token.content: token_id for token_id, token in tokenizer.added_tokens_decoder.items()}
        self.ids = dict(sorted(id_by_literal.items(), key=lambda pair: -len(pair[0])))
        self._pattern = re.compile("(" + "|".join(map(re.escape, self.ids)) + ")")
        tokenizer_spec = json.loads(tokenizer.backend_tokenizer.to_str())
        self._tokenizer = Tokenizer.from_str(json.dumps({**tokenizer_spec, "added_tokens": [], "post_processor": None}))
        # Runs of white space are text in any vocabulary. Text without a token of its own needs the unknown token.
        self._forbidden_ids = {
            token_id
            for token_id, token in tokenizer.added_tokens_decoder.items()
            if token_id != tokenizer.unk_token_id and (token.special or token.content.strip())
        }
        self._schema_words = {word for word in _SCHEMA_WORDS if not any(word in literal for literal in self.ids)}
        self._literal_characters = sorted(set("".join(self.ids)))
        self._cached_placeholders = functools.lru_cache(maxsize=8)(self._choose_placeholders)

    def render(self, template: Callable[[Mask], str], input_text: str) -> tuple[int, ...]:
        """The tokens of a rendered template; `input_text` is all text that is masked in its input.

        If masking single characters changes the rendered text, the template inspects its input. Then only whole
        literals are masked, so that harmless text has the same tokens as without a mask. But if that changes the
        control tokens, every character of a literal is masked.
        """
        private_codes = frozenset(map(ord, _PRIVATE_PATTERN.findall(input_text)))
        mask_literals, mask_characters, restore = self._cached_placeholders(private_codes)
        by_literal, by_character = template(mask_literals), template(mask_characters)
        inspects_input = restore(by_literal) != restore(by_character)
        has_same_controls = inspects_input and self._pattern.findall(by_literal) == self._pattern.findall(by_character)
        return self._encode(by_literal if has_same_controls else by_character, restore)

    def mask_json(self, json_value: Any, mask: Mask) -> Any:
        """The JSON value with every text in it masked, keys too, except the words of JSON schemas."""
        if isinstance(json_value, str):
            return json_value if json_value in self._schema_words else mask(json_value)
        if isinstance(json_value, dict):
            return {self.mask_json(key, mask): self.mask_json(element, mask) for key, element in json_value.items()}
        return [self.mask_json(element, mask) for element in json_value] if isinstance(json_value, list) else json_value

    def _encode(self, text: str, restore: Mask) -> tuple[int, ...]:
        tokens: list[int] = []
        for segment in self._pattern.split(text):
            if segment in self.ids:
                tokens.append(self.ids[segment])
            elif segment:
                tokens.extend(self._encode_text(restore(segment)))
        return tuple(tokens)

    def encode_action(self, text: str) -> tuple[int, ...]:
        """Tokens of a message that the policy wrote: literals around its thoughts and calls become control tokens."""
        tokens: list[int] = []
        plain_text = ""
        for segment in self._pattern.split(_valid_unicode(text)):
            if segment not in _ACTION_LITERALS or segment not in self.ids:
                plain_text += segment
                continue
            tokens += [*self._encode_text(plain_text), self.ids[segment]]
            plain_text = ""
        return (*tokens, *self._encode_text(plain_text))

    def _encode_text(self, text: str) -> list[int]:
        """Tokens of text, none of them a control token."""
        if not text:
            return []
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        if self._forbidden_ids.isdisjoint(encoding.ids):
            return list(encoding.ids)
        # The vocabulary itself holds a literal as a word: it is encoded character by character.
        tokens: list[int] = []
        for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token_id not in self._forbidden_ids:
                tokens.append(token_id)
                continue
            for character in text[start:end]:
                character_ids = self._tokenizer.encode(character, add_special_tokens=False).ids
                tokens += [character_id for character_id in character_ids if character_id not in self._forbidden_ids]
        return tokens

    def _choose_placeholders(self, private_codes: frozenset[int]) -> tuple[Mask, Mask, Mask]:
        """Functions that mask whole literals, that mask every character that occurs in one, and that undo both.

        Placeholders are characters that the text does not contain; if too few are left, the private-use characters of
        the text are replaced.
        """
        count = len(self.ids) + len(self._literal_characters)
        codes = list(itertools.islice((code for code in _PRIVATE_CODES if code not in private_codes), count))
        replacement_by_code: dict[int, str] = {}
        if len(codes) < count:
            codes, replacement_by_code = list(_PRIVATE_CODES[:count]), dict.fromkeys(_PRIVATE_CODES, "\ufffd")
        placeholder_by_literal = dict(zip(self.ids, map(chr, codes), strict=False))
        letter_masks = dict(zip(self._literal_characters, map(chr, codes[len(self.ids) :]), strict=True))
        character_table = str.maketrans(letter_masks)
        by_code = {ord(placeholder): text for text, placeholder in (placeholder_by_literal | letter_masks).items()}

        def clean(text: str) -> str:
            return _valid_unicode(text).translate(replacement_by_code) if replacement_by_code else _valid_unicode(text)

        def mask_literals(text: str) -> str:
            return self._pattern.sub(lambda match: placeholder_by_literal[match[0]], clean(text))

        return mask_literals, lambda text: clean(text).translate(character_table), lambda text: text.translate(by_code)


def _valid_unicode(text: str) -> str:
    """The text with "?" for each lone surrogate, which a Python string may contain but UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()
