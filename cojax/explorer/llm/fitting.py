"""Fitting texts into a window: the one place that decides what a prompt shows of what is too long."""

from __future__ import annotations

from collections.abc import Sequence

# Characters of a text below which it is worth nothing: rather the oldest texts are left out.
_LEAST = 120


def fitted(texts: Sequence[str], room: int, each: int = 0) -> list[str | None]:
    """The texts, oldest first, in at most `room` characters, of which every text shown takes `each` for itself.

    All are cut at the same length, the longest that fits: what short ones do not need goes to the long ones. Where that
    would leave too little of each, the oldest are left out: None.
    """
    kept = _newest([len(text) for text in texts], room, each, _LEAST)
    newest = texts[len(texts) - kept :]
    level = _level([len(text) for text in newest], room - kept * each)
    return [*[None] * (len(texts) - kept), *(shortened(text, level) for text in newest)]


def paired(texts: Sequence[tuple[str, str]], room: int, each: int = 0) -> list[tuple[str, str]]:
    """As many of the newest pairs as fit, cut as `fitted` cuts texts; every pair takes `each` for itself."""
    least = [min(len(one), _LEAST) + min(len(other), _LEAST) for one, other in texts]
    kept = _newest(least, room, each, 2 * _LEAST)
    newest = texts[len(texts) - kept :]
    level = _level([len(text) for pair in newest for text in pair], room - kept * each)
    return [(shortened(one, level), shortened(other, level)) for one, other in newest]


def _newest(lengths: Sequence[int], room: int, each: int, least: int) -> int:
    """How many, from the last, have room for `each` and the least of themselves."""
    kept = 0
    for length in reversed(lengths):
        room -= each + min(length, least)
        if room < 0:
            break
        kept += 1
    return kept


def shortened(text: str, limit: int) -> str:
    """At most `limit` characters of the text, among them how many are left out."""
    if len(text) <= limit:
        return text
    left_out = f"\n[{len(text)} characters left out]"  # as long as it can get
    kept = limit - len(left_out)
    return f"{text[:kept]}\n[{len(text) - kept} characters left out]" if kept > 0 else text[: max(0, limit)]


def _level(lengths: Sequence[int], room: int) -> int:
    """The greatest length at which texts can be cut so that all of them fit."""
    for place, length in enumerate(sorted(lengths)):
        share = room // (len(lengths) - place)
        if length > share:
            return max(0, share)
        room -= length
    return max(lengths, default=0)
