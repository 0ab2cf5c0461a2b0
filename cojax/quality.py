"""Quality of a task set: its diversity, its distance to the evaluation tasks, and the length of its solutions.

These are CoEvolve's task-set metrics (`describe_pool`). They are only numbers, so that they do not leak the text of an
evaluation task.

Queries are embedded as hashed n-grams of words and characters, which needs no model, or by an OpenAI-compatible
endpoint. It is asked in batches, once for each text. Its answers are kept on disk as numbers with the hash of their
text, never with the text.

The measures are pure functions of embeddings, float[N, D]. Rows are scaled to unit length first. A row of zeros (a text
without any feature) has cosine 0 with every other. No array larger than [BLOCK, N] is made. A measure is None if it
needs more rows than there are.
"""

import base64
import hashlib
import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cojax.openai_api import ApiClient, CallFailed, with_retries
from cojax.storage.files import Log
from cojax.types import Task, canonical, normalise

Floats = npt.NDArray[np.floating[Any]]

MAX_TASKS = 2_000  # tasks of a set that are compared; of a larger set, a sample
_DIGITS = 6  # decimals of the figures
BLOCK = 512  # rows of similarities computed at a time
BIN_COUNT = 20  # of a histogram of cosines from 0 to 1


def measure_neighbours(embeddings: Floats, k: int) -> float | None:
    """SR@k: mean cosine of each row to its k nearest other rows; lower is more diverse.

    SR@k = 1/N · Σ_i 1/k · Σ_{j ∈ kNN(i)} cos(e_i, e_j), j ≠ i. With fewer than k others, all of them count. It rises
    with N even for samples of one source, as neighbours come closer: compare only sets of about the same size.
    """
    return compare_own(embeddings, k)[0]


def measure_greatest(embeddings: Floats, targets: Floats) -> Floats:
    """Cosine of each row to the nearest target, float[N]; 0 if there is no target."""
    return compare_to_targets(embeddings, targets)[0]


def compare_own(embeddings: Floats, k: int) -> tuple[float | None, float | None]:
    """SR@k, and the mean distance of two different rows. Raises ValueError for k below 1."""
    if k < 1:
        raise ValueError(f"k is {k}; expected at least 1 neighbour")
    unit_rows, count = unit(embeddings), len(embeddings)
    if count < 2:
        return None, None
    cosine_sum, distance_sum = 0.0, 0.0
    k = min(k, count - 1)
    for block_start, cosines, distances in _compare_blocks(unit_rows, unit_rows):
        diagonal = np.arange(len(cosines)), np.arange(block_start, block_start + len(cosines))
        distances[diagonal] = 0.0
        distance_sum += float(distances.sum(dtype=np.float64))
        cosines[diagonal] = -np.inf
        cosine_sum += float(np.partition(cosines, -k, axis=1)[:, -k:].sum(dtype=np.float64))
    return cosine_sum / (k * count), distance_sum / (count * (count - 1))


def compare_to_targets(embeddings: Floats, targets: Floats) -> tuple[Floats, Floats]:
    """For each row: the cosine to the nearest target (0 without any), and the mean distance to targets; float64[N]."""
    nearest_cosines, mean_distances = np.zeros(len(embeddings)), np.zeros(len(embeddings))
    if len(targets):
        for block_start, cosines, distances in _compare_blocks(unit(embeddings), unit(targets)):
            nearest_cosines[block_start : block_start + len(cosines)] = cosines.max(axis=1)
            mean_distances[block_start : block_start + len(cosines)] = distances.mean(axis=1, dtype=np.float64)
    return nearest_cosines, mean_distances


def compute_energy(target_distances: Floats, own_distance: float | None, target_spread: float | None) -> float | None:
    """ED_rel: energy distance of the generated to the target queries, relative to the target's spread; lower is closer.

    ED_rel = (2 E‖x − y‖ − E‖x − x'‖ − E‖y − y'‖) / E‖y − y'‖, with x, x' generated and y, y' target (Székely and Rizzo,
    Energy statistics, J. Stat. Plan. Inference 143, 2013; relative as in CoEvolve). It is computed from mean Euclidean
    distances between rows of unit length: of each row to the targets, of two rows (`own_distance`), and of two targets.
    The two are different (a U-statistic): if each row were also paired with itself, a set would come closer merely by
    growing. ED_rel can therefore fall somewhat below 0 if both sets are alike. It is None if a set has fewer than two
    rows, or if all targets are the same.
    """
    if own_distance is None or not target_spread:
        return None
    return (2.0 * float(target_distances.mean()) - own_distance - target_spread) / target_spread


def count_bins(cosines: Floats) -> list[int]:
    """The number of cosines in each of BIN_COUNT equal bins from 0 to 1; negative ones count in the first."""
    # A cosine that only rounding puts below the lower end of a bin belongs to that bin.
    bin_indices = np.floor(cosines * BIN_COUNT + 1e-5).astype(int).clip(0, BIN_COUNT - 1)
    return np.bincount(bin_indices, minlength=BIN_COUNT).tolist()


def unit(embeddings: Floats) -> Floats:
    """The rows at unit length; rows of zeros stay. Raises ValueError for all but finite numbers [N, D]."""
    if embeddings.ndim != 2 or not np.isfinite(embeddings).all():
        raise ValueError(f"embeddings of shape {embeddings.shape}; expected finite numbers of shape [N, D]")
    norms = np.linalg.norm(embeddings, axis=1, keepdims=True)
    return embeddings / np.where(norms > 0, norms, 1)


def _compare_blocks(rows: Floats, other_rows: Floats) -> Iterator[tuple[int, Floats, Floats]]:
    """For each block of rows: the number of its first row, and its cosines and distances to the others, [block, M]."""
    squared_norms, other_squared_norms = (np.einsum("nd,nd->n", matrix, matrix) for matrix in (rows, other_rows))
    for start in range(0, len(rows), BLOCK):
        cosines = rows[start : start + BLOCK] @ other_rows.T
        squared_distances = squared_norms[start : start + BLOCK, None] + other_squared_norms[None, :] - 2.0 * cosines
        yield start, cosines, np.sqrt(np.maximum(squared_distances, 0.0))


Embed = Callable[[Sequence[str]], Floats]  # texts → float[N, D]; raises EmbeddingError

_HALF_DIMENSIONS = 1024  # of each half
# Most characters of a text that are read: the n-grams of more would only take time.
_MAX_TEXT_LENGTH = 20_000
# Most numbers of an embedding from an endpoint, far more than any model returns.
_MAX_DIMENSIONS = 65_536
_KEY_DIGITS = 32  # hex digits of the hash of a text


class EmbeddingError(RuntimeError):
    """Texts could not be embedded; the message says why and what to do."""


def hashed_ngrams() -> Embed:
    """Texts → float32[N, 2048] at unit length, the same on every machine; no model file.

    One half counts words and pairs of words, the other 3 to 5 characters within a word, each at unit length, hashed
    with signs, so that collisions add noise of about 0.02 to a cosine and no bias. It compares wording, not meaning.
    """
    cache: dict[str, Floats] = {}  # embeddings of the last call, most of whose texts recur

    def embed(texts: Sequence[str]) -> Floats:
        nonlocal cache
        new_texts = [text for text in dict.fromkeys(texts) if text not in cache]
        row_by_text = {**cache, **dict(zip(new_texts, _hash_texts(new_texts), strict=True))} if new_texts else cache
        cache = {text: row_by_text[text] for text in texts}
        return np.stack([cache[text] for text in texts]) if texts else np.zeros((0, 2 * _HALF_DIMENSIONS), np.float32)

    return embed


def _hash_texts(texts: Sequence[str]) -> Floats:
    # The import takes a second, and most users of this file embed nothing.
    from sklearn.feature_extraction.text import HashingVectorizer

    vectorizer_options: dict[str, Any] = {"n_features": _HALF_DIMENSIONS, "lowercase": False, "dtype": np.float32}
    word_vectorizer = HashingVectorizer(token_pattern=r"\w+", ngram_range=(1, 2), **vectorizer_options)
    character_vectorizer = HashingVectorizer(analyzer="char_wb", ngram_range=(3, 5), **vectorizer_options)
    clean_texts = [normalise(text[:_MAX_TEXT_LENGTH]) for text in texts]
    return unit(np.hstack([half.transform(clean_texts).toarray() for half in (word_vectorizer, character_vectorizer)]))


def endpoint_embedding(
    base_url: str,
    model: str,
    cache: Log | None = None,
    *,
    timeout_s: float = 60.0,
    call_timeout_s: float = 300.0,
    max_attempts: int = 4,
    batch_size: int = 64,
) -> Embed:
    """Texts → float32[N, D] by `model` at an endpoint; `base_url` is like http://HOST:PORT/v1. For one thread.

    Embeddings that `cache` holds are not requested, and those that arrive are kept even if a later text gets no
    embedding. `timeout_s` bounds one request and `call_timeout_s` one whole call, in seconds; a batch of `batch_size`
    texts takes at most `max_attempts` requests. Raises ValueError for an address that cannot work.
    """
    api = ApiClient(base_url, model, "quality.base_url", "quality.model")
    row_by_key: dict[str, Floats] = {}

    def hash_text(text: str) -> str:
        return hashlib.sha256(canonical([model, text]).encode()).hexdigest()[:_KEY_DIGITS]

    def request_rows(texts: Sequence[str], call_deadline: float) -> list[Floats]:
        # Half a surrogate pair is a Python string but cannot be sent, and many endpoints refuse an empty text.
        inputs = [text.encode("utf-8", "replace").decode() or " " for text in texts]
        request: dict[str, Any] = {"model": model, "input": inputs, "encoding_format": "float"}

        def attempt() -> list[Floats]:
            remaining_s = call_deadline - time.monotonic()
            if remaining_s <= 0:
                raise EmbeddingError(f"the embeddings did not arrive within {call_timeout_s:g} s")
            return api.embeddings(request, min(timeout_s, remaining_s), lambda reply: _parse_reply(reply, len(texts)))

        try:
            return with_retries(attempt, max_attempts, lambda: call_deadline - time.monotonic(), time.sleep)
        except CallFailed as failure:
            raise EmbeddingError(f"{model} gave no embeddings: {failure.reason}") from None

    def embed(texts: Sequence[str]) -> Floats:
        if cache is not None and not row_by_key:
            row_by_key.update(_read_cache(cache.read()))
        text_by_key = {hash_text(text): text for text in texts}
        missing_keys = [key for key in text_by_key if key not in row_by_key]
        call_deadline = time.monotonic() + call_timeout_s
        for batch_start in range(0, len(missing_keys), batch_size):
            keys = missing_keys[batch_start : batch_start + batch_size]
            new_rows = dict(zip(keys, request_rows([text_by_key[key] for key in keys], call_deadline), strict=True))
            if cache is not None:
                encoded_rows = {key: base64.b64encode(row.astype("<f4").tobytes()) for key, row in new_rows.items()}
                cache.append({"key": key, "vector": encoded_row.decode()} for key, encoded_row in encoded_rows.items())
            row_by_key.update(new_rows)
        rows = [row_by_key[hash_text(text)] for text in texts]
        if len({len(row) for row in rows}) > 1:
            raise EmbeddingError(
                f"{model} gave embeddings of different lengths; delete embeddings.jsonl, which may hold "
                "those of an older model of that name"
            )
        return np.stack(rows) if rows else np.zeros((0, 1), np.float32)

    return embed


def _parse_reply(reply: Any, text_count: int) -> list[Floats]:
    """The embeddings of a reply in the order of the texts. Raises ValueError, KeyError, TypeError or AttributeError
    for what is none."""
    row_by_index: dict[int, Floats] = {}
    for position, embedding_entry in enumerate(reply["data"]):
        row = np.asarray(embedding_entry["embedding"], dtype=np.float32)
        if row.ndim != 1 or not 0 < len(row) <= _MAX_DIMENSIONS or not np.isfinite(row).all() or not row.any():
            raise ValueError("an embedding is not a list of finite numbers")
        row_by_index[embedding_entry.get("index", position)] = row
    if sorted(row_by_index) != list(range(text_count)):
        raise ValueError(f"embeddings {sorted(row_by_index)[:5]} … of {text_count} texts")
    if len({len(row) for row in row_by_index.values()}) != 1:
        raise ValueError("embeddings differ in length")
    return [row_by_index[position] for position in range(text_count)]


def _read_cache(records: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Floats]]:
    """Embeddings on disk by the hash of their text. A damaged one is skipped, so that it is requested again."""
    for record in records:
        try:
            row = np.frombuffer(base64.b64decode(record["vector"], validate=True), dtype="<f4")
            if len(record["key"]) == _KEY_DIGITS and len(row) and np.isfinite(row).all():
                yield record["key"], row
        except (KeyError, TypeError, ValueError):  # binascii.Error is a ValueError
            continue


def describe_pool(
    pool: Iterable[Task], targets: Sequence[Task], embed: Embed | None, k: int, max_tasks: int = MAX_TASKS
) -> dict[str, Any]:
    """The quality of a pool, as metrics.jsonl stores it. The keys are stable:

    - tasks: number of tasks compared: all of the pool, or a sample of `max_tasks`
    - sr_at_k: mean cosine of each query to its k nearest in the pool; lower is more diverse
    - ed_rel: energy distance to the target queries, of their mean pairwise distance; lower is closer
    - max_similarity: cosine of each query to its nearest target: mean, max, and histogram, counts in 20 bins, 0 to 1
    - turns: mean actions of a solution
    - initial, synthesized: the same figures for the initial tasks, and for those that evolution added

    Undefined figures are left out: those of fewer than two tasks, or without targets. If `embed` is None, all figures
    that need embeddings are left out. A sample holds the tasks with the smallest ids. Ids are hashes of the content, so
    the sample is in effect random, and mostly stays the same as the pool grows. Raises EmbeddingError.
    """
    tasks = list(pool)
    subsets = {
        "": tasks,
        "initial": [task for task in tasks if not _find_lineage_step(task)],
        "synthesized": [task for task in tasks if _find_lineage_step(task)],
    }
    samples = {part: _sample_tasks(subset, max_tasks) for part, subset in subsets.items()}
    description = {
        part: {"tasks": len(sample), **_turns(subsets[part])} for part, sample in samples.items() if sample or not part
    }
    if embed is not None and tasks:
        for part, figures in _compute_embedding_figures(samples, _sample_tasks(targets, max_tasks), embed, k).items():
            description[part] |= figures
    return {**description.pop(""), **description}


def _compute_embedding_figures(
    samples: dict[str, list[Task]], targets: Sequence[Task], embed: Embed, k: int
) -> dict[str, dict[str, Any]]:
    """The figures that need embeddings, of each sample that is not empty. Each task is embedded and compared once."""
    unique_tasks = list({task.id: task for sample in samples.values() for task in sample}.values())
    embeddings = embed([task.query for task in (*unique_tasks, *targets)])
    if embeddings.shape[:1] != (len(unique_tasks) + len(targets),):
        raise EmbeddingError(f"{len(unique_tasks) + len(targets)} texts gave embeddings of shape {embeddings.shape}")
    pool_rows, target_rows = embeddings[: len(unique_tasks)], embeddings[len(unique_tasks) :]
    index_by_task_id = {task.id: index for index, task in enumerate(unique_tasks)}
    nearest_cosines, distances = compare_to_targets(pool_rows, target_rows)
    target_spread = compare_own(target_rows, 1)[1]
    figures_by_subset: dict[str, dict[str, Any]] = {}
    for subset_name, sample in samples.items():
        if sample:
            indices = np.array([index_by_task_id[task.id] for task in sample])
            neighbour_cosine, own = compare_own(pool_rows[indices], k)
            scores = {"sr_at_k": neighbour_cosine, "ed_rel": compute_energy(distances[indices], own, target_spread)}
            figures: dict[str, Any] = {key: round(value, _DIGITS) for key, value in scores.items() if value is not None}
            if len(target_rows):
                cosines = nearest_cosines[indices]
                mean_cosine, max_cosine = round(float(cosines.mean()), _DIGITS), round(float(np.max(cosines)), _DIGITS)
                figures["max_similarity"] = {"mean": mean_cosine, "max": max_cosine, "histogram": count_bins(cosines)}
            figures_by_subset[subset_name] = figures
    return figures_by_subset


def _turns(tasks: Sequence[Task]) -> dict[str, float]:
    solution_lengths = [len(task.solution) for task in tasks if task.solution]
    return {"turns": round(sum(solution_lengths) / len(solution_lengths), _DIGITS)} if solution_lengths else {}


def _sample_tasks(tasks: Sequence[Task], max_tasks: int) -> list[Task]:
    """At most `max_tasks` of the tasks, in their order: those with the smallest ids."""
    if len(tasks) <= max_tasks:
        return list(tasks)
    smallest_ids = set(heapq.nsmallest(max_tasks, (task.id for task in tasks)))
    return [task for task in tasks if task.id in smallest_ids]


def _find_lineage_step(task: Task) -> int:
    return task.lineage.step if task.lineage else 0


# (base URL, model, cache) → an embedding. Raises ValueError for settings that cannot work.
EMBEDDINGS: dict[str, Callable[[str, str, Log | None], Embed]] = {
    "local": lambda base_url, model, cache: hashed_ngrams(),
    "endpoint": endpoint_embedding,
}
