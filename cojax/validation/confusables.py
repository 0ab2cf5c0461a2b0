"""Replaces letters that look like plain ASCII letters by these.

The table is Unicode's own (UTS #39, confusables.txt), as the package confusable_homoglyphs ships it. Letters that it
does not hold are replaced by their Unicode name: "NEGATIVE SQUARED LATIN CAPITAL LETTER A" is an A.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Mapping

# "LATIN … LETTER A", "… SMALL CAPITAL A", "… TURNED A", with or without "WITH HOOK"; not "LATIN LETTER ESH".
_NAMED = re.compile(r"\b(?:LATIN|SYMBOL) (?:[A-Z-]+ )*?([A-Z])(?: WITH [A-Z -]+)?$")
# Characters that show nothing: the fillers of Hangul and the blank Braille pattern.
BLANK = frozenset("\u115f\u1160\u3164\uffa0\u2800")
_HIDDEN = ("Cf", "Mn", "Me", "Cc", "Cn", "Co")
# Most characters that one character is replaced by.
_WIDEST = 18


def plain(text: str) -> str:
    """The text, in which ASCII letters replace every other character that looks like them.

    Marks and characters that show nothing are left out; case, punctuation and ASCII itself stay.
    """
    return text if text.isascii() else "".join(map(_plain, text))


@functools.lru_cache(maxsize=1 << 16)
def _plain(char: str) -> str:
    if char.isascii():
        return char
    if char.isspace():
        return " " if char not in "\u2028\u2029\x85" else "\n"
    if char in BLANK:
        return ""
    parts = unicodedata.normalize("NFKD", char)[:_WIDEST]
    shown = "".join(part for part in parts if unicodedata.category(part) not in _HIDDEN)
    return shown if shown.isascii() else _table().get(char) or "".join(map(_lookalike, shown))


def _lookalike(char: str) -> str:
    if char.isascii():
        return char
    # A letter without a lookalike may have one in its other case.
    for one in (char, char.upper(), char.lower()):
        if found := _table().get(one):
            return found
    named = _NAMED.search(unicodedata.name(char, ""))
    return named[1].lower() if named else char


def _unmarked(text: str) -> str:
    return "".join(char for char in unicodedata.normalize("NFKD", text) if unicodedata.category(char) != "Mn")


@functools.cache
def _table() -> Mapping[str, str]:
    """Character → the ASCII text that Unicode says it looks like, letters preferred to digits and marks."""
    # The table takes a moment to load, and only texts beyond ASCII need it.
    from confusable_homoglyphs.confusables import confusables_data

    table: dict[str, str] = {}
    for char, alike in confusables_data.items():
        if len(char) > 1 or char.isascii():
            continue
        # The package lists pairs of a character and its prototype: two characters with one prototype look alike.
        near = [_unmarked(one["c"]) for one in alike]
        around = [other["c"] for one in near for other in confusables_data.get(one, ())]
        plain_ones = [one for one in near if one.isascii()] or [one for one in around if one.isascii()]
        if plain_ones:
            found = min(plain_ones, key=lambda one: (not one.isalpha(), len(one), one.swapcase()))
            table[char] = "m" if found == "rn" else found
    return table
