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

from cojax.drafts import MAX_QUERY_CHARACTERS, find_excess, find_flaw
from cojax.pool import TaskPool
from cojax.types import Task, TaskDraft, canonical, content_hash, normalise, setup_hash, to_json

NGRAM_LENGTHS = (3, 5)
# More than the rounding error of a sum, so that it drops no candidate.
_ROUNDING_ERROR = 1e-9
# Fewest characters of a paragraph that is compared by itself.
_MIN_PARAGRAPH_LENGTH = 40
# Most characters of a query in the pool that are compared; validation allows far fewer.
_MAX_COMPARED_CHARACTERS = 20_000
# Most texts whose similarity to one another is measured.
_MAX_MEASURED_TEXTS = 1_000


def make_nearest(texts: Iterable[str]) -> Callable[[str], tuple[float, str]]:
    """A function from a text to its greatest cosine with any of `texts`, in [0, 1], and the text that has it.

    Without texts it returns 0 and "". Whole texts and their paragraphs are compared, so that a turn of one dialogue is
    found in another. Weights are TF-IDF, fitted to these texts at the first call.
    """
    paragraph_entries = [(paragraph, text) for text in texts for paragraph in split_paragraphs(text)]
    fit_weights = functools.cache(lambda: _fit_weights([paragraph for paragraph, _ in paragraph_entries]))

    def find_nearest(text: str) -> tuple[float, str]:
        if not any(paragraph.strip() for paragraph, _ in paragraph_entries):
            return 0.0, ""
        vectorizer, weights = fit_weights()
        cosines = (vectorizer.transform(split_paragraphs(text)) @ weights.T).toarray().max(axis=0)
        best_index = int(cosines.argmax())
        return min(1.0, float(cosines[best_index])), paragraph_entries[best_index][1]

    return find_nearest


def _fit_weights(texts: Sequence[str]) -> tuple[Any, Any]:
    """A vectorizer of TF-IDF weights that is fitted to these texts, and the weights of the texts."""
    # The import takes a second, and only some runs compare texts.
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(analyzer="char_wb", ngram_range=NGRAM_LENGTHS, sublinear_tf=True, lowercase=False)
    return vectorizer, vectorizer.fit_transform(texts)


def measure_usual_similarity(texts: Iterable[str], percent: float = 99.0) -> float:
    """The percentile of the cosines between every two different texts; 0 for fewer than two.

    Weights are fitted to the texts, as for `make_nearest`. Of more than 1,000 texts, only 1,000 are compared.
    """
    sample = sorted({normalise(text) for text in texts}, key=content_hash)[:_MAX_MEASURED_TEXTS]
    if len(sample) < 2:
        return 0.0
    vectorizer, _ = _fit_weights([paragraph for text in sample for paragraph in split_paragraphs(text)])
    weights = vectorizer.transform(sample)
    cosines = (weights @ weights.T).toarray()[np.triu_indices(len(sample), 1)]
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
        self._index_by_setup: dict[str, tuple[list[_Query], Wordings]] = {}
        self._task_ids: set[str] = set()
        self._seen_count = 0

    def update(self, pool: TaskPool) -> None:
        """Adds the tasks that joined a pool since the last call."""
        for task in pool.since(self._seen_count):
            self.add(task)
        self._seen_count = max(self._seen_count, len(pool))

    def add(self, task: Task) -> None:
        if self.threshold and task.id not in self._task_ids:
            self._task_ids.add(task.id)
            queries, wordings = self._index_by_setup.setdefault(setup_hash(task), ([], Wordings()))
            queries.append(_build_query(task))
            wordings.add(queries[-1][1])

    def fork(self) -> NearDuplicates:
        """A copy that sees the additions to this one, which does not see those to the copy."""
        return NearDuplicates(self.threshold, self)

    def find_duplicate(self, task: Task) -> str:
        """One line that names the near duplicate of a task; empty if there is none."""
        indexes = self._list_indexes(setup_hash(task)) if self.threshold else []
        if not indexes:
            return ""
        _, query, calls, value_texts = _build_query(task)
        # The tasks of the parent came first.
        ranked_matches = [
            (-cosine, index_number, position)
            for index_number, (_, wordings) in enumerate(indexes)
            for cosine, position in wordings.find_above(query, self.threshold)
        ]
        for cosine, index_number, position in sorted(ranked_matches):
            task_id, other_query, other_calls, other_values = indexes[index_number][0][position]
            # The calls may differ only by which argument or call each value goes to.
            is_permuted = value_texts == other_values and len(set(value_texts)) > 1
            if calls == other_calls or (not is_permuted and _compare_word_order(query, other_query) > self.threshold):
                return f"near duplicate of task {task_id}: similarity {-cosine:.2f}, above {self.threshold:g}"
        return ""

    def find_draft_duplicate(self, draft: TaskDraft, is_in_pool: Callable[[str], bool]) -> str:
        """As `find_duplicate` of the task that a draft would become; empty too if it `is_in_pool` or is malformed.

        Validation refuses malformed drafts later. They may be too long to compare.
        """
        if draft.objections or find_flaw(draft.query, MAX_QUERY_CHARACTERS) or find_excess(draft.solution):
            return ""
        task = Task(draft.environment, draft.query, draft.setup, draft.solution)
        return "" if is_in_pool(task.id) else self.find_duplicate(task)

    def _list_indexes(self, setup: str) -> list[tuple[list[_Query], Wordings]]:
        """The tasks on this setup, those of the parent first."""
        parent_indexes = self.parent._list_indexes(setup) if self.parent is not None else []
        return [*parent_indexes, self._index_by_setup[setup]] if setup in self._index_by_setup else parent_indexes


# A task's id and its query, normalised; the calls and texts of its solution, sorted; their values, sorted.
_Query = tuple[str, str, list[str], list[str]]


def _build_query(task: Task) -> _Query:
    calls = [call for action in task.solution for call in action.calls]
    reply_texts = [normalise(action.text) for action in task.solution if not action.calls and action.text.strip()]
    value_texts = [canonical(to_json(value)) for call in calls for value in call.arguments.values()]
    call_texts = [canonical([call.name, to_json(call.arguments)]) for call in calls]
    # Half a surrogate pair cannot be compared; validation refuses it later.
    query = normalise(task.query[:_MAX_COMPARED_CHARACTERS].encode("utf-8", "replace").decode())
    return task.id, query, sorted(call_texts + reply_texts), sorted(value_texts)


def _compare_word_order(query: str, other_query: str) -> float:
    """The cosine of the pairs of neighbouring words of two queries; 1 if neither has two words."""
    word_pairs, other_pairs = (Counter(itertools.pairwise(re.findall(r"\w+", text))) for text in (query, other_query))
    if not word_pairs and not other_pairs:
        return 1.0
    dot_product = sum(count * other_pairs[word_pair] for word_pair, count in word_pairs.items())
    norms_product = math.sqrt(sum(n * n for n in word_pairs.values()) * sum(n * n for n in other_pairs.values()))
    return dot_product / norms_product if norms_product else 0.0


def split_paragraphs(text: str) -> list[str]:
    """The normalised text, and each of its paragraphs that is long enough to be compared by itself."""
    parts = [normalise(part) for part in text.split("\n\n")]
    return [normalise(text), *(part for part in parts if len(parts) > 1 and len(part) >= _MIN_PARAGRAPH_LENGTH)]


class Wordings:
    """An index of texts by their character n-grams: finds those whose cosine with a text is above a threshold.

    The n-grams of the text are looked up, the rarest in the index first, until the norm of the others is a quarter of
    the threshold. These others add at most that norm to a cosine, so only texts whose sum comes near enough to the
    threshold are compared. Nothing is missed, and n-grams that are frequent in all texts are not looked up. (The bound
    is that of Bayardo et al. 2007, "Scaling up all pairs similarity search".) Several threads may use it at once.
    """

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._ngram_ids: list[np.ndarray] = []  # of each text: its n-grams, as increasing numbers
        self._ngram_weights: list[np.ndarray] = []  # their weights, of norm 1
        # n-gram → the places of the texts that have it, and its weights in them
        self._postings: dict[int, tuple[array[int], array[float]]] = {}
        self._lock = threading.Lock()

    def add(self, text: str) -> None:
        """Adds a text. It is only examined when texts are compared."""
        self._texts.append(text)

    def find_above(self, text: str, threshold: float) -> list[tuple[float, int]]:
        """(cosine, place) of the texts whose cosine with this one is above the threshold, the nearest first."""
        with self._lock:
            self._index_new_texts()
            if not self._ngram_ids:
                return []
            ngram_ids, weights = _ngrams([text])[0]
            candidates = self._find_candidates(ngram_ids, weights, threshold)
            if not candidates:
                return []
            cosines = self._compute_cosines(ngram_ids, weights, candidates)
        order = np.lexsort((np.asarray(candidates), -cosines))
        return [(float(cosines[position]), candidates[position]) for position in order if cosines[position] > threshold]

    def _index_new_texts(self) -> None:
        """Indexes the texts that were added since the last call."""
        for index, (numbers, weights) in enumerate(_ngrams(self._texts[len(self._ngram_ids) :]), len(self._ngram_ids)):
            self._ngram_ids.append(numbers)
            self._ngram_weights.append(weights)
            for ngram_id, weight in zip(numbers.tolist(), weights.tolist(), strict=True):
                positions, text_weights = self._postings.setdefault(ngram_id, (array("i"), array("d")))
                positions.append(index)
                text_weights.append(weight)

    def _find_candidates(self, ngram_ids: np.ndarray, weights: np.ndarray, threshold: float) -> list[int]:
        """The places of all texts whose cosine may be above the threshold, in order."""
        empty_posting = array("i"), array("d")
        postings = [self._postings.get(ngram_id, empty_posting) for ngram_id in ngram_ids.tolist()]
        frequency_order = sorted(range(len(postings)), key=lambda i: -len(postings[i][0]))
        norms = np.sqrt(np.cumsum(np.square(weights[frequency_order])))
        skip_count = int(np.searchsorted(norms, threshold / 4, side="right"))
        partial_cosines = np.zeros(len(self._ngram_ids))
        for i in frequency_order[skip_count:]:
            positions, text_weights = postings[i]
            partial_cosines[np.frombuffer(positions, np.int32)] += weights[i] * np.frombuffer(text_weights, np.float64)
        bound = float(norms[skip_count - 1]) if skip_count else 0.0
        return np.flatnonzero((partial_cosines > 0) & (partial_cosines > threshold - bound - _ROUNDING_ERROR)).tolist()

    def _compute_cosines(self, ngram_ids: np.ndarray, weights: np.ndarray, candidates: Sequence[int]) -> np.ndarray:
        """The cosines with these texts, each of which shares an n-gram with this one."""
        candidate_ids = [self._ngram_ids[position] for position in candidates]
        all_ids = np.concatenate(candidate_ids)
        weight_indices = np.minimum(np.searchsorted(ngram_ids, all_ids), len(ngram_ids) - 1)
        products = np.where(ngram_ids[weight_indices] == all_ids, weights[weight_indices], 0.0)
        products *= np.concatenate([self._ngram_weights[position] for position in candidates])
        return np.add.reduceat(products, np.cumsum([0, *map(len, candidate_ids[:-1])]))


def _ngrams(texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
    """The n-grams of each text as increasing numbers, and how often it has each, as a vector of norm 1."""
    if not texts:
        return []
    # The import takes a second, and only some runs compare texts.
    from sklearn.feature_extraction.text import HashingVectorizer

    vectorizer = HashingVectorizer(analyzer="char_wb", ngram_range=NGRAM_LENGTHS, alternate_sign=False, lowercase=False)
    matrix: Any = vectorizer.transform(texts)
    matrix.sort_indices()
    row_bounds = zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True)
    return [(matrix.indices[start:end].copy(), matrix.data[start:end].copy()) for start, end in row_bounds]
