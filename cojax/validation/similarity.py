"""How alike two queries are worded: cosines of character n-grams, which neither punctuation nor inserted words hide.

N-grams do not know the order of words, "move report to taxes" from "move taxes to report": duplicates in the pool must
agree in the order of their words as well, or in what is done.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from cojax.types import Task, canonical, content_hash, normalise, to_json

_NGRAMS = (3, 5)
# Parts of a query, one to a paragraph, are compared by themselves from that many characters on.
_PARAGRAPH = 40
# Of a query in the pool so many characters are compared; validation allows far fewer.
_COMPARED = 20_000


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


class NearDuplicates:
    """Queries by the setup they are asked on: what is worded alike elsewhere may be another task.

    `threshold` is the cosine above which two queries on one setup count as the same; 0 compares nothing. They are the
    same task if their calls are the same, in any order; or if their pairs of neighbouring words are alike by the
    threshold too, unless their calls give the same values to other arguments.
    """

    def __init__(self, threshold: float, elder: NearDuplicates | None = None):
        """What `elder` knows, this one knows as well."""
        self.threshold, self.elder = threshold, elder
        self._queries: dict[str, dict[str, _Known]] = {}  # setup → task id → what is known of it
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
            self._queries.setdefault(_where(task), {})[task.id] = _Known.of(task)

    def fork(self) -> NearDuplicates:
        """A copy that follows this one, whose own additions this one does not see."""
        return NearDuplicates(self.threshold, self)

    def why(self, task: Task) -> str:
        """Which task is worded alike, in one line; empty where none is."""
        known = self._known(_where(task)) if self.threshold else []
        if not known:
            return ""
        this = _Known.of(task)
        cosines = _cosines(this.query, [other.query for _, other in known])
        for place in sorted(range(len(known)), key=lambda place: -cosines[place]):
            id, other = known[place]
            if cosines[place] <= self.threshold:
                break
            if this.done == other.done or (this.order(other) > self.threshold and not this.permutes(other)):
                return f"near duplicate of task {id}: similarity {cosines[place]:.2f}, above {self.threshold:g}"
        return ""

    def _known(self, where: str) -> list[tuple[str, _Known]]:
        """Ids of the tasks on this setup, and what is known of them."""
        older = self.elder._known(where) if self.elder is not None else []
        return [*older, *self._queries.get(where, {}).items()]


@dataclasses.dataclass(frozen=True)
class _Known:
    """A query, normalised; the actions that answer it, in no order; and the values that their calls pass on."""

    query: str
    done: tuple[str, ...]
    values: tuple[str, ...]

    @classmethod
    def of(cls, task: Task) -> _Known:
        calls = [call for action in task.solution for call in action.calls]
        texts = [normalise(action.text) for action in task.solution if not action.calls and action.text.strip()]
        values = [canonical(to_json(value)) for call in calls for value in call.arguments.values()]
        done = [canonical([call.name, to_json(call.arguments)]) for call in calls]
        # Half a surrogate pair is no text that can be compared; validation refuses it later.
        query = normalise(task.query[:_COMPARED].encode("utf-8", "replace").decode())
        return cls(query, tuple(sorted(done + texts)), tuple(sorted(values)))

    def order(self, other: _Known) -> float:
        """The cosine of their pairs of neighbouring words; 1 where neither has two words."""
        ours, theirs = self._pairs(), other._pairs()
        if not ours and not theirs:
            return 1.0
        shared = sum(count * theirs[pair] for pair, count in ours.items())
        norm = math.sqrt(sum(n * n for n in ours.values()) * sum(n * n for n in theirs.values()))
        return shared / norm if norm else 0.0

    def permutes(self, other: _Known) -> bool:
        """Whether the same values are passed on as other arguments, or to other calls."""
        return self.done != other.done and self.values == other.values and len(set(self.values)) > 1

    def _pairs(self) -> Counter[tuple[str, str]]:
        return Counter(itertools.pairwise(re.findall(r"\w+", self.query)))


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
