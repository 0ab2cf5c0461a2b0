"""How alike two queries are worded: cosines of character n-grams, which neither punctuation nor inserted words hide."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

from cojax.types import Task, content_hash, normalise

_NGRAMS = (3, 5)
# Parts of a query, one to a paragraph, are compared by themselves from that many characters on.
_PARAGRAPH = 40


class Nearest:
    """Finds the text nearest to another one by TF-IDF, weighted as these texts are.

    Whole texts and their paragraphs are compared, so that one turn of a dialogue is found in another dialogue.
    """

    def __init__(self, texts: Iterable[str]):
        self.texts = [(part, text) for text in texts for part in paragraphs(text)]

    @functools.cached_property
    def _fitted(self) -> tuple[Any, Any]:
        # Takes a second to import, and only some runs compare.
        from sklearn.feature_extraction.text import TfidfVectorizer

        vectorizer = TfidfVectorizer(analyzer="char_wb", ngram_range=_NGRAMS, sublinear_tf=True, lowercase=False)
        return vectorizer, vectorizer.fit_transform([part for part, _ in self.texts])

    def to(self, text: str) -> tuple[float, str]:
        """The greatest cosine, in [0, 1], and the text it belongs to; 0 where there is nothing to compare."""
        if not any(part.strip() for part, _ in self.texts):
            return 0.0, ""
        vectorizer, known = self._fitted
        cosines = (vectorizer.transform(paragraphs(text)) @ known.T).toarray().max(axis=0)
        best = int(cosines.argmax())
        return min(1.0, float(cosines[best])), self.texts[best][1]


class Kin:
    """Queries by the setup they are asked on: what is worded alike elsewhere may be another task.

    `threshold` is the cosine above which two queries on one setup count as the same; 0 compares nothing.
    """

    def __init__(self, threshold: float, elder: Kin | None = None):
        """What `elder` knows, this one knows as well."""
        self.threshold, self.elder = threshold, elder
        self._queries: dict[str, dict[str, str]] = {}  # setup → task id → query
        self._seen = 0

    def update(self, pool: Iterable[Task]) -> None:
        """Learns the tasks that a pool holds beyond those it held the last time."""
        if self.threshold:
            for place, task in enumerate(pool):
                if place >= self._seen:
                    self.add(task)
                    self._seen = place + 1

    def add(self, task: Task) -> None:
        if self.threshold:
            self._queries.setdefault(_where(task), {})[task.id] = normalise(task.query)

    def beside(self) -> Kin:
        """Another one that knows what this one knows, and learns for itself alone."""
        return Kin(self.threshold, self)

    def why(self, task: Task) -> str:
        """Which task is worded alike, in one line; empty where none is."""
        known = self._known(_where(task)) if self.threshold else []
        if not known:
            return ""
        cosines = _cosines(normalise(task.query), [query for _, query in known])
        best = max(range(len(known)), key=lambda place: cosines[place])
        if cosines[best] <= self.threshold:
            return ""
        return f"near duplicate of task {known[best][0]}: similarity {cosines[best]:.2f}, above {self.threshold:g}"

    def _known(self, where: str) -> list[tuple[str, str]]:
        """Ids and queries of the tasks on this setup."""
        older = self.elder._known(where) if self.elder is not None else []
        return [*older, *self._queries.get(where, {}).items()]


def paragraphs(text: str) -> list[str]:
    """The normalised text, and each of its paragraphs that is long enough to be told by itself."""
    pieces = [normalise(piece) for piece in text.split("\n\n")]
    return [normalise(text), *(piece for piece in pieces if len(pieces) > 1 and len(piece) >= _PARAGRAPH)]


def _where(task: Task) -> str:
    return content_hash([task.environment, task.setup])


def _cosines(text: str, others: Sequence[str]) -> list[float]:
    from sklearn.feature_extraction.text import HashingVectorizer

    vectorizer = HashingVectorizer(analyzer="char_wb", ngram_range=_NGRAMS, alternate_sign=False, lowercase=False)
    return (vectorizer.transform(others) @ vectorizer.transform([text]).T).toarray().ravel().tolist()
