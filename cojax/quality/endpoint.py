"""Embeddings from any OpenAI-compatible endpoint: deadlines, retries, and nothing paid twice.

The key comes from the environment variable OPENAI_API_KEY alone, and is struck out of whatever an endpoint sends back.
What is kept on disk are hashes of texts and numbers, never a text.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import dataclasses
import hashlib
import json
import math
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import openai

from cojax.quality.embedding import EmbeddingCache, EmbeddingError
from cojax.quality.measures import Floats
from cojax.types import canonical

# Seconds between attempts, doubled each time up to the longest; an endpoint that asks for more patience is given up.
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 60.0
# Bytes of a reply, and numbers of an embedding: far above what any model gives.
_MOST_BYTES, _MOST_NUMBERS = 64 * 2**20, 65_536
_REASON = 300
# A shorter key is a placeholder, and may be a common word.
_SECRET = 8
_KEY = 32


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
        try:
            parts = urlsplit(self.base_url)
            sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # its message may quote what stands before the @
            raise ValueError("quality.base_url is no address; expected one like http://HOST:PORT/v1") from None
        if "@" in parts.netloc or parts.query:
            raise ValueError(
                "quality.base_url holds credentials or a query; leave them out: the key comes from OPENAI_API_KEY"
            )
        if not sound:
            raise ValueError(
                f"quality.base_url is {self.base_url!r}; expected an address like http://HOST:PORT/v1, "
                "set by --config.quality.base_url"
            )
        if not self.model:
            raise ValueError("quality.model is empty; name the embedding model by --config.quality.model")
        for name in ("attempts", "batch"):
            if (count := dataclasses.asdict(self)[name]) < 1:
                raise ValueError(f"{name} is {count}; expected at least 1")
        for name in ("timeout", "deadline"):
            if not 0 < (seconds := dataclasses.asdict(self)[name]) < math.inf:
                raise ValueError(f"{name} is {seconds}; expected seconds above 0")


class EndpointEmbedding:
    """Texts → float32[N, D] by an endpoint; what it gave once is taken from `kept`. For one thread."""

    def __init__(self, settings: EndpointSettings, kept: EmbeddingCache | None = None):
        self.settings, self.kept = settings, kept
        self._key = os.environ.get("OPENAI_API_KEY", "").strip()
        if not (self._key.isascii() and self._key.isprintable()):
            raise ValueError("OPENAI_API_KEY holds characters that no header can carry; set it again")
        self._api = openai.OpenAI(
            api_key=self._key or "none",
            base_url=settings.base_url,
            timeout=settings.timeout,
            max_retries=0,
            http_client=openai.DefaultHttpxClient(follow_redirects=False),
        )
        self._known: dict[str, Floats] | None = None

    def __call__(self, texts: Sequence[str]) -> Floats:
        """Raises EmbeddingError where one text cannot be had: what was answered until then is kept."""
        if self._known is None:
            self._known = dict(_read(self.kept.read())) if self.kept is not None else {}
        names = {self._name(text): text for text in texts}
        missing = [name for name in names if name not in self._known]
        until = time.monotonic() + self.settings.deadline
        for start in range(0, len(missing), self.settings.batch):
            batch = missing[start : start + self.settings.batch]
            rows = self._persist([names[name] for name in batch], until)
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

    def _persist(self, texts: Sequence[str], until: float) -> list[Floats]:
        """Attempts until the batch is embedded. Raises EmbeddingError."""
        for attempt in range(1, self.settings.attempts + 1):
            left = until - time.monotonic()
            if left <= 0:
                raise EmbeddingError(f"the embeddings were not there within {self.settings.deadline:g} s")
            try:
                return self._attempt(texts, min(self.settings.timeout, left))
            except _EmbeddingRefused as refusal:
                pause = max(min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** (attempt - 1)), refusal.wait)
                reason = refusal.reason.replace(self._key, "[key]") if len(self._key) >= _SECRET else refusal.reason
                final = refusal.final or attempt == self.settings.attempts or pause > _LONGEST_WAIT
                if final or pause >= until - time.monotonic():
                    raise EmbeddingError(f"{self.settings.model} gave no embeddings: {reason}") from None
                time.sleep(pause)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _attempt(self, texts: Sequence[str], seconds: float) -> list[Floats]:
        """One request. Timeouts of HTTP bound one read each: the whole is bounded here."""
        answer: Future[bytes] = Future()
        until = time.monotonic() + seconds

        def work() -> None:
            try:
                answer.set_result(self._post(texts, until))
            except BaseException as error:
                answer.set_exception(error)

        threading.Thread(target=work, name="embeddings", daemon=True).start()
        try:
            return _vectors(answer.result(timeout=seconds), len(texts))
        except (TimeoutError, openai.APITimeoutError):
            raise _EmbeddingRefused(f"no reply within {seconds:.3g} s") from None
        except openai.APIStatusError as error:
            raise _of_status(error) from None
        except _EmbeddingRefused as refusal:
            raise refusal from None
        except Exception as error:
            # Not openai's own errors alone: those of the HTTP library pass through while a body is read.
            raise _EmbeddingRefused(f"{type(error).__name__}: {error.__cause__ or error}"[:_REASON]) from None

    def _post(self, texts: Sequence[str], until: float) -> bytes:
        # Half a surrogate pair is a Python string but no text that can be sent, and an empty one is refused by many.
        said = [text.encode("utf-8", "replace").decode() or " " for text in texts]
        content = bytearray()
        with self._api.embeddings.with_streaming_response.create(
            model=self.settings.model,
            input=said,
            encoding_format="float",
            timeout=max(0.001, until - time.monotonic()),
        ) as response:
            for piece in response.iter_bytes():
                content += piece
                if len(content) > _MOST_BYTES:
                    raise _EmbeddingRefused(f"the reply is longer than {_MOST_BYTES:,} bytes", final=True)
                if time.monotonic() > until:
                    raise TimeoutError
        return bytes(content)


class _EmbeddingRefused(Exception):
    """An attempt that brought nothing. `wait` are the seconds that the endpoint asks for; `final`: no other will."""

    def __init__(self, reason: str, *, wait: float = 0.0, final: bool = False):
        super().__init__(reason)
        self.reason, self.wait, self.final = reason, wait, final


def _of_status(error: openai.APIStatusError) -> _EmbeddingRefused:
    status = error.status_code
    body = error.body
    said = body.get("message", body) if isinstance(body, dict) else body
    reason = f"HTTP {status}: {' '.join(str(said or error.message).split())[:_REASON]}"
    if status in (401, 403, 404):
        reason += ". Check OPENAI_API_KEY, quality.base_url and quality.model"
    wait = 0.0
    with contextlib.suppress(ValueError):  # of a date, or nonsense: the usual pause
        wait = float(error.response.headers.get("retry-after", "0"))
    again = status in (408, 409, 429) or status >= 500
    return _EmbeddingRefused(reason, wait=wait if math.isfinite(wait) else _LONGEST_WAIT + 1, final=not again)


def _vectors(content: bytes, count: int) -> list[Floats]:
    """The embeddings of a reply in the order of the texts. Raises _Refused for what is none."""
    try:
        items = json.loads(content)["data"]
        rows: dict[int, Floats] = {}
        for place, item in enumerate(items):
            row = np.asarray(item["embedding"], dtype=np.float32)
            if row.ndim != 1 or not 0 < len(row) <= _MOST_NUMBERS or not np.isfinite(row).all() or not row.any():
                raise ValueError("an embedding is no list of finite numbers")
            rows[item.get("index", place)] = row
        if sorted(rows) != list(range(count)):
            raise ValueError(f"embeddings {sorted(rows)[:5]} … of {count} texts")
        if len({len(row) for row in rows.values()}) != 1:
            raise ValueError("embeddings differ in length")
        return [rows[place] for place in range(count)]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise _EmbeddingRefused(f"the reply holds no embeddings: {type(error).__name__}: {error}"[:_REASON]) from None


def _packed(row: Floats) -> str:
    return base64.b64encode(row.astype("<f4").tobytes()).decode()


def _read(records: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Floats]]:
    """EmbeddingCache embeddings by name; a damaged one counts as none, and is asked for anew."""
    for record in records:
        try:
            row = np.frombuffer(base64.b64decode(record["vector"], validate=True), dtype="<f4")
            if len(record["key"]) == _KEY and len(row) and np.isfinite(row).all():
                yield record["key"], row
        except (KeyError, TypeError, ValueError, binascii.Error):
            continue
