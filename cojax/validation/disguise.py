"""Recognises evaluation queries in disguise: letters that look alike, ciphers, encodings, reversals, parts."""

from __future__ import annotations

import collections
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from cojax.validation.confusables import plain
from cojax.validation.decodings import decodings

# Most decodings one within the other, and most readings of one text.
_DEEPEST = 3
_READINGS = 32
# Fewest words and letters of a query that is recognised inside a longer reading.
_FEWEST = 3
_SHORTEST = 12
# Fewest queries by which words that none of them contains count as filler.
_REPRESENTATIVE = 100
# Of a query with other words in between, the least share of neighbouring words that must still be neighbours.
_NEIGHBOURS = 0.6
# Most words of a text that are tried with each cipher, and most ciphers that are followed up.
_TRIED = 100
_CIPHERS = 2

_ALPHABET = "abcdefghijklmnopqrstuvwxyz"
_ROTATIONS = {
    **{
        f"letters {shift} further on": str.maketrans(_ALPHABET, _ALPHABET[26 - shift :] + _ALPHABET[: 26 - shift])
        for shift in range(1, 26)
    },
    "the alphabet backwards": str.maketrans(_ALPHABET, _ALPHABET[::-1]),
}
# Digits to the letters they stand for, and letters that look alike to one of them.
_SAME = str.maketrans("0123456789i", "olzeasgtbql")
# Marks to the letters they stand for; + and ! only next to a word or within one.
_MARKS = str.maketrans("@$€£¢|", "aselcl")
_PLUS = re.compile(r"(?<=\w)\+|\+(?=\w)")
_BANG = re.compile(r"(?<=\w)!(?=\w)|(?<!\S)!(?=\w)")
_WORD = re.compile(r"[^\W_]+")
_LETTERS = re.compile(r"[a-z]")
_CLAUSE = re.compile(r"[.,;:!?…()\[\]\"“”\n]|\s[-–—]\s")
# Words around the parts of a request that do not belong to it.
_AROUND = """
a an and the then next now finally also please kindly hey hi hello thanks ok okay so well
part parts piece pieces turn continue continued join together combine
"""
_FILLER = frozenset(_AROUND.split())


def plain_letters(text: str) -> str:
    """The text in plain small letters, also in place of marks that stand for letters."""
    lowered = plain(text.translate(_MARKS)).lower()
    return _BANG.sub("l", _PLUS.sub("t", lowered)) if "+" in lowered or "!" in lowered else lowered


def words(text: str) -> list[str]:
    """The words of the text, with one letter for all that look alike."""
    return _WORD.findall(_same(plain_letters(text)))


def readings(
    text: str, deciphered: Callable[[str], Iterable[tuple[str, str]]] = lambda text: ()
) -> Iterator[tuple[str, str]]:
    """(how, reading): the text itself, then its decodings and the decodings of these; at most 32 in all.

    `deciphered` gives readings of a text in addition to decodings.py.
    """
    seen = {text}
    level = [("", text)]
    yield "", text
    for _ in range(_DEEPEST):
        found: list[tuple[str, str]] = []
        for how, reading in level:
            for name, further in (*decodings(reading), *deciphered(reading)):
                if further not in seen and len(further) <= 2 * len(text) + 64 and len(seen) < _READINGS:
                    seen.add(further)
                    found.append((f"{how}, {name}".removeprefix(", "), further))
                    yield found[-1]
        level = found


class Disguises:
    """Finds queries that are disguised in other texts."""

    def __init__(self, queries: Iterable[str], scattered: int = 0):
        """Queries of at least `scattered` words are also found with other words in between; 0 turns this off."""
        queries = sorted(set(queries))
        self._whole: set[str] = set()
        self._unfilled: set[str] = set()
        self._rotated: dict[str, set[str]] = {}
        self._starts: dict[str, set[str]] = {}
        self._spellings: dict[str, set[str]] = {}  # query in one letter for all that look alike → in its own letters
        self._known: set[str] = set()
        self._backwards: set[str] = set()
        for query in queries:
            self._learn(query)
        self._representative = len(queries) >= _REPRESENTATIVE
        self._by_word: dict[str, list[list[str]]] = {}  # the rarest word of a query → its words
        if scattered:
            parts = [words(part) for query in queries for part in {query, *_paragraphs(query)}]
            often = collections.Counter(word for part in parts for word in set(part))
            for part in parts:
                if len(part) >= scattered:
                    self._by_word.setdefault(min(part, key=lambda word: (often[word], word)), []).append(part)

    def _learn(self, query: str) -> None:
        own = words(query)
        self._known.update(own)
        self._backwards.update(_same(word[::-1]) for word in own)
        if len(own) > 1:
            self._unfilled.add(_without_filler(own))
        for letters in filter(None, _orders(query)):
            self._whole.add(_same(letters))
            alphabetic = "".join(_LETTERS.findall(letters))
            self._rotated.setdefault(_rotation(alphabetic), set()).add(alphabetic[:1])
        # A single turn of a dialogue may be disguised too.
        for part in {query, *_paragraphs(query)}:
            if len(_WORD.findall(plain_letters(part))) < _FEWEST:
                continue
            for letters in _orders(part):
                same = _same(letters)
                if len(same) >= _SHORTEST:
                    self._starts.setdefault(same[:_SHORTEST], set()).add(same)
                    self._spellings.setdefault(same, set()).add(letters)

    def why(self, how: str, reading: str, text: str) -> str:
        """The disguise by which a reading of the text is or contains a query; empty where it is and contains none.

        `how` names the decodings of the reading. A query that the text contains openly is not disguised.
        """
        for piece in (reading, *_paragraphs(reading)):
            if not (own := words(piece)):
                continue
            if _same("".join(own)) in self._whole or (len(own) > 1 and self._is_rotated(piece)):
                return how or "letters that look alike, moved on or reversed"
            if self._is_whole(own):
                return how or "words around its parts"
            if any(self._is_whole(kept) for kept in self._unfamiliar_left_out(piece, own, _FEWEST - bool(how))):
                return how or "other words between its parts"
        if contained := self._contained(_same("".join(words(reading)))):
            openly = "".join(_WORD.findall(text.casefold()))
            if not all(any(spelling in openly for spelling in self._spellings[query]) for query in contained):
                return how or "letters that look alike or stand in reverse"
        return (how or "other words between its parts") if self._scattered(words(reading)) else ""

    def readings(self, text: str) -> Iterator[tuple[str, str]]:
        """(how, reading) as `readings` gives them, with the ciphers that make known words of the text's."""
        return readings(text, self._deciphered)

    def _is_whole(self, own: Sequence[str]) -> bool:
        return len(own) > 1 and (_same("".join(own)) in self._whole or _without_filler(own) in self._unfilled)

    def _unfamiliar_left_out(self, text: str, own: Sequence[str], fewest: int) -> Iterator[list[str]]:
        """The words without those that no query contains, and without clauses of mostly such words."""
        # Where few queries are known, a word that none contains may matter.
        if not self._representative or all(word in self._known for word in own):
            return
        clauses = [words(clause) for clause in _CLAUSE.split(text)]
        familiar = [word for clause in clauses if not self._is_filler(clause) for word in clause]
        yield from (kept for kept in ([word for word in own if word in self._known], familiar) if len(kept) >= fewest)

    def _is_filler(self, clause: Sequence[str]) -> bool:
        return 2 * sum(word not in self._known for word in clause) >= len(clause)

    def _scattered(self, own: Sequence[str]) -> bool:
        """Whether these words contain all words of a query in their order, most next to the one before."""
        have, pairs = set(own), set(itertools.pairwise(own))
        likely = (query for word in have for query in self._by_word.get(word, ()))
        return any(have.issuperset(query) and _in_order(query, own, pairs) for query in likely)

    def _is_rotated(self, text: str) -> bool:
        letters = "".join(_LETTERS.findall(plain_letters(text)))
        firsts = self._rotated.get(_rotation(letters), set()) if len(letters) >= 6 else set()
        return bool(firsts) and letters[:1] not in firsts

    def _contained(self, letters: str) -> set[str]:
        """The queries, as letters, that the letters contain."""
        found: set[str] = set()
        for place in range(len(letters) - _SHORTEST + 1):
            for query in self._starts.get(letters[place : place + _SHORTEST], ()):
                if letters.startswith(query, place):
                    found.add(query)
        return found

    def _deciphered(self, text: str) -> list[tuple[str, str]]:
        """(cipher, reading) for the ciphers, or spelling backwards, that turn most words into known ones."""
        lowered = plain_letters(text)
        unknown = [
            word for word in dict.fromkeys(_WORD.findall(lowered)) if len(word) > 2 and _same(word) not in self._known
        ]
        if not unknown:
            return []
        unknown = unknown[:: -(-len(unknown) // _TRIED)]
        scores: list[tuple[int, str, bool]] = [(self._score(unknown, self._backwards), "", True)]
        for name, table in _ROTATIONS.items():
            turned = [word.translate(table) for word in unknown]
            scores.append((self._score(turned, self._known), name, False))
            scores.append((self._score(turned, self._backwards), name, True))
        least = min(2, len(unknown))
        best = sorted((score for score in scores if score[0] >= least), key=lambda score: -score[0])[:_CIPHERS]
        readings = []
        for _, name, backwards in best:
            reading = lowered.translate(_ROTATIONS[name]) if name else lowered
            how = ", ".join(filter(None, (name, "backwards" if backwards else "")))
            readings.append((how, reading[::-1] if backwards else reading))
        return readings

    @staticmethod
    def _score(unknown: Sequence[str], known: set[str]) -> int:
        return sum(_same(word) in known for word in unknown)


def _same(letters: str) -> str:
    return letters.replace("rn", "m").replace("vv", "w").translate(_SAME)


def _orders(text: str) -> list[str]:
    """The letters of the text, forwards and backwards, with its words in either order."""
    order = ["".join(_WORD.findall(token)) for token in plain_letters(text).split()]
    letters, turned = "".join(order), "".join(order[::-1])
    return [letters, letters[::-1], turned, turned[::-1]]


def _without_filler(own: Sequence[str]) -> str:
    """The words without filler, joined; all of them where all are filler."""
    return "".join(word for word in own if word not in _SAME_FILLER) or "".join(own)


_SAME_FILLER = frozenset(_same(word) for word in _FILLER)


def _in_order(query: Sequence[str], own: Sequence[str], pairs: set[tuple[str, str]]) -> bool:
    together = sum(pair in pairs for pair in itertools.pairwise(query))
    words_left = iter(own)
    return together >= _NEIGHBOURS * (len(query) - 1) and all(word in words_left for word in query)


def _rotation(letters: str) -> str:
    """The letters shifted in the alphabet so that the first one is an a."""
    if not letters:
        return ""
    shift = ord(letters[0]) - ord("a")
    return letters.translate(str.maketrans(_ALPHABET, _ALPHABET[26 - shift :] + _ALPHABET[: 26 - shift]))


def _paragraphs(text: str) -> list[str]:
    pieces = [piece for piece in re.split(r"\n\s*\n", text) if piece.strip()]
    return pieces if len(pieces) > 1 else []
