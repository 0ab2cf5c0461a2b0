"""Embeddings from an OpenAI-compatible endpoint, in batches, each text once: what came back is kept on disk.

Hashes of texts and numbers are kept, never a text.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import hashlib
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cojax.openai_api.calls import Address, CallFailed, with_retries
from cojax.openai_api.client import ApiClient
from cojax.quality.embedding import EmbeddingCache, EmbeddingError
from cojax.quality.measures import Floats
from cojax.types import canonical

# Numbers of an embedding: far above what any model gives.
_MOST_NUMBERS = 65_536
_KEY = 32  # hex digits of the hash of a text


@dataclasses.dataclass(frozen=True)
class EndpointSettings:
    """Where and how to ask for embeddings of `model`: `base_url` is like http://HOST:PORT/v1.

    `timeout` bounds one request and `deadline` all of one call, in seconds; a batch of `batch` texts takes at most
    `attempts` requests. Raises ValueError for settings that cannot work.
    """

    base_url: str
    model: str
    timeout: float = 60.0
    deadline: float = 300.0
    attempts: int = 4
    batch: int = 64

    def __post_init__(self) -> None:
        _ = self.address
        for name in ("attempts", "batch"):
            if (count := dataclasses.asdict(self)[name]) < 1:
                raise ValueError(f"{name} is {count}; expected at least 1")
        for name in ("timeout", "deadline"):
            if not 0 < (seconds := dataclasses.asdict(self)[name]) < math.inf:
                raise ValueError(f"{name} is {seconds}; expected seconds above 0")

    @property
    def address(self) -> Address:
        return Address(self.base_url, self.model, "quality.base_url", "quality.model")


class EndpointEmbedding:
    """Texts → float32[N, D] by an endpoint. An embedding that `kept` holds is not asked for. For one thread."""

    def __init__(self, settings: EndpointSettings, kept: EmbeddingCache | None = None):
        self.settings, self.kept = settings, kept
        self._api = ApiClient(settings.address)
        self._known: dict[str, Floats] | None = None

    def __call__(self, texts: Sequence[str]) -> Floats:
        """Raises EmbeddingError where one text gets no embedding; what was answered until then is kept."""
        if self._known is None:
            self._known = dict(_read(self.kept.read())) if self.kept is not None else {}
        names = {self._name(text): text for text in texts}
        missing = [name for name in names if name not in self._known]
        until = time.monotonic() + self.settings.deadline
        for start in range(0, len(missing), self.settings.batch):
            batch = missing[start : start + self.settings.batch]
            rows = self._batch([names[name] for name in batch], until)
            found = dict(zip(batch, rows, strict=True))
            if self.kept is not None:
                self.kept.append({"key": name, "vector": _packed(row)} for name, row in found.items())
            self._known |= found
        rows = [self._known[self._name(text)] for text in texts]
        if len({len(row) for row in rows}) > 1:
            raise EmbeddingError(
                f"{self.settings.model} gave embeddings of different lengths; delete embeddings.jsonl, which may hold "
                "those of an older model of that name"
            )
        return np.stack(rows) if rows else np.zeros((0, 1), np.float32)

    def _name(self, text: str) -> str:
        return hashlib.sha256(canonical([self.settings.model, text]).encode()).hexdigest()[:_KEY]

    def _batch(self, texts: Sequence[str], until: float) -> list[Floats]:
        """The embeddings of a batch. Raises EmbeddingError where no attempt brings them."""
        # Half a surrogate pair is a Python string but no text that can be sent, and an empty one is refused by many.
        sent = [text.encode("utf-8", "replace").decode() or " " for text in texts]
        body: dict[str, Any] = {"model": self.settings.model, "input": sent, "encoding_format": "float"}

        def attempt() -> list[Floats]:
            left = until - time.monotonic()
            if left <= 0:
                raise EmbeddingError(f"the embeddings were not there within {self.settings.deadline:g} s")
            return self._api.embeddings(body, min(self.settings.timeout, left), lambda reply: _rows(reply, len(texts)))

        try:
            return with_retries(attempt, self.settings.attempts, lambda: until - time.monotonic(), time.sleep)
        except CallFailed as failed:
            raise EmbeddingError(f"{self.settings.model} gave no embeddings: {failed.reason}") from None


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


def _packed(row: Floats) -> str:
    return base64.b64encode(row.astype("<f4").tobytes()).decode()


def _read(records: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Floats]]:
    """Embeddings on disk by the hash of their text. A damaged one is skipped, so that it is asked for anew."""
    for record in records:
        try:
            row = np.frombuffer(base64.b64decode(record["vector"], validate=True), dtype="<f4")
            if len(record["key"]) == _KEY and len(row) and np.isfinite(row).all():
                yield record["key"], row
        except (KeyError, TypeError, ValueError, binascii.Error):
            continue
