"""Fits texts into a window of characters: what a prompt shows of texts that are too long together."""

from __future__ import annotations

from collections.abc import Sequence

# A text cut to fewer characters is worth nothing: rather the oldest texts are left out.
_LEAST = 120


def fit_texts(texts: Sequence[str], room: int, each: int = 0) -> list[str | None]:
    """The texts, oldest first, cut to at most `room` characters in all; a text that is left out is None.

    Every text shown costs `each` characters more. All are cut at the same length, the longest that fits, so that long
    texts get what short ones do not need. Where that length is too small, the oldest texts are left out.
    """
    kept = _newest([len(text) for text in texts], room, each, _LEAST)
    newest = texts[len(texts) - kept :]
    level = _level([len(text) for text in newest], room - kept * each)
    return [*[None] * (len(texts) - kept), *(shorten(text, level) for text in newest)]


def fit_pairs(pairs: Sequence[tuple[str, str]], room: int, each: int = 0) -> list[tuple[str, str]]:
    """The newest pairs that fit into `room` characters, cut as `fit_texts` cuts texts; every pair costs `each` more."""
    least = [min(len(one), _LEAST) + min(len(other), _LEAST) for one, other in pairs]
    kept = _newest(least, room, each, 2 * _LEAST)
    newest = pairs[len(pairs) - kept :]
    level = _level([len(text) for pair in newest for text in pair], room - kept * each)
    return [(shorten(one, level), shorten(other, level)) for one, other in newest]


def _newest(lengths: Sequence[int], room: int, each: int, least: int) -> int:
    """How many of the last texts have room for `each` and the first `least` of their characters."""
    kept = 0
    for length in reversed(lengths):
        room -= each + min(length, least)
        if room < 0:
            break
        kept += 1
    return kept


def shorten(text: str, limit: int) -> str:
    """At most `limit` characters of the text; where it is cut, they end in how many are left out."""
    if len(text) <= limit:
        return text
    left_out = f"\n[{len(text)} characters left out]"  # as long as it can get
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
