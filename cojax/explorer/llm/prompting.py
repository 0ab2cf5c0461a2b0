"""Reads the prompts from the files in prompts/, fills their slots, and fits texts into a window of characters.

The prompts' version is a hash of all files. Of texts that are too long, the oldest are left out.
"""

import functools
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from cojax.types import Message, content_hash

_FOLDER = Path(__file__).parent / "prompts"
_PART = re.compile(r"^# (\w+)\n", re.MULTILINE)
_SLOT = re.compile(r"{{(\w+)}}")
# Texts are not shortened below this many characters: the oldest are left out instead.
_LEAST = 120


@functools.cache
def version() -> str:
    """8 hex digits of the SHA-256 of all prompts, by name."""
    digest = hashlib.sha256()
    for path in sorted(_FOLDER.glob("*.md")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:8]


@functools.cache
def parts(name: str) -> dict[str, str]:
    """The parts of a prompt file, by their headings: lines `# heading`."""
    _, *pieces = _PART.split((_FOLDER / f"{name}.md").read_text())
    return {heading: text.strip() for heading, text in zip(pieces[::2], pieces[1::2], strict=True)}


def fill(text: str, **values: str) -> str:
    """The text with values for its slots `{{name}}`; slots within values stay. Raises KeyError for a missing value."""
    return _SLOT.sub(lambda slot: values[slot[1]], text)


def prompt(name: str, **values: str) -> tuple[Message, Message]:
    """The system and the user message of a prompt file, filled."""
    both = parts(name)
    return tuple(Message(role, fill(both[role], **values)) for role in ("system", "user"))  # type: ignore[return-value]


def data(text: str) -> str:
    """Untrusted text between marks. The text cannot contain these marks, as they contain the text's hash."""
    mark = content_hash(text)[:8]
    return f"<data {mark}>\n{text}\n</data {mark}>"


def bullets(lines: tuple[str, ...] | list[str]) -> str:
    """The lines as a list; "- (nothing)" where there are none."""
    return "\n".join(f"- {line}" for line in lines) or "- (nothing)"


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
