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
_PRIVATE = range(0xF0000, 0x10FFFE)
_PRIVATE_CHARACTERS = re.compile("[\U000f0000-\U0010fffd]")
# Words of JSON schemas. A template may compare values with them, so they are not masked in a tool's documentation.
_SCHEMA = frozenset((
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
        controls = {token.content: index for index, token in tokenizer.added_tokens_decoder.items()}
        self.ids = dict(sorted(controls.items(), key=lambda item: -len(item[0])))
        self._literals = re.compile("(" + "|".join(map(re.escape, self.ids)) + ")")
        specification = json.loads(tokenizer.backend_tokenizer.to_str())
        self._plain = Tokenizer.from_str(json.dumps({**specification, "added_tokens": [], "post_processor": None}))
        # Runs of white space are text in any vocabulary. Text without a token of its own needs the unknown token.
        self._forbidden = {
            index
            for index, token in tokenizer.added_tokens_decoder.items()
            if index != tokenizer.unk_token_id and (token.special or token.content.strip())
        }
        self._schema = {word for word in _SCHEMA if not any(word in literal for literal in self.ids)}
        self._letters = sorted(set("".join(self.ids)))
        self._placeholders = functools.lru_cache(maxsize=8)(self._choose_placeholders)

    def render(self, template: Callable[[Mask], str], source: str) -> tuple[int, ...]:
        """The tokens of a rendered template; `source` is all text that is masked in its input.

        If masking single characters changes the rendered text, the template inspects its input. Then only whole
        literals are masked, so that harmless text has the same tokens as without a mask. But if that changes the
        control tokens, every character of a literal is masked.
        """
        private_codes = frozenset(map(ord, _PRIVATE_CHARACTERS.findall(source)))
        mask_literals, mask_characters, restore = self._placeholders(private_codes)
        by_literal, by_character = template(mask_literals), template(mask_characters)
        inspects = restore(by_literal) != restore(by_character)
        same_controls = inspects and self._literals.findall(by_literal) == self._literals.findall(by_character)
        return self._encode(by_literal if same_controls else by_character, restore)

    def mask_json(self, value: Any, mask: Mask) -> Any:
        """The JSON value with every text in it masked, keys too, except the words of JSON schemas."""
        if isinstance(value, str):
            return value if value in self._schema else mask(value)
        if isinstance(value, dict):
            return {self.mask_json(key, mask): self.mask_json(item, mask) for key, item in value.items()}
        return [self.mask_json(item, mask) for item in value] if isinstance(value, list) else value

    def _encode(self, text: str, restore: Mask) -> tuple[int, ...]:
        tokens: list[int] = []
        for piece in self._literals.split(text):
            if piece in self.ids:
                tokens.append(self.ids[piece])
            elif piece:
                tokens.extend(self._encode_text(restore(piece)))
        return tuple(tokens)

    def encode_action(self, text: str) -> tuple[int, ...]:
        """Tokens of a message that the policy wrote: literals around its thoughts and calls become control tokens."""
        tokens: list[int] = []
        run = ""
        for piece in self._literals.split(_valid_unicode(text)):
            if piece not in _ACTION_LITERALS or piece not in self.ids:
                run += piece
                continue
            tokens += [*self._encode_text(run), self.ids[piece]]
            run = ""
        return (*tokens, *self._encode_text(run))

    def _encode_text(self, text: str) -> list[int]:
        """Tokens of text, none of them a control token."""
        if not text:
            return []
        encoding = self._plain.encode(text, add_special_tokens=False)
        if self._forbidden.isdisjoint(encoding.ids):
            return list(encoding.ids)
        # The vocabulary itself holds a literal as a word: it is encoded character by character.
        tokens: list[int] = []
        for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token not in self._forbidden:
                tokens.append(token)
                continue
            for character in text[start:end]:
                parts = self._plain.encode(character, add_special_tokens=False).ids
                tokens += [part for part in parts if part not in self._forbidden]
        return tokens

    def _choose_placeholders(self, private_codes: frozenset[int]) -> tuple[Mask, Mask, Mask]:
        """Functions that mask whole literals, that mask every character that occurs in one, and that undo both.

        Placeholders are characters that the text does not contain; if too few are left, the private-use characters of
        the text are replaced.
        """
        count = len(self.ids) + len(self._letters)
        codes = list(itertools.islice((code for code in _PRIVATE if code not in private_codes), count))
        replacements: dict[int, str] = {}
        if len(codes) < count:
            codes, replacements = list(_PRIVATE[:count]), dict.fromkeys(_PRIVATE, "\ufffd")
        literals = dict(zip(self.ids, map(chr, codes), strict=False))
        letters = dict(zip(self._letters, map(chr, codes[len(self.ids) :]), strict=True))
        characters = str.maketrans(letters)
        meaning = {ord(placeholder): text for text, placeholder in (literals | letters).items()}

        def clean(text: str) -> str:
            return _valid_unicode(text).translate(replacements) if replacements else _valid_unicode(text)

        def mask_literals(text: str) -> str:
            return self._literals.sub(lambda match: literals[match[0]], clean(text))

        return mask_literals, lambda text: clean(text).translate(characters), lambda text: text.translate(meaning)


def _valid_unicode(text: str) -> str:
    """The text with "?" for each lone surrogate, which a Python string may contain but UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()
