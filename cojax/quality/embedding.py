"""What an embedding is, and the one that needs no model: hashed n-grams of words and of characters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from cojax.quality.measures import Floats, unit
from cojax.types import normalise

Embed = Callable[[Sequence[str]], Floats]  # texts → float[N, D]; raises EmbeddingError

_DIMENSIONS = 1024  # of each half
# Characters of a text that are read: the n-grams of more would only take time.
_LONGEST = 20_000


class EmbeddingError(RuntimeError):
    """Texts could not be embedded; the message says why and what to do."""


class EmbeddingCache(Protocol):
    """Where records are kept for good, such as a `Log` of cojax/storage/files.py."""

    def append(self, records: Iterable[Mapping[str, Any]]) -> int: ...

    def read(self) -> Iterator[dict[str, Any]]: ...


class HashedNgrams:
    """Texts → float32[N, 2048] at unit length, the same on every machine; no model file.

    One half counts words and pairs of words, the other 3 to 5 characters within a word, each at unit length, hashed
    with signs, so that collisions add noise of about 0.02 to a cosine and no bias. It compares wording, not meaning.
    """

    def __init__(self) -> None:
        self._known: dict[str, Floats] = {}  # of the last call, most of whose texts come again

    def __call__(self, texts: Sequence[str]) -> Floats:
        fresh = [text for text in dict.fromkeys(texts) if text not in self._known]
        known = {**self._known, **dict(zip(fresh, self._made(fresh), strict=True))} if fresh else self._known
        self._known = {text: known[text] for text in texts}
        if not texts:
            return np.zeros((0, 2 * _DIMENSIONS), np.float32)
        return np.stack([known[text] for text in texts])

    def _made(self, texts: Sequence[str]) -> Floats:
        # Takes a second to import, and most that imports this file embeds nothing.
        from sklearn.feature_extraction.text import HashingVectorizer

        shared: dict[str, Any] = {"n_features": _DIMENSIONS, "lowercase": False, "dtype": np.float32}
        words = HashingVectorizer(token_pattern=r"\w+", ngram_range=(1, 2), **shared)
        characters = HashingVectorizer(analyzer="char_wb", ngram_range=(3, 5), **shared)
        normalised = [normalise(text[:_LONGEST]) for text in texts]
        return unit(np.hstack([half.transform(normalised).toarray() for half in (words, characters)]))
