"""The journal keeps every paid call to a model, and finds it by the content of its request.

It is append-only and never truncated. So no call is paid twice when a killed run is resumed, and a report can show the
exact text sent and received.
"""

import hashlib
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cojax.storage.checksums import CHECKSUM, has_valid_checksum, with_checksum
from cojax.storage.files import Log, lines_of, open_file, parse_record
from cojax.types import Message, canonical

_LOG = logging.getLogger(__name__)
# The beginning of each line: the key is read without parsing the rest.
_HEAD = b'{"key":"'
_KEY = 32


def key_of(value: Any) -> str:
    """The key of a record: 32 hex digits of the SHA-256 of `value` as canonical JSON."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:_KEY]


def sent_messages(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Messages in an endpoint's format. A lone surrogate, which UTF-8 cannot encode, is replaced."""
    return [{"role": m.role, "content": m.content.encode("utf-8", "replace").decode()} for m in messages]


def call_record(
    place: str,
    model: str,
    sent: Mapping[str, Any],
    text: str,
    truncated: bool,
    usage: tuple[int, int],
    cost: tuple[int, int],
) -> dict[str, Any]:
    """The record of an answered call.

    `usage` is the tokens of prompt and reply. `cost` is the tokens and requests that the call took, lost attempts
    included.
    """
    return {
        "place": place, "model": model, "sent": sent, "text": text, "truncated": truncated, "usage": list(usage),
        "tokens": cost[0], "requests": cost[1],
    }  # fmt: skip


def failed_record(
    place: str, model: str, sent: Mapping[str, Any], kind: str, reason: str, cost: tuple[int, int]
) -> dict[str, Any]:
    """The record of a call that cost something and brought no reply; its text is None."""
    return {
        "place": place, "model": model, "sent": sent, "text": None, "kind": kind, "reason": reason,
        "tokens": cost[0], "requests": cost[1],
    }  # fmt: skip


def _is_sound(record: Mapping[str, Any]) -> bool:
    """Whether a record is one of `call_record` or `failed_record`. May raise ValueError, KeyError or TypeError."""
    counts, answered = [record["tokens"], record["requests"]], record["text"] is not None
    if answered:
        tokens_in, tokens_out = record["usage"]
        counts += [tokens_in, tokens_out]
    texts = [record["text"]] if answered else [record["kind"], record["reason"]]
    # A negative cost would let an evolution spend more than its budget.
    return all(type(count) is int and count >= 0 for count in counts) and all(isinstance(text, str) for text in texts)


class Journal:
    """Records by key, in one JSONL file; `path` None keeps them in memory. Any thread may use it.

    A record holds `key`, `place` (what the call was for), `model`, `sent` (the request as the endpoint took it),
    `text`, `truncated`, `usage`, `tokens` and `requests` (its cost, lost attempts included). The record of a failure
    holds `kind` and `reason` of the failure, no usage, and None for its text. Of several records with one key the last
    counts. On disk each record has a checksum of itself.
    """

    def __init__(self, path: Path | None = None):
        self._log = None if path is None else Log(path)
        self._memory: dict[str, dict[str, Any]] = {}
        self._starts: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        self._count = 0
        self._guard = threading.Lock()
        if path is not None and path.exists():
            with open_file(path) as file:
                start = 0
                for line in lines_of(file):
                    if line.startswith(_HEAD) and line.endswith(b"\n"):
                        key = line[len(_HEAD) : len(_HEAD) + _KEY].decode("ascii", "replace")
                        self._starts[key], self._numbers[key] = start, self._next()
                    start += len(line)

    def _next(self) -> int:
        self._count += 1
        return self._count

    @property
    def length(self) -> int:
        """The number of records."""
        return self._count

    def number(self, key: str) -> int:
        """The position, counted from 1, of the last record with that key; 0 where there is none."""
        return self._numbers.get(key, 0)

    def find(self, key: str) -> dict[str, Any] | None:
        """The record of that key, or None. A damaged record counts as missing: its call is made again."""
        with self._guard:
            if self._log is None:
                return self._memory.get(key)
            start = self._starts.get(key)
            if start is None:
                return None
            with open_file(self._log.path) as file:
                file.seek(start)
                line = next(lines_of(file), b"")
        try:
            record = parse_record(line)
            has_valid_checksum(record)
            if record["key"] == key and _is_sound(record):
                return {name: value for name, value in record.items() if name != CHECKSUM}
        except (ValueError, KeyError, TypeError):
            pass
        _LOG.warning("%s holds a damaged record of call %s; the call is made anew", self._log.path, key)
        return None

    def add(self, key: str, record: Mapping[str, Any]) -> None:
        """Adds the record of a call. Raises StorageError when the disk refuses."""
        entry = {"key": key, **record}
        with self._guard:
            if self._log is None:
                self._memory[key] = entry
            else:
                line = with_checksum(entry)
                length = len(canonical(line))  # JSON with ASCII alone: as many bytes as characters
                self._starts[key] = self._log.append([line]) - length - 1
            self._numbers[key] = self._next()

    def read(self, place: str = "") -> Iterator[dict[str, Any]]:
        """The records whose place begins with `place`, oldest first."""
        records = list(self._memory.values()) if self._log is None else self._log.read()
        return (record for record in records if record["place"].startswith(place))
