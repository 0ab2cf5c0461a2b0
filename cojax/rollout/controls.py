"""Control tokens of a tokenizer, and the rule that text which the template is given can make none.

A template is rendered twice. In the first rendering whole control literals within the given text are replaced by
private-use characters, in the second every character that stands in some literal: there, a literal can only be the
template's own, however its pieces were cut, joined or turned round.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Callable
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

# Characters that stand for others while the template runs: none that the text holds itself.
_PRIVATE = range(0xF0000, 0x10FFFE)
_TAKEN = re.compile("[\U000f0000-\U0010fffd]")
# What a template may compare in a tool's documentation; none of it is of the documentation's making.
_SCHEMA = frozenset((
    "type", "function", "name", "description", "parameters", "properties", "required", "items", "enum", "default",
    "arguments", "return", "anyOf", "additionalProperties", "object", "string", "integer", "number", "boolean",
    "array", "null",
))  # fmt: skip
# The literals that a policy's own message is made of; all others end or begin a message.
_SPOKEN = frozenset(("<tool_call>", "</tool_call>", "<think>", "</think>"))
Shield = Callable[[str], str]  # text → text that the template may be given in its place


class Controls:
    """The control tokens of a tokenizer: literal → id."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        controls = {token.content: index for index, token in tokenizer.added_tokens_decoder.items()}
        self.ids = dict(sorted(controls.items(), key=lambda item: -len(item[0])))
        self._split = re.compile("(" + "|".join(map(re.escape, self.ids)) + ")")
        specification = json.loads(tokenizer.backend_tokenizer.to_str())
        self._plain = Tokenizer.from_str(json.dumps({**specification, "added_tokens": [], "post_processor": None}))
        # Runs of white space are text in any vocabulary, and what is unknown has to become something.
        self._barred = {
            index
            for index, token in tokenizer.added_tokens_decoder.items()
            if index != tokenizer.unk_token_id and (token.special or token.content.strip())
        }
        self._schema = {word for word in _SCHEMA if not any(word in literal for literal in self.ids)}
        self._letters = sorted(set("".join(self.ids)))
        self._marks = functools.lru_cache(maxsize=8)(self._chosen)

    def render(self, template: Callable[[Shield], str], given: str) -> tuple[int, ...]:
        """Tokens of what the template makes of shielded text; `given` is all of that text.

        They are those that harmless text would have: a template that looks into what it is given is shown it with no
        more than whole literals replaced, unless its control tokens would be others then.
        """
        marks = self._marks(frozenset(map(ord, _TAKEN.findall(given))))
        shown, certain = template(marks.protect), template(marks.taint)
        inspects = marks.restore(shown) != marks.restore(certain)
        same = inspects and self._split.findall(shown) == self._split.findall(certain)
        return self._encode(shown if same else certain, marks)

    def shielded(self, value: Any, shield: Shield) -> Any:
        """The JSON value, every text in it shielded, keys as well, but for the words of any schema."""
        if isinstance(value, str):
            return value if value in self._schema else shield(value)
        if isinstance(value, dict):
            return {self.shielded(key, shield): self.shielded(item, shield) for key, item in value.items()}
        return [self.shielded(item, shield) for item in value] if isinstance(value, list) else value

    def _encode(self, text: str, marks: _Marks) -> tuple[int, ...]:
        tokens: list[int] = []
        for piece in self._split.split(text):
            if piece in self.ids:
                tokens.append(self.ids[piece])
            elif piece:
                tokens.extend(self._spelled(marks.restore(piece)))
        return tuple(tokens)

    def encode_spoken(self, text: str) -> tuple[int, ...]:
        """Tokens of a message of the policy's own: its literals around thoughts and calls are control tokens."""
        tokens: list[int] = []
        run = ""
        for piece in self._split.split(sound(text)):
            if piece not in _SPOKEN or piece not in self.ids:
                run += piece
                continue
            tokens += [*self._spelled(run), self.ids[piece]]
            run = ""
        return (*tokens, *self._spelled(run))

    def _spelled(self, text: str) -> list[int]:
        """Tokens of text, none of them a control token."""
        if not text:
            return []
        encoding = self._plain.encode(text, add_special_tokens=False)
        if self._barred.isdisjoint(encoding.ids):
            return list(encoding.ids)
        # The vocabulary itself holds a literal: it is taken apart into its characters.
        tokens: list[int] = []
        for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token not in self._barred:
                tokens.append(token)
                continue
            for character in text[start:end]:
                parts = self._plain.encode(character, add_special_tokens=False).ids
                tokens += [part for part in parts if part not in self._barred]
        return tokens

    def _chosen(self, taken: frozenset[int]) -> _Marks:
        """Marks that no text in question holds; where there are not enough, it loses its private-use characters."""
        needed = len(self.ids) + len(self._letters)
        free = list(itertools.islice((code for code in _PRIVATE if code not in taken), needed))
        lost = frozenset() if len(free) == needed else frozenset(_PRIVATE)
        codes = free if len(free) == needed else list(_PRIVATE[:needed])
        return _Marks(
            self._split,
            dict(zip(self.ids, map(chr, codes), strict=False)),
            dict(zip(self._letters, map(chr, codes[len(self.ids) :]), strict=True)),
            lost,
        )


class _Marks:
    """What stands for what while a template runs."""

    def __init__(
        self, split: re.Pattern[str], literals: dict[str, str], letters: dict[str, str], lost: frozenset[int]
    ) -> None:
        self._split, self._literals = split, literals
        self._tainted = str.maketrans(letters)
        self._lost = dict.fromkeys(lost, "\ufffd")
        self._meaning = {ord(mark): meant for meant, mark in (literals | letters).items()}

    def protect(self, text: str) -> str:
        """The text without whole literals."""
        return self._split.sub(lambda found: self._literals[found[0]], self._own(text))

    def taint(self, text: str) -> str:
        """The text without any character of a literal."""
        return self._own(text).translate(self._tainted)

    def restore(self, text: str) -> str:
        """What stood there before."""
        return text.translate(self._meaning)

    def _own(self, text: str) -> str:
        return sound(text).translate(self._lost) if self._lost else sound(text)


def sound(text: str) -> str:
    """Half a surrogate pair is a Python string but no text."""
    return text.encode("utf-8", "replace").decode()
