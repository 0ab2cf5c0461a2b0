"""The journal: every finished call to a mind, by the content of its request, for good.

It is append-only and never cut back, so that a call is not paid twice when a run goes on after it was killed, and a
report can show the exact text sent and received.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cojax.store import Log
from cojax.types import canonical

_LOG = logging.getLogger(__name__)
# How a line begins: the key is read without the rest.
_HEAD = b'{"key":"'
_KEY = 32


class Journal:
    """Records by key, in one JSONL file; `path` None keeps them in memory. Any thread may use it.

    A record holds `key`, `place` (what the call was for), `model`, `sent` (the request as the endpoint took it),
    `text`, `truncated`, `usage`, `tokens` and `requests` (what it cost, lost attempts included).
    """

    def __init__(self, path: Path | None = None):
        self._log = None if path is None else Log(path)
        self._memory: dict[str, dict[str, Any]] = {}
        self._starts: dict[str, int] = {}
        self._guard = threading.Lock()
        if path is not None and path.exists():
            with open(path, "rb") as file:
                start = 0
                for line in file:
                    if line.startswith(_HEAD) and line.endswith(b"\n"):
                        self._starts[line[len(_HEAD) : len(_HEAD) + _KEY].decode("ascii", "replace")] = start
                    start += len(line)

    def find(self, key: str) -> dict[str, Any] | None:
        """The record of that key, or None; a damaged one counts as none, and its call is made anew."""
        with self._guard:
            if self._log is None:
                return self._memory.get(key)
            start = self._starts.get(key)
            if start is None:
                return None
            with open(self._log.path, "rb") as file:
                file.seek(start)
                line = file.readline()
        try:
            record = json.loads(line)
            if record["key"] == key and isinstance(record["text"], str):
                return record
        except (ValueError, KeyError, TypeError):
            pass
        _LOG.warning("%s holds a damaged record of call %s; the call is made anew", self._log.path, key)
        return None

    def add(self, key: str, record: Mapping[str, Any]) -> None:
        """Keeps a finished call. Raises StorageError when the disk refuses."""
        entry = {"key": key, **record}
        with self._guard:
            if self._log is None:
                self._memory[key] = entry
                return
            line = len(canonical(entry))  # JSON with ASCII alone: as many bytes as characters
            self._starts[key] = self._log.append([entry]) - line - 1

    def read(self, place: str = "") -> Iterator[dict[str, Any]]:
        """The records whose place begins so, oldest first."""
        records = list(self._memory.values()) if self._log is None else self._log.read()
        return (record for record in records if record["place"].startswith(place))
