"""An index of texts by their character n-grams: finds those whose cosine with a text is above a threshold.

The n-grams of the text are looked up, the rarest in the index first, until the norm of the others is a quarter of the
threshold. What those add to a cosine is at most that norm, so only texts whose sum comes near enough to the threshold
are compared. Nothing is missed, and what is frequent in all texts is not looked up. (The bound is that of Bayardo et
al. 2007, "Scaling up all pairs similarity search".)
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

NGRAMS = (3, 5)
# More than the rounding of a sum, so that no candidate is left out by it.
_ROUNDING = 1e-9


class Wordings:
    """Some texts, in the order in which they were added. May be used by several threads at once."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._numbers: list[np.ndarray] = []  # of each text: its n-grams, as increasing numbers
        self._weights: list[np.ndarray] = []  # their weights, of norm 1
        # n-gram → the places of the texts that have it, and its weights in them
        self._having: dict[int, tuple[array[int], array[float]]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._texts)

    def add(self, text: str) -> None:
        """Adds a text. It is only examined when texts are compared."""
        self._texts.append(text)

    def above(self, text: str, threshold: float) -> list[tuple[float, int]]:
        """(cosine, place) of the texts whose cosine with this one is above the threshold, the nearest first."""
        with self._lock:
            self._examine()
            if not self._numbers:
                return []
            numbers, weights = _ngrams([text])[0]
            candidates = self._candidates(numbers, weights, threshold)
            if not candidates:
                return []
            cosines = self._cosines(numbers, weights, candidates)
        order = np.lexsort((np.asarray(candidates), -cosines))
        return [(float(cosines[i]), candidates[i]) for i in order if cosines[i] > threshold]

    def _examine(self) -> None:
        """Takes the texts into the index that were added since the last call."""
        for place, (numbers, weights) in enumerate(_ngrams(self._texts[len(self._numbers) :]), len(self._numbers)):
            self._numbers.append(numbers)
            self._weights.append(weights)
            for number, weight in zip(numbers.tolist(), weights.tolist(), strict=True):
                places, theirs = self._having.setdefault(number, (array("i"), array("d")))
                places.append(place)
                theirs.append(weight)

    def _candidates(self, numbers: np.ndarray, weights: np.ndarray, threshold: float) -> list[int]:
        """The places of all texts whose cosine may be above the threshold, in order."""
        empty = array("i"), array("d")
        having = [self._having.get(number, empty) for number in numbers.tolist()]
        frequent = sorted(range(len(having)), key=lambda i: -len(having[i][0]))
        norms = np.sqrt(np.cumsum(np.square(weights[frequent])))
        left_out = int(np.searchsorted(norms, threshold / 4, side="right"))
        sums = np.zeros(len(self._numbers))
        for i in frequent[left_out:]:
            places, theirs = having[i]
            sums[np.frombuffer(places, np.int32)] += weights[i] * np.frombuffer(theirs, np.float64)
        most = float(norms[left_out - 1]) if left_out else 0.0
        return np.flatnonzero((sums > 0) & (sums > threshold - most - _ROUNDING)).tolist()

    def _cosines(self, numbers: np.ndarray, weights: np.ndarray, candidates: Sequence[int]) -> np.ndarray:
        """The cosines with these texts, of which each has an n-gram of this one."""
        theirs = [self._numbers[place] for place in candidates]
        all_numbers = np.concatenate(theirs)
        found = np.minimum(np.searchsorted(numbers, all_numbers), len(numbers) - 1)
        products = np.where(numbers[found] == all_numbers, weights[found], 0.0)
        products *= np.concatenate([self._weights[place] for place in candidates])
        return np.add.reduceat(products, np.cumsum([0, *map(len, theirs[:-1])]))


def _ngrams(texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
    """The n-grams of each text as increasing numbers, and how often it has each, as a vector of norm 1."""
    if not texts:
        return []
    # The import takes a second, and only some runs compare texts.
    from sklearn.feature_extraction.text import HashingVectorizer

    vectorizer = HashingVectorizer(analyzer="char_wb", ngram_range=NGRAMS, alternate_sign=False, lowercase=False)
    matrix: Any = vectorizer.transform(texts)
    matrix.sort_indices()
    rows = zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True)
    return [(matrix.indices[start:end].copy(), matrix.data[start:end].copy()) for start, end in rows]
