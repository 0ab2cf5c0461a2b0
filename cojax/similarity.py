"""Similarity of wording between queries, by cosines of character n-grams, and near duplicates in the pool.

Inserted words and punctuation change these cosines little. But n-grams ignore the order of words: "move report to
taxes" and "move taxes to report" are alike. So near duplicates must also agree in the order of their words or in
their calls.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
import threading
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from cojax.drafts import MOST_CHARACTERS, flaw, oversize
from cojax.pool import TaskPool
from cojax.types import Task, TaskDraft, canonical, content_hash, normalise, setup_hash, to_json

NGRAMS = (3, 5)
# More than the rounding error of a sum, so that it drops no candidate.
_ROUNDING = 1e-9
# Fewest characters of a paragraph that is compared by itself.
_PARAGRAPH = 40
# Most characters of a query in the pool that are compared; validation allows far fewer.
_COMPARED = 20_000
# Most texts whose similarity to one another is measured.
_MEASURED = 1_000


def nearest(texts: Iterable[str]) -> Callable[[str], tuple[float, str]]:
    """A function from a text to its greatest cosine with any of `texts`, in [0, 1], and the text that has it.

    Without texts it returns 0 and "". Whole texts and their paragraphs are compared, so that a turn of one dialogue is
    found in another. Weights are TF-IDF, fitted to these texts at the first call.
    """
    entries = [(part, text) for text in texts for part in paragraphs(text)]
    fit = functools.cache(lambda: _fit_weights([part for part, _ in entries]))

    def find(text: str) -> tuple[float, str]:
        if not any(part.strip() for part, _ in entries):
            return 0.0, ""
        vectorizer, weights = fit()
        cosines = (vectorizer.transform(paragraphs(text)) @ weights.T).toarray().max(axis=0)
        best = int(cosines.argmax())
        return min(1.0, float(cosines[best])), entries[best][1]

    return find


def _fit_weights(texts: Sequence[str]) -> tuple[Any, Any]:
    """A vectorizer of TF-IDF weights that is fitted to these texts, and the weights of the texts."""
    # The import takes a second, and only some runs compare texts.
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(analyzer="char_wb", ngram_range=NGRAMS, sublinear_tf=True, lowercase=False)
    return vectorizer, vectorizer.fit_transform(texts)


def usual_similarity(texts: Iterable[str], percent: float = 99.0) -> float:
    """The percentile of the cosines between every two different texts; 0 for fewer than two.

    Weights are fitted to the texts, as for `nearest`. Of more than 1,000 texts, only 1,000 are compared.
    """
    sample = sorted({normalise(text) for text in texts}, key=content_hash)[:_MEASURED]
    if len(sample) < 2:
        return 0.0
    vectorizer, _ = _fit_weights([part for text in sample for part in paragraphs(text)])
    rows = vectorizer.transform(sample)
    cosines = (rows @ rows.T).toarray()[np.triu_indices(len(sample), 1)]
    return min(1.0, float(np.percentile(cosines, percent)))


class NearDuplicates:
    """Finds tasks on the same setup whose queries are alike; on other setups the same words may be another task.

    Two queries are alike if their cosine is above `threshold`; 0 compares nothing. They are near duplicates if their
    calls are the same as well, in any order. They also are if the cosine of their pairs of neighbouring words is above
    the threshold too, and the calls do not merely exchange the same values between arguments.
    """

    def __init__(self, threshold: float, parent: NearDuplicates | None = None):
        """The tasks of `parent` are compared as well."""
        self.threshold, self.parent = threshold, parent
        # Setup → the queries of its tasks, and the index of these in the same order.
        self._on_setup: dict[str, tuple[list[_Query], Wordings]] = {}
        self._ids: set[str] = set()
        self._seen = 0

    def update(self, pool: TaskPool) -> None:
        """Adds the tasks that joined a pool since the last call."""
        for task in pool.since(self._seen):
            self.add(task)
        self._seen = max(self._seen, len(pool))

    def add(self, task: Task) -> None:
        if self.threshold and task.id not in self._ids:
            self._ids.add(task.id)
            queries, wordings = self._on_setup.setdefault(setup_hash(task), ([], Wordings()))
            queries.append(_query(task))
            wordings.add(queries[-1][1])

    def fork(self) -> NearDuplicates:
        """A copy that sees the additions to this one, which does not see those to the copy."""
        return NearDuplicates(self.threshold, self)

    def why(self, task: Task) -> str:
        """One line that names the near duplicate of a task; empty if there is none."""
        indexes = self._indexes_on(setup_hash(task)) if self.threshold else []
        if not indexes:
            return ""
        _, query, calls, values = _query(task)
        # The tasks of the parent came first.
        alike = [
            (-cosine, number, place)
            for number, (_, wordings) in enumerate(indexes)
            for cosine, place in wordings.above(query, self.threshold)
        ]
        for cosine, number, place in sorted(alike):
            task_id, other, its_calls, its_values = indexes[number][0][place]
            # The calls may differ only by which argument or call each value goes to.
            is_permuted = values == its_values and len(set(values)) > 1
            if calls == its_calls or (not is_permuted and _order(query, other) > self.threshold):
                return f"near duplicate of task {task_id}: similarity {-cosine:.2f}, above {self.threshold:g}"
        return ""

    def why_draft(self, draft: TaskDraft, in_pool: Callable[[str], bool]) -> str:
        """As `why` of the task that a draft would become; empty also for one that is `in_pool` or malformed.

        Validation refuses malformed drafts later. They may be too long to compare.
        """
        if draft.objections or flaw(draft.query, MOST_CHARACTERS) or oversize(draft.solution):
            return ""
        task = Task(draft.environment, draft.query, draft.setup, draft.solution)
        return "" if in_pool(task.id) else self.why(task)

    def _indexes_on(self, setup: str) -> list[tuple[list[_Query], Wordings]]:
        """The tasks on this setup, those of the parent first."""
        parent_indexes = self.parent._indexes_on(setup) if self.parent is not None else []
        return [*parent_indexes, self._on_setup[setup]] if setup in self._on_setup else parent_indexes


# A task's id and its query, normalised; the calls and texts of its solution, sorted; their values, sorted.
_Query = tuple[str, str, list[str], list[str]]


def _query(task: Task) -> _Query:
    calls = [call for action in task.solution for call in action.calls]
    texts = [normalise(action.text) for action in task.solution if not action.calls and action.text.strip()]
    values = [canonical(to_json(value)) for call in calls for value in call.arguments.values()]
    call_texts = [canonical([call.name, to_json(call.arguments)]) for call in calls]
    # Half a surrogate pair cannot be compared; validation refuses it later.
    query = normalise(task.query[:_COMPARED].encode("utf-8", "replace").decode())
    return task.id, query, sorted(call_texts + texts), sorted(values)


def _order(one: str, other: str) -> float:
    """The cosine of the pairs of neighbouring words of two queries; 1 if neither has two words."""
    pairs, other_pairs = (Counter(itertools.pairwise(re.findall(r"\w+", query))) for query in (one, other))
    if not pairs and not other_pairs:
        return 1.0
    product = sum(count * other_pairs[pair] for pair, count in pairs.items())
    norm = math.sqrt(sum(n * n for n in pairs.values()) * sum(n * n for n in other_pairs.values()))
    return product / norm if norm else 0.0


def paragraphs(text: str) -> list[str]:
    """The normalised text, and each of its paragraphs that is long enough to be compared by itself."""
    pieces = [normalise(piece) for piece in text.split("\n\n")]
    return [normalise(text), *(piece for piece in pieces if len(pieces) > 1 and len(piece) >= _PARAGRAPH)]


class Wordings:
    """An index of texts by their character n-grams: finds those whose cosine with a text is above a threshold.

    The n-grams of the text are looked up, the rarest in the index first, until the norm of the others is a quarter of
    the threshold. These others add at most that norm to a cosine, so only texts whose sum comes near enough to the
    threshold are compared. Nothing is missed, and n-grams that are frequent in all texts are not looked up. (The bound
    is that of Bayardo et al. 2007, "Scaling up all pairs similarity search".) Several threads may use it at once.
    """

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._numbers: list[np.ndarray] = []  # of each text: its n-grams, as increasing numbers
        self._weights: list[np.ndarray] = []  # their weights, of norm 1
        # n-gram → the places of the texts that have it, and its weights in them
        self._postings: dict[int, tuple[array[int], array[float]]] = {}
        self._lock = threading.Lock()

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
        """Indexes the texts that were added since the last call."""
        for place, (numbers, weights) in enumerate(_ngrams(self._texts[len(self._numbers) :]), len(self._numbers)):
            self._numbers.append(numbers)
            self._weights.append(weights)
            for number, weight in zip(numbers.tolist(), weights.tolist(), strict=True):
                places, place_weights = self._postings.setdefault(number, (array("i"), array("d")))
                places.append(place)
                place_weights.append(weight)

    def _candidates(self, numbers: np.ndarray, weights: np.ndarray, threshold: float) -> list[int]:
        """The places of all texts whose cosine may be above the threshold, in order."""
        empty = array("i"), array("d")
        postings = [self._postings.get(number, empty) for number in numbers.tolist()]
        frequent = sorted(range(len(postings)), key=lambda i: -len(postings[i][0]))
        norms = np.sqrt(np.cumsum(np.square(weights[frequent])))
        skip_count = int(np.searchsorted(norms, threshold / 4, side="right"))
        sums = np.zeros(len(self._numbers))
        for i in frequent[skip_count:]:
            places, place_weights = postings[i]
            sums[np.frombuffer(places, np.int32)] += weights[i] * np.frombuffer(place_weights, np.float64)
        bound = float(norms[skip_count - 1]) if skip_count else 0.0
        return np.flatnonzero((sums > 0) & (sums > threshold - bound - _ROUNDING)).tolist()

    def _cosines(self, numbers: np.ndarray, weights: np.ndarray, candidates: Sequence[int]) -> np.ndarray:
        """The cosines with these texts, each of which shares an n-gram with this one."""
        candidate_numbers = [self._numbers[place] for place in candidates]
        all_numbers = np.concatenate(candidate_numbers)
        positions = np.minimum(np.searchsorted(numbers, all_numbers), len(numbers) - 1)
        products = np.where(numbers[positions] == all_numbers, weights[positions], 0.0)
        products *= np.concatenate([self._weights[place] for place in candidates])
        return np.add.reduceat(products, np.cumsum([0, *map(len, candidate_numbers[:-1])]))


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
