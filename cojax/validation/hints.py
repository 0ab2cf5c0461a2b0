"""Finds an answer that a query gives away in disguise: enciphered, encoded, spelled out, in letters that look alike.

The query is read as it stands and in the readings of disguise.py; in each, the forms of the answer are looked for as
whole words, which may be taken apart. Encodings of the answer are looked for too, as those of a single word are too
short to be decoded.
"""

from __future__ import annotations

import base64
import functools
import itertools
import re
from collections.abc import Iterator

from cojax.validation import disguise
from cojax.validation.decodings import MORSE, MORSE_MARKS
from cojax.validation.mention import NUMBERS_IN_WORDS, fold, stem

# Fewest letters of an answer that is looked for: taken apart or encoded, and backwards or in a cipher.
_SPELLED, _TURNED = 3, 4
# Most letters of an answer that are looked for, and most places where they are compared with the edges of words.
_MOST, _PLACES = 200, 100
_ALPHABET = "abcdefghijklmnopqrstuvwxyz"
_LETTERS = """
alfa bravo charlie delta echo foxtrot golf hotel india juliett kilo lima mike november oscar papa quebec romeo sierra
tango uniform victor whiskey xray yankee zulu
"""
_SPELLING = _LETTERS.split()
_OTHERWISE = {"alpha": "alfa", "juliet": "juliett", "whisky": "whiskey"}
# Words between letters that are spelled one by one.
_BETWEEN = re.compile(r"\b(?:and|then|followed|by|next|letters?|dash|dot|space)\b|(?<=\w)'s\b")
_HEX = re.compile(r"\b0x|\\x")
_WORD = re.compile(r"[^\W_]+")
_VOWELS = re.compile(r"[aeiou]")
_NUMBER = re.compile(r"[\d\W_]+")


def hint(query: str, answer: str) -> str:
    """How the query gives the answer away, in words; "" if no reading of it does. A number is looked for in words."""
    if _NUMBER.fullmatch(answer):
        word = NUMBERS_IN_WORDS.get(int(answer) if len(answer) < 3 and answer.isdecimal() else 0)
        return "in words" if word in _WORD.findall(fold(query)) else ""
    looked_for = _Forms(answer[:_MOST])
    if len(looked_for.letters) < _SPELLED:
        return ""
    for how, reading in disguise.readings(query):
        if found := looked_for.within(reading):
            return ", ".join(filter(None, (how, found)))
    return ""


class _Forms:
    """The forms of an answer, in plain letters, with one letter for all that look alike."""

    def __init__(self, answer: str) -> None:
        own = disguise.words(answer)
        self.letters = "".join(own)
        self._stems = "".join(map(stem, own))
        plain = "".join(_WORD.findall(disguise.plain_letters(answer)))
        self._turned = dict(_turned(plain)) if len(plain) >= _TURNED else {}
        self._mixed = "".join(sorted(plain)) if len(plain) > _TURNED else ""
        consonants = _VOWELS.sub("", plain)
        self._consonants = consonants if _SPELLED <= len(consonants) < len(plain) else ""
        self._encoded = dict(_encoded(answer))
        self._morse = " ".join(MORSE.get(letter, "") for letter in plain)

    def within(self, text: str) -> str:
        """The form that the text holds, in words; "" if it holds none."""
        folded = fold(text)
        if self._morse in " ".join(folded.translate(MORSE_MARKS).split()) and self._morse.strip():
            return "Morse"
        own = _Words([_OTHERWISE.get(word, word) for word in _WORD.findall(_HEX.sub("", folded))])
        if how := next((how for form, how in self._encoded.items() if own.hold(form)), ""):
            return how
        alike = _Words(disguise.words(text))
        if alike.hold(self.letters) or alike.hold(self.letters[::-1], _TURNED):
            return "taken apart, backwards or in letters that look alike"
        spelled = _Words(disguise.words(_BETWEEN.sub(" ", folded)))
        if alike.hold_stems(self._stems) or spelled.hold(self.letters):
            return "in the plural, or letter by letter"
        plain = _WORD.findall(disguise.plain_letters(text))
        if any(self._mixed == "".join(sorted(word)) for word in plain) or self._consonants in plain:
            return "its letters mixed, or without vowels"
        joined = _Words(plain)
        return next((how for form, how in self._turned.items() if joined.hold(form)), "")


class _Words:
    """The words of a text, joined, and where each begins."""

    def __init__(self, words: list[str]) -> None:
        self._words = words
        self._joined = "".join(words)

    @functools.cached_property
    def _edges(self) -> frozenset[int]:
        return frozenset(itertools.accumulate(map(len, self._words), initial=0))

    def hold(self, form: str, fewest: int = _SPELLED) -> bool:
        """Whether some words in a row, joined, are the form."""
        place = self._joined.find(form) if len(form) >= fewest else -1
        for _ in range(_PLACES):
            if place < 0:
                return False
            if place in self._edges and place + len(form) in self._edges:
                return True
            place = self._joined.find(form, place + 1)
        return False

    def hold_stems(self, stems: str) -> bool:
        return _Words([stem(word) for word in self._words]).hold(stems)


def _turned(plain: str) -> Iterator[tuple[str, str]]:
    """(form, how) of letters moved on in the alphabet, and of the alphabet backwards, each also read backwards."""
    tables = {f"letters {shift} further on": _ALPHABET[shift:] + _ALPHABET[:shift] for shift in range(1, 26)}
    for how, alphabet in {**tables, "the alphabet backwards": _ALPHABET[::-1]}.items():
        form = plain.translate(str.maketrans(_ALPHABET, alphabet))
        if form != plain:
            yield form, how
            yield form[::-1], f"{how}, backwards"


def _encoded(answer: str) -> Iterator[tuple[str, str]]:
    """(form, how) of usual encodings of the answer, in small letters and digits alone."""
    small = fold(answer)
    for text in dict.fromkeys((answer, small, answer.upper(), answer.title(), small[::-1])):
        data = text.encode("utf-8", "replace")
        forms = {
            "base64": base64.b64encode(data).decode(),
            "base32": base64.b32encode(data).decode(),
            "hexadecimal": data.hex(),
            "binary": "".join(f"{byte:08b}" for byte in data),
            "character codes": "".join(map(str, data)),
        }
        yield from (("".join(_WORD.findall(form.casefold())), how) for how, form in forms.items())
    letters = [_ALPHABET.index(letter) for letter in small if letter in _ALPHABET]
    if len(letters) >= _TURNED and len(letters) == len("".join(_WORD.findall(small))):
        yield "".join(str(place + 1) for place in letters), "numbers for letters"
        yield "".join(_SPELLING[place] for place in letters), "words for letters"
