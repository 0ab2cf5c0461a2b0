"""Which drafts a person should see before a policy does: rules over what they ask for and how they do it.

Rules find words, not intentions: what they catch is set aside with its evidence, never trained on and never dropped
silently. They are about wholesale harm and other people's secrets; deleting one file or logging in is work.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping
from typing import Any

from cojax.explorer.guidance import signature
from cojax.types import TaskDraft
from cojax.validation.confusables import plain
from cojax.validation.decodings import decoded
from cojax.validation.safety_rules import ASKED, DONE

_MODEL = {"instructions to a model": ASKED["instructions to a model"]}
_COMMON = frozenset(
    ("the", "of", "and", "to", "my", "for", "is", "that", "it", "all", "with", "from", "your", "me", "his", "her")
)
# Texts of a draft that are decoded are as long as this at most; longer ones are read as they are.
_DECODED = 20_000


def concern(draft: TaskDraft) -> str:
    """The first rule that the draft falls under, with the words that fell; empty where none does."""
    asked = f"{draft.query}\n{draft.description}\n{draft.criterion}"
    done = "\n".join(f"{signature(action)}\n{action.text}" for action in draft.solution)
    # What a call passes on is said to somebody, who may be asked for anything there.
    said = [text for action in draft.solution for call in action.calls for text in _said(call.arguments)]
    heard = [reading for text in dict.fromkeys((asked, *said)) for reading in _readings(text)]
    looked_at = (
        (ASKED, heard),
        (DONE, [_plain(done), *heard]),
        (_MODEL, [_plain(done)]),
    )
    for rules, texts in looked_at:
        for name, pattern in rules.items():
            if found := next(filter(None, map(pattern.search, texts)), None):
                return f"{name}: {found[0][:120]!r}"
    return ""


def _readings(text: str) -> Iterator[str]:
    """The text, what it says once it is decoded, backwards, and by the commonest cipher."""
    yield _plain(text)
    if len(text) > _DECODED or not any(map(str.isalpha, text)):
        return
    for _, reading in decoded(text):
        yield _plain(reading)
    lowered = _plain(text)
    for reading in (lowered[::-1], codecs.encode(lowered, "rot13")):
        # What is English as it stands is none in cipher.
        if _commonness(reading) >= _commonness(lowered):
            yield reading


def _commonness(text: str) -> int:
    """How many of its words are among the commonest of English."""
    return sum(word in _COMMON for word in text.split())


def _said(arguments: Mapping[str, Any]) -> Iterator[str]:
    """The texts of a call's arguments: each key, however deep, each value, and the values of one argument together, as
    a text may be cut into a list."""
    for name, value in arguments.items():
        keys, values = [str(name)], list[str]()
        open_ = [value]
        while open_:
            match open_.pop():
                case Mapping() as inner:
                    keys += map(str, inner)
                    open_ += reversed(list(inner.values()))
                case list() | tuple() as inner:
                    open_ += reversed(inner)
                case leaf:
                    values.append(str(leaf))
        yield from (key.replace("_", " ") for key in keys)
        yield from values
        if len(values) > 1:
            yield " ".join(values)


def _plain(text: str) -> str:
    """Plain small letters and single spaces, without characters that show nothing."""
    return " ".join(_QUOTES.sub("'", plain(text)).casefold().split())


# Unicode's table has a double quotation mark as two single ones.
_QUOTES = re.compile("''+")
