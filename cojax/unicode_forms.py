"""Unicode normal forms of any text, however hostile, in time linear in its length, and text for a terminal."""

import itertools
import re
import unicodedata
from typing import Literal

Form = Literal["NFC", "NFD", "NFKC", "NFKD"]

# The standard library sorts the marks after a letter by insertion, in quadratic time. Unicode's stream-safe text format
# allows at most this many in a row.
_MAX_MARKS = 30
# Characters of combining class 0 that decompose into marks.
_DECOMPOSING_LETTERS = frozenset("\u0f73\u0f75\u0f81\uff9e\uff9f")
_BEYOND_LATIN_PATTERN = re.compile(r"[^\x00-\u02ff]+")


def normalise_form(form: Form, text: str) -> str:
    """`unicodedata.normalize(form, text)`."""
    if not any(_has_mark_run(run) for run in _BEYOND_LATIN_PATTERN.findall(text) if len(run) > _MAX_MARKS):
        return unicodedata.normalize(form, text)
    decomposition: Form = "NFKD" if form in ("NFKC", "NFKD") else "NFD"
    decomposition_by_letter = {letter: unicodedata.normalize(decomposition, letter) for letter in set(text)}
    decomposed_text = "".join(map(decomposition_by_letter.__getitem__, text))
    # These marks are sorted already, so that `normalize` has nothing to sort.
    sorted_runs = (
        sorted(run, key=unicodedata.combining) if are_marks else run
        for are_marks, run in itertools.groupby(decomposed_text, lambda letter: unicodedata.combining(letter) > 0)
    )
    return unicodedata.normalize(form, "".join(itertools.chain.from_iterable(sorted_runs)))


def _has_mark_run(text: str) -> bool:
    """Whether more than _MAX_MARKS marks stand in a row."""
    runs = itertools.groupby(text, lambda letter: unicodedata.combining(letter) > 0 or letter in _DECOMPOSING_LETTERS)
    return any(is_mark and next(itertools.islice(run, _MAX_MARKS, None), None) is not None for is_mark, run in runs)


def plain(text: str) -> str:
    """The text with control characters escaped: a model's text may try to move the terminal's cursor."""
    if text.isprintable():
        return text
    return "".join(
        char.encode("unicode_escape", "surrogatepass").decode("ascii")
        if char not in "\n\t" and unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")
        else char
        for char in text
    )
