"""Fits texts into a window of characters: shortens them and leaves out the oldest."""

from __future__ import annotations

from collections.abc import Sequence

# Texts are not shortened below this many characters: the oldest are left out instead.
_LEAST = 120


def fit_texts(texts: Sequence[str], room: int, each: int = 0) -> list[str | None]:
    """The texts, oldest first, shortened to at most `room` characters in total; a text that is left out is None.

    Every text shown costs `each` extra characters. All are cut at the same length, the longest that fits, so that long
    texts get the room that short ones do not need. If that length is too small, the oldest texts are left out.
    """
    kept = _newest([len(text) for text in texts], room, each, _LEAST)
    newest = texts[len(texts) - kept :]
    level = _level([len(text) for text in newest], room - kept * each)
    return [*[None] * (len(texts) - kept), *(shorten(text, level) for text in newest)]


def fit_pairs(pairs: Sequence[tuple[str, str]], room: int, each: int = 0) -> list[tuple[str, str]]:
    """The newest pairs that fit into `room` characters, shortened as in `fit_texts`; each pair costs `each` extra."""
    least = [min(len(one), _LEAST) + min(len(other), _LEAST) for one, other in pairs]
    kept = _newest(least, room, each, 2 * _LEAST)
    newest = pairs[len(pairs) - kept :]
    level = _level([len(text) for pair in newest for text in pair], room - kept * each)
    return [(shorten(one, level), shorten(other, level)) for one, other in newest]


def _newest(lengths: Sequence[int], room: int, each: int, least: int) -> int:
    """How many of the last texts fit if each takes `each` plus at most `least` of its characters."""
    kept = 0
    for length in reversed(lengths):
        room -= each + min(length, least)
        if room < 0:
            break
        kept += 1
    return kept


def shorten(text: str, limit: int) -> str:
    """At most `limit` characters of the text; if it is cut, the end says how many characters are left out."""
    if len(text) <= limit:
        return text
    left_out = f"\n[{len(text)} characters left out]"  # the longest that the note can be
    kept = limit - len(left_out)
    return f"{text[:kept]}\n[{len(text) - kept} characters left out]" if kept > 0 else text[: max(0, limit)]


def _level(lengths: Sequence[int], room: int) -> int:
    """The greatest length at which texts can be cut so that all of them fit."""
    for index, length in enumerate(sorted(lengths)):
        share = room // (len(lengths) - index)
        if length > share:
            return max(0, share)
        room -= length
    return max(lengths, default=0)
