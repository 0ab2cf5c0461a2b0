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

from cojax.unicode_forms import normalise_form

# The words for reading a query: numbers, days, and patterns of what it asks for and of its conditions.
ENGLISH = tomllib.loads(Path(__file__).with_name("english.toml").read_bytes().decode())
_PLACEHOLDER = re.compile(r"<([A-Z_]+)>")


def patterns(section: str, **parts: str) -> dict[str, re.Pattern[str]]:
    """The patterns of a section of english.toml, by name; `parts` are filled in beside those of the section."""
    parts |= {name: "".join(fragments) for name, fragments in ENGLISH[section].items()}
    return {name: re.compile(_PLACEHOLDER.sub(lambda match: parts[match[1]], text)) for name, text in parts.items()}


COMMON_STEMS = frozenset(ENGLISH["common"].split())
_WORD_LISTS = {name: words.split() for name, words in ENGLISH["numbers"].items() if isinstance(words, str)}
_TENS = zip(range(20, 100, 10), _WORD_LISTS["tens"], strict=True)
NUMBER_BY_WORD = {word: number for number, word in (*enumerate(_WORD_LISTS["units"]), *_TENS)}
# Number → its word, for words that rarely mean anything else.
WORD_BY_NUMBER = {number: word for word, number in NUMBER_BY_WORD.items() if number > 1}
WEEKDAYS = ENGLISH["days"]["weekdays"].split()
_DAY_WORDS = (*ENGLISH["days"]["relative"].split(), *WEEKDAYS)
_SCALE_BY_WORD: Mapping[str, int] = ENGLISH["numbers"]["scales"]
_VALUE_BY_WORD: Mapping[str, float] = {
    **NUMBER_BY_WORD,
    **{word: number for number, word in enumerate(_WORD_LISTS["ordinals"], start=1)},
    **{word[:length]: number for number, word in enumerate(_WORD_LISTS["months"], start=1) for length in (3, None)},
    **ENGLISH["numbers"]["others"],
}
_TOKEN_PATTERN = re.compile(r"\d+(?:[.,]\d+)*|[^\W\d_]+")
_CAMEL_JOINT_PATTERN = re.compile(r"(?<=[a-z])(?=[A-Z])")
_DATE_PATTERN = re.compile(r"\d{4}-\d{1,2}(?:-\d{1,2})?(?:[T ].*)?|\d{1,2}:\d{2}(?::\d{2})?")
_FILE_SUFFIX_PATTERN = re.compile(r"(?<=\w)\.[A-Za-z]\w{0,4}$")


@dataclasses.dataclass(frozen=True)
class Mentions:
    """A text with the words and numbers that it mentions."""

    text: str

    @functools.cached_property
    def folded_text(self) -> str:
        return fold_text(self.text)

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
        return frozenset(_read_numbers(self.text))

    def has_phrase(self, phrase: str) -> bool:
        """Whether a folded text appears in this one as whole words."""
        return phrase in self.folded_text and bool(re.search(rf"(?<!\w){re.escape(phrase)}(?!\w)", self.folded_text))

    def names(self, value: str | int | float) -> bool:
        """Whether the text names the value; of a value of several words, one in three is enough."""
        if isinstance(value, int | float):
            return any(near(value, number) for number in self.numbers)
        folded_value = fold_text(value).strip()
        if self.has_phrase(folded_value):
            return True
        if _DATE_PATTERN.fullmatch(folded_value):
            return self._names_date(folded_value)
        value_words = set(words(_FILE_SUFFIX_PATTERN.sub("", value))) or set(words(value))
        if not value_words:
            return False
        if len(compact_value := re.sub(r"[\W_]+", "", folded_value)) > 3 and compact_value in self.letters:
            return True
        match_count = sum(self._has_word(word) for word in value_words)
        return match_count >= max(1, len(value_words) / 3)

    def _has_word(self, word: str) -> bool:
        """Whether the text has the word, one like it, or the number that it stands for."""
        if word in self.words:
            return True
        if word[0].isdigit():
            return any(near(read_number(word), number) for number in self.numbers)
        return len(word) > 4 and any(
            peer.startswith(word[:-1]) or (len(peer) > 4 and word.startswith(peer[:-1])) for peer in self.words
        )

    def _names_date(self, value: str) -> bool:
        """Whether the text names a day relative to today, or each number of the date or time, without the year."""
        if any(word in self.folded_text for word in _DAY_WORDS):
            return True
        date_numbers = [float(number) for number in re.findall(r"\d+", value)]
        day = date_numbers[1:] if "-" in value else date_numbers[:2]
        afternoon_hours = {number + 12 for number in self.numbers if number < 12}
        return bool(day) and all(number == 0 or number in self.numbers or number in afternoon_hours for number in day)


def words(text: str) -> Iterator[str]:
    """The stems of the words of a text, without common ones; names in camel case are split."""
    for token in _TOKEN_PATTERN.findall(_CAMEL_JOINT_PATTERN.sub(" ", normalise_form("NFKC", text))):
        word = fold_text(token)
        if word[0].isdigit():
            yield word.replace(",", "")
        elif word not in COMMON_STEMS and len(word) > 1:
            yield stem_word(word)


def sentences(text: str, end_marks: str = ".!?") -> list[str]:
    """The sentences of a text, folded. Each ends with its line, or with one of the marks before white space."""
    return [fold_text(sentence) for sentence in re.split(rf"(?<=[{end_marks}])\s+|\n+", text) if sentence.strip()]


def read_number(word: str) -> float:
    """The number that a word in digits stands for; NaN for any other word."""
    try:
        return float(word)
    except ValueError:
        return float("nan")


def stem_word(word: str) -> str:
    """The word without an ending of the plural or of a tense."""
    for suffix, replacement in (("ies", "y"), ("sses", "ss"), ("xes", "x"), ("ches", "ch"), ("shes", "sh"), ("ing", ""),
                            ("ed", ""), ("es", "e"), ("s", "")):  # fmt: skip
        if word.endswith(suffix) and len(word) - len(suffix) + len(replacement) > 2 and not word.endswith("ss"):
            return word[: -len(suffix)] + replacement
    return word


def fold_text(text: str) -> str:
    """The text in one case and width and without accents."""
    folded_text = normalise_form("NFKD", text).casefold()
    return " ".join("".join(char for char in folded_text if unicodedata.category(char) not in ("Mn", "Cf")).split())


def near(value: float, exact_number: float) -> bool:
    """Whether the value is the number, or the number rounded to as many decimals as the value has."""
    if abs(value - exact_number) <= 1e-9 * max(1.0, abs(exact_number)):
        return True
    decimals = len(repr(value).partition(".")[2]) if isinstance(value, float) else 0
    return decimals > 0 and abs(value - exact_number) <= 0.5 * 10**-decimals


def _read_numbers(text: str) -> Iterator[float]:
    """The numbers of a text in digits, percentages also as shares, and in words such as "five hundred"."""
    folded_text = fold_text(text)
    for number, percent in re.findall(r"(\d[\d,]{0,30}(?:\.\d{1,30})?)(\s*%|\s+per\s?cent)?", folded_text):
        value = float(number.replace(",", ""))
        yield value
        if percent:
            yield value / 100
    total, subtotal, is_open = 0.0, 0.0, False
    for token in (*_TOKEN_PATTERN.findall(folded_text), ""):
        is_digits = token[:1].isdigit() and len(token) < 16 and token.count(".") < 2
        if is_digits or token in _VALUE_BY_WORD:
            value = float(token.replace(",", "")) if is_digits else _VALUE_BY_WORD[token]
            if not is_digits:
                yield value
            # Only tens combine with a following unit: "twenty" with "one".
            subtotal = subtotal + value if is_open and subtotal % 100 in range(20, 100, 10) and value < 10 else value
            is_open = True
        elif token in _SCALE_BY_WORD and (is_open or token == "hundred"):
            subtotal = (subtotal or 1.0) * _SCALE_BY_WORD[token]
            total, subtotal = (total + subtotal, 0.0) if _SCALE_BY_WORD[token] > 100 else (total, subtotal)
        elif token != "and" and is_open:
            yield total + subtotal
            total, subtotal, is_open = 0.0, 0.0, False
