"""What an embedding is: hashed n-grams of words and of characters, which need no model, or those of an endpoint.

An OpenAI-compatible endpoint is asked in batches, for each text once: what came back is kept on disk. Hashes of texts
and numbers are kept, never a text.
"""

import base64
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cojax.openai_api import Address, ApiClient, CallFailed, with_retries
from cojax.quality.measures import Floats, unit
from cojax.storage.files import Log
from cojax.types import canonical, normalise

Embed = Callable[[Sequence[str]], Floats]  # texts → float[N, D]; raises EmbeddingError

_DIMENSIONS = 1024  # of each half
# Characters of a text that are read: the n-grams of more would only take time.
_LONGEST = 20_000
# Numbers of an embedding of an endpoint: far above what any model gives.
_MOST_NUMBERS = 65_536
_KEY = 32  # hex digits of the hash of a text


class EmbeddingError(RuntimeError):
    """Texts could not be embedded; the message says why and what to do."""


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


class EndpointEmbedding:
    """Texts → float32[N, D] by `model` at an endpoint; `base_url` is like http://HOST:PORT/v1. For one thread.

    An embedding that `kept` holds is not asked for. `timeout` bounds one request and `deadline` all of one call, in
    seconds; a batch of `batch` texts takes at most `attempts` requests. Raises ValueError for an address that cannot
    work.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        kept: Log | None = None,
        *,
        timeout: float = 60.0,
        deadline: float = 300.0,
        attempts: int = 4,
        batch: int = 64,
    ):
        self._api = ApiClient(Address(base_url, model, "quality.base_url", "quality.model"))
        self._model, self._kept = model, kept
        self._timeout, self._deadline, self._attempts, self._size = timeout, deadline, attempts, batch
        self._known: dict[str, Floats] | None = None

    def __call__(self, texts: Sequence[str]) -> Floats:
        """Raises EmbeddingError where one text gets no embedding; what was answered until then is kept."""
        if self._known is None:
            self._known = dict(_read(self._kept.read())) if self._kept is not None else {}
        names = {self._name(text): text for text in texts}
        missing = [name for name in names if name not in self._known]
        until = time.monotonic() + self._deadline
        for start in range(0, len(missing), self._size):
            batch = missing[start : start + self._size]
            rows = self._batch([names[name] for name in batch], until)
            found = dict(zip(batch, rows, strict=True))
            if self._kept is not None:
                packed = {name: base64.b64encode(row.astype("<f4").tobytes()) for name, row in found.items()}
                self._kept.append({"key": name, "vector": data.decode()} for name, data in packed.items())
            self._known |= found
        rows = [self._known[self._name(text)] for text in texts]
        if len({len(row) for row in rows}) > 1:
            raise EmbeddingError(
                f"{self._model} gave embeddings of different lengths; delete embeddings.jsonl, which may hold "
                "those of an older model of that name"
            )
        return np.stack(rows) if rows else np.zeros((0, 1), np.float32)

    def _name(self, text: str) -> str:
        return hashlib.sha256(canonical([self._model, text]).encode()).hexdigest()[:_KEY]

    def _batch(self, texts: Sequence[str], until: float) -> list[Floats]:
        """The embeddings of a batch. Raises EmbeddingError where no attempt brings them."""
        # Half a surrogate pair is a Python string but no text that can be sent, and an empty one is refused by many.
        sent = [text.encode("utf-8", "replace").decode() or " " for text in texts]
        body: dict[str, Any] = {"model": self._model, "input": sent, "encoding_format": "float"}

        def attempt() -> list[Floats]:
            left = until - time.monotonic()
            if left <= 0:
                raise EmbeddingError(f"the embeddings were not there within {self._deadline:g} s")
            return self._api.embeddings(body, min(self._timeout, left), lambda reply: _rows(reply, len(texts)))

        try:
            return with_retries(attempt, self._attempts, lambda: until - time.monotonic(), time.sleep)
        except CallFailed as failed:
            raise EmbeddingError(f"{self._model} gave no embeddings: {failed.reason}") from None


def _rows(reply: Any, count: int) -> list[Floats]:
    """The embeddings of a reply in the order of the texts. Raises ValueError, KeyError, TypeError or AttributeError
    for what is none."""
    rows: dict[int, Floats] = {}
    for place, item in enumerate(reply["data"]):
        row = np.asarray(item["embedding"], dtype=np.float32)
        if row.ndim != 1 or not 0 < len(row) <= _MOST_NUMBERS or not np.isfinite(row).all() or not row.any():
            raise ValueError("an embedding is no list of finite numbers")
        rows[item.get("index", place)] = row
    if sorted(rows) != list(range(count)):
        raise ValueError(f"embeddings {sorted(rows)[:5]} … of {count} texts")
    if len({len(row) for row in rows.values()}) != 1:
        raise ValueError("embeddings differ in length")
    return [rows[place] for place in range(count)]


def _read(records: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Floats]]:
    """Embeddings on disk by the hash of their text. A damaged one is skipped, so that it is asked for anew."""
    for record in records:
        try:
            row = np.frombuffer(base64.b64decode(record["vector"], validate=True), dtype="<f4")
            if len(record["key"]) == _KEY and len(row) and np.isfinite(row).all():
                yield record["key"], row
        except (KeyError, TypeError, ValueError):  # binascii.Error is a ValueError
            continue
