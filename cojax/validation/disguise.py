"""Recognises evaluation queries in disguise: letters that look alike, ciphers, encodings, reversals, parts."""

from __future__ import annotations

import collections
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

from cojax.validation.confusables import plain
from cojax.validation.decodings import decoded

# A decoding within a decoding within a decoding, and no further; and so many readings of one text.
_DEEPEST = 3
_READINGS = 32
# A query inside what is decoded is recognised from so many words and letters on.
_FEWEST = 3
_SHORTEST = 12
# From so many queries on, words that none of them says are filler.
_REPRESENTATIVE = 100
# Of a query with other words between its parts, the share of words that still stand beside the next.
_BESIDE = 0.6
# Words of a text that are tried as ciphers.
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
# Digits that stand for letters, and letters that cannot be told apart, as one letter.
_SAME = str.maketrans("0123456789i", "olzeasgtbql")
# Marks that stand for letters; these two only where a word stands beside them, or goes on.
_MARKS = str.maketrans("@$€£¢|", "aselcl")
_PLUS = re.compile(r"(?<=\w)\+|\+(?=\w)")
_BANG = re.compile(r"(?<=\w)!(?=\w)|(?<!\S)!(?=\w)")
_WORD = re.compile(r"[^\W_]+")
_LETTERS = re.compile(r"[a-z]")
_CLAUSE = re.compile(r"[.,;:!?…()\[\]\"“”\n]|\s[-–—]\s")
# Said around parts of a request without being part of it.
_AROUND = """
a an and the then next now finally also please kindly hey hi hello thanks ok okay so well
part parts piece pieces turn continue continued join together combine
"""
_FILLER = frozenset(_AROUND.split())


def spelled(text: str) -> str:
    """The text in plain small letters, marks that stand for letters among them."""
    lowered = plain(text.translate(_MARKS)).lower()
    return _BANG.sub("l", _PLUS.sub("t", lowered)) if "+" in lowered or "!" in lowered else lowered


def words(text: str) -> list[str]:
    """Its words, with letters that cannot be told apart as one letter."""
    return _WORD.findall(_same(spelled(text)))


class Disguises:
    """Finds queries in what other texts say once they are decoded."""

    def __init__(self, queries: Iterable[str], scattered: int = 0):
        """Queries of at least `scattered` words are found with other words in between as well; 0: none are."""
        queries = sorted(set(queries))
        self._whole: set[str] = set()
        self._unfilled: set[str] = set()
        self._rotated: dict[str, set[str]] = {}
        self._starts: dict[str, set[str]] = {}
        self._spoken: dict[str, set[str]] = {}  # as letters that look alike → as it is written
        self._known: set[str] = set()
        self._backwards: set[str] = set()
        for query in queries:
            self._learn(query)
        self._told = len(queries) >= _REPRESENTATIVE
        self._by_word: dict[str, list[list[str]]] = {}  # the rarest word of a query → its words
        if scattered:
            parts = [words(part) for query in queries for part in {query, *_paragraphs(query)}]
            often = collections.Counter(word for part in parts for word in set(part))
            for part in parts:
                if len(part) >= scattered:
                    self._by_word.setdefault(min(part, key=lambda word: (often[word], word)), []).append(part)

    def _learn(self, query: str) -> None:
        said = words(query)
        self._known.update(said)
        self._backwards.update(_same(word[::-1]) for word in said)
        if len(said) > 1:
            self._unfilled.add(_essence(said))
        for letters in filter(None, _orders(query)):
            self._whole.add(_same(letters))
            alphabetic = "".join(_LETTERS.findall(letters))
            self._rotated.setdefault(_rotation(alphabetic), set()).add(alphabetic[:1])
        # A turn of a dialogue hides as well as the whole.
        for part in {query, *_paragraphs(query)}:
            if len(_WORD.findall(spelled(part))) < _FEWEST:
                continue
            for letters in _orders(part):
                same = _same(letters)
                if len(same) >= _SHORTEST:
                    self._starts.setdefault(same[:_SHORTEST], set()).add(same)
                    self._spoken.setdefault(same, set()).add(letters)

    def why(self, how: str, reading: str, text: str) -> str:
        """By which disguise this reading of the text is one of the queries or holds one; empty where it does not.

        What the text holds openly is not in disguise.
        """
        for piece in (reading, *_paragraphs(reading)):
            if not (said := words(piece)):
                continue
            if _same("".join(said)) in self._whole or (len(said) > 1 and self._is_rotated(piece)):
                return how or "letters that look alike, moved on or reversed"
            if self._is_whole(said):
                return how or "words around its parts"
            if any(self._is_whole(kept) for kept in self._unfamiliar_left_out(piece, said, _FEWEST - bool(how))):
                return how or "other words between its parts"
        if held := self._held(_same("".join(words(reading)))):
            openly = "".join(_WORD.findall(text.casefold()))
            if not all(any(spoken in openly for spoken in self._spoken[query]) for query in held):
                return how or "letters that look alike or stand in reverse"
        return (how or "other words between its parts") if self._scattered(words(reading)) else ""

    def readings(self, text: str) -> Iterator[tuple[str, str]]:
        """(how, reading) of the text: itself, and what it says by decodings within decodings; at most 32."""
        seen = {text}
        level = [("", text)]
        yield "", text
        for _ in range(_DEEPEST):
            found: list[tuple[str, str]] = []
            for how, reading in level:
                for name, further in (*decoded(reading), *self._deciphered(reading)):
                    if further not in seen and len(further) <= 2 * len(text) + 64 and len(seen) < _READINGS:
                        seen.add(further)
                        found.append((f"{how}, {name}".removeprefix(", "), further))
                        yield found[-1]
            level = found

    def _is_whole(self, said: Sequence[str]) -> bool:
        return len(said) > 1 and (_same("".join(said)) in self._whole or _essence(said) in self._unfilled)

    def _unfamiliar_left_out(self, text: str, said: Sequence[str], fewest: int) -> Iterator[list[str]]:
        """Its words without those that no query says, and without the clauses that have many such words."""
        # Where few queries are known, a word that none says may be what is asked for.
        if not self._told or all(word in self._known for word in said):
            return
        clauses = [words(clause) for clause in _CLAUSE.split(text)]
        familiar = [word for clause in clauses if not self._is_talk(clause) for word in clause]
        yield from (kept for kept in ([word for word in said if word in self._known], familiar) if len(kept) >= fewest)

    def _is_talk(self, clause: Sequence[str]) -> bool:
        return 2 * sum(word not in self._known for word in clause) >= len(clause)

    def _scattered(self, said: Sequence[str]) -> bool:
        """Whether all words of a query stand in these words in their order, most of them beside the one before."""
        have, pairs = set(said), set(itertools.pairwise(said))
        likely = (query for word in have for query in self._by_word.get(word, ()))
        return any(have.issuperset(query) and _in_order(query, said, pairs) for query in likely)

    def _is_rotated(self, text: str) -> bool:
        letters = "".join(_LETTERS.findall(spelled(text)))
        firsts = self._rotated.get(_rotation(letters), set()) if len(letters) >= 6 else set()
        return bool(firsts) and letters[:1] not in firsts

    def _held(self, letters: str) -> set[str]:
        """Those queries, as letters, that stand in the letters."""
        found: set[str] = set()
        for place in range(len(letters) - _SHORTEST + 1):
            for query in self._starts.get(letters[place : place + _SHORTEST], ()):
                if letters.startswith(query, place):
                    found.add(query)
        return found

    def _deciphered(self, text: str) -> list[tuple[str, str]]:
        """What it says with other letters or backwards, by the ciphers under which most of its words are known."""
        lowered = spelled(text)
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
    """The letters of the text forwards and backwards, word by word in either order."""
    order = ["".join(_WORD.findall(token)) for token in spelled(text).split()]
    letters, turned = "".join(order), "".join(order[::-1])
    return [letters, letters[::-1], turned, turned[::-1]]


def _essence(said: Sequence[str]) -> str:
    """The words less what is said around parts; all of them where that is all."""
    return "".join(word for word in said if word not in _SAME_FILLER) or "".join(said)


_SAME_FILLER = frozenset(_same(word) for word in _FILLER)


def _in_order(query: Sequence[str], said: Sequence[str], pairs: set[tuple[str, str]]) -> bool:
    beside = sum(pair in pairs for pair in itertools.pairwise(query))
    words_left = iter(said)
    return beside >= _BESIDE * (len(query) - 1) and all(word in words_left for word in query)


def _rotation(letters: str) -> str:
    """The letters moved on in the alphabet until the first one is an a."""
    if not letters:
        return ""
    shift = ord(letters[0]) - ord("a")
    return letters.translate(str.maketrans(_ALPHABET, _ALPHABET[26 - shift :] + _ALPHABET[: 26 - shift]))


def _paragraphs(text: str) -> list[str]:
    pieces = [piece for piece in re.split(r"\n\s*\n", text) if piece.strip()]
    return pieces if len(pieces) > 1 else []
