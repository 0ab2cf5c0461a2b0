"""Unicode normal forms of any text, however hostile, in time linear in its length, and text for a terminal."""

import itertools
import re
import unicodedata
from typing import Literal

Form = Literal["NFC", "NFD", "NFKC", "NFKD"]

# The standard library sorts the marks after a letter by insertion, in quadratic time. Unicode's stream-safe text format
# allows at most this many in a row.
_MARKS = 30
# Characters of combining class 0 that decompose into marks.
_HIDDEN = frozenset("\u0f73\u0f75\u0f81\uff9e\uff9f")
_OTHERS = re.compile(r"[^\x00-\u02ff]+")


def normal_form(form: Form, text: str) -> str:
    """`unicodedata.normalize(form, text)`."""
    if not any(_has_mark_run(run) for run in _OTHERS.findall(text) if len(run) > _MARKS):
        return unicodedata.normalize(form, text)
    decomposition: Form = "NFKD" if form in ("NFKC", "NFKD") else "NFD"
    parts = {letter: unicodedata.normalize(decomposition, letter) for letter in set(text)}
    letters = "".join(map(parts.__getitem__, text))
    # These marks are sorted already, so that `normalize` has nothing to sort.
    sorted_runs = (
        sorted(run, key=unicodedata.combining) if marks else run
        for marks, run in itertools.groupby(letters, lambda letter: unicodedata.combining(letter) > 0)
    )
    return unicodedata.normalize(form, "".join(itertools.chain.from_iterable(sorted_runs)))


def _has_mark_run(text: str) -> bool:
    """Whether more than _MARKS marks stand in a row."""
    runs = itertools.groupby(text, lambda letter: unicodedata.combining(letter) > 0 or letter in _HIDDEN)
    return any(marks and next(itertools.islice(run, _MARKS, None), None) is not None for marks, run in runs)


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
