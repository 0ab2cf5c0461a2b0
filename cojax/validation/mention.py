"""Finds out whether a text mentions a value: in any case or width, plural, in number words, as a date, or in part.

A value in entirely different words looks as if it were not mentioned. So every rule here errs towards yes.
"""

import dataclasses
import functools
import re
import tomllib
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path

from cojax.unicode_forms import normal_form

# The words for reading a query: numbers, days, and patterns of what it asks for and of its conditions.
ENGLISH = tomllib.loads(Path(__file__).with_name("english.toml").read_bytes().decode())
_PART = re.compile(r"<([A-Z_]+)>")


def patterns(section: str, **parts: str) -> dict[str, re.Pattern[str]]:
    """The patterns of a section of english.toml, by name; `parts` are filled in beside those of the section."""
    parts |= {name: "".join(pieces) for name, pieces in ENGLISH[section].items()}
    return {name: re.compile(_PART.sub(lambda part: parts[part[1]], text)) for name, text in parts.items()}


COMMON = frozenset(ENGLISH["common"].split())
_WORDS = {name: words.split() for name, words in ENGLISH["numbers"].items() if isinstance(words, str)}
_TENS = zip(range(20, 100, 10), _WORDS["tens"], strict=True)
NUMBERS = {word: number for number, word in (*enumerate(_WORDS["units"]), *_TENS)}
# Number → its word, for words that rarely mean anything else.
NUMBERS_IN_WORDS = {number: word for word, number in NUMBERS.items() if number > 1}
WEEKDAYS = ENGLISH["days"]["weekdays"].split()
_DAYS = (*ENGLISH["days"]["relative"].split(), *WEEKDAYS)
_SCALES: Mapping[str, int] = ENGLISH["numbers"]["scales"]
_NUMBER_WORDS: Mapping[str, float] = {
    **NUMBERS,
    **{word: number for number, word in enumerate(_WORDS["ordinals"], start=1)},
    **{word[:length]: number for number, word in enumerate(_WORDS["months"], start=1) for length in (3, None)},
    **ENGLISH["numbers"]["others"],
}
_PIECE = re.compile(r"\d+(?:[.,]\d+)*|[^\W\d_]+")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_DATE = re.compile(r"\d{4}-\d{1,2}(?:-\d{1,2})?(?:[T ].*)?|\d{1,2}:\d{2}(?::\d{2})?")
_SUFFIX = re.compile(r"(?<=\w)\.[A-Za-z]\w{0,4}$")


@dataclasses.dataclass(frozen=True)
class Mentions:
    """A text with the words and numbers that it mentions."""

    text: str

    @functools.cached_property
    def folded_text(self) -> str:
        return fold(self.text)

    @functools.cached_property
    def letters(self) -> str:
        """The letters and digits of the text alone."""
        return re.sub(r"[\W_]+", "", self.folded_text)

    @functools.cached_property
    def words(self) -> frozenset[str]:
        """The stems of its words, without common words."""
        return frozenset(words(self.text))

    @functools.cached_property
    def numbers(self) -> frozenset[float]:
        return frozenset(_numbers(self.text))

    def holds(self, phrase: str) -> bool:
        """Whether a folded text appears in this one as whole words."""
        return phrase in self.folded_text and bool(re.search(rf"(?<!\w){re.escape(phrase)}(?!\w)", self.folded_text))

    def names(self, value: str | int | float) -> bool:
        """Whether the text names the value; of a value of several words, one in three is enough."""
        if isinstance(value, int | float):
            return any(near(value, number) for number in self.numbers)
        folded_value = fold(value).strip()
        if self.holds(folded_value):
            return True
        if _DATE.fullmatch(folded_value):
            return self._names_date(folded_value)
        parts = set(words(_SUFFIX.sub("", value))) or set(words(value))
        if not parts:
            return False
        if len(compact := re.sub(r"[\W_]+", "", folded_value)) > 3 and compact in self.letters:
            return True
        match_count = sum(self._has_word(part) for part in parts)
        return match_count >= max(1, len(parts) / 3)

    def _has_word(self, word: str) -> bool:
        """Whether the text has the word, one like it, or the number that it stands for."""
        if word in self.words:
            return True
        if word[0].isdigit():
            return any(near(number_of(word), number) for number in self.numbers)
        return len(word) > 4 and any(
            other.startswith(word[:-1]) or (len(other) > 4 and word.startswith(other[:-1])) for other in self.words
        )

    def _names_date(self, value: str) -> bool:
        """Whether the text names a day relative to today, or each number of the date or time, without the year."""
        if any(word in self.folded_text for word in _DAYS):
            return True
        parts = [float(number) for number in re.findall(r"\d+", value)]
        day = parts[1:] if "-" in value else parts[:2]
        afternoon_hours = {number + 12 for number in self.numbers if number < 12}
        return bool(day) and all(part == 0 or part in self.numbers or part in afternoon_hours for part in day)


def words(text: str) -> Iterator[str]:
    """The stems of the words of a text, without common ones; names in camel case are split."""
    for piece in _PIECE.findall(_CAMEL.sub(" ", normal_form("NFKC", text))):
        word = fold(piece)
        if word[0].isdigit():
            yield word.replace(",", "")
        elif word not in COMMON and len(word) > 1:
            yield stem(word)


def sentences(text: str, ends: str = ".!?") -> list[str]:
    """The sentences of a text, folded. Each ends with its line, or with one of the marks before white space."""
    return [fold(sentence) for sentence in re.split(rf"(?<=[{ends}])\s+|\n+", text) if sentence.strip()]


def number_of(word: str) -> float:
    """The number that a word in digits stands for; NaN for any other word."""
    try:
        return float(word)
    except ValueError:
        return float("nan")


def stem(word: str) -> str:
    """The word without an ending of the plural or of a tense."""
    for ending, instead in (("ies", "y"), ("sses", "ss"), ("xes", "x"), ("ches", "ch"), ("shes", "sh"), ("ing", ""),
                            ("ed", ""), ("es", "e"), ("s", "")):  # fmt: skip
        if word.endswith(ending) and len(word) - len(ending) + len(instead) > 2 and not word.endswith("ss"):
            return word[: -len(ending)] + instead
    return word


def fold(text: str) -> str:
    """The text in one case and width and without accents."""
    plain = normal_form("NFKD", text).casefold()
    return " ".join("".join(char for char in plain if unicodedata.category(char) not in ("Mn", "Cf")).split())


def near(value: float, number: float) -> bool:
    """Whether the value is the number, or the number rounded to as many decimals as the value has."""
    if abs(value - number) <= 1e-9 * max(1.0, abs(number)):
        return True
    decimals = len(repr(value).partition(".")[2]) if isinstance(value, float) else 0
    return decimals > 0 and abs(value - number) <= 0.5 * 10**-decimals


def _numbers(text: str) -> Iterator[float]:
    """The numbers of a text in digits, percentages also as shares, and in words such as "five hundred"."""
    folded_text = fold(text)
    for number, percent in re.findall(r"(\d[\d,]{0,30}(?:\.\d{1,30})?)(\s*%|\s+per\s?cent)?", folded_text):
        value = float(number.replace(",", ""))
        yield value
        if percent:
            yield value / 100
    total, part, is_open = 0.0, 0.0, False
    for piece in (*_PIECE.findall(folded_text), ""):
        digits = piece[:1].isdigit() and len(piece) < 16 and piece.count(".") < 2
        if digits or piece in _NUMBER_WORDS:
            value = float(piece.replace(",", "")) if digits else _NUMBER_WORDS[piece]
            if not digits:
                yield value
            # Only tens combine with a following unit: "twenty" with "one".
            part = part + value if is_open and part % 100 in range(20, 100, 10) and value < 10 else value
            is_open = True
        elif piece in _SCALES and (is_open or piece == "hundred"):
            part = (part or 1.0) * _SCALES[piece]
            total, part = (total + part, 0.0) if _SCALES[piece] > 100 else (total, part)
        elif piece != "and" and is_open:
            yield total + part
            total, part, is_open = 0.0, 0.0, False
