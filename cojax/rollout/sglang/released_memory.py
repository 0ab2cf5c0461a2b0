"""Which memory SGLang servers have given back, recorded in a file for the next trainer in case this one is killed."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import threading
from collections.abc import Iterable
from pathlib import Path

from cojax.storage.files import write_json

RELEASED_MEMORY = "asleep.json"  # in sglang.folder
_LOG = logging.getLogger(__name__)


class ReleasedMemoryFile:
    """The record of all servers that lack memory, by URL. One trainer writes it, from any thread."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._found: dict[str, tuple[str, list[str]]] = {}
        try:
            for url, (incarnation, kinds) in json.loads(path.read_text()).items():
                self._found[url] = str(incarnation), list(map(str, kinds))
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, AttributeError) as error:
            _LOG.warning("%s is not read: %s. Start those servers again that still lack their memory", path, error)

    def find(self, url: str) -> tuple[str, list[str]]:
        """Which process at this address lacked memory (`ServerClient.incarnation`), and the kinds; empty for none."""
        return self._found.get(url, ("", []))

    def write(self, url: str, incarnation: str, kinds: Iterable[str]) -> None:
        """Records the kinds of memory that a server lacks; one that lacks none is removed. Raises StorageError."""
        with self._lock:
            if lacking := sorted(kinds):
                self._found[url] = incarnation, lacking
            else:
                self._found.pop(url, None)
            write_json(self._path, self._found)


@dataclasses.dataclass(eq=False)
class ReleasedMemory:
    """The `kinds` of memory that one server has given back, and the `incarnation` of its process at that time.

    The file names a kind before it is released and until it is back. It must be right: a server crashes when it is
    given memory that it has, or weights for which it has no memory.
    """

    url: str = ""
    file: ReleasedMemoryFile | None = None
    incarnation: str = ""
    kinds: set[str] = dataclasses.field(default_factory=set)

    def __post_init__(self) -> None:
        if self.file is not None:
            self.incarnation, kinds = self.file.find(self.url)
            self.kinds.update(kinds)

    def __bool__(self) -> bool:
        return bool(self.kinds)

    async def add(self, kinds: Iterable[str]) -> None:
        """Raises StorageError where it cannot be recorded; then no memory must be released."""
        more = self.kinds.union(kinds)
        await self._record(more)
        self.kinds = more

    async def remove(self, kinds: Iterable[str]) -> None:
        """Raises StorageError where it cannot be recorded."""
        self.kinds = self.kinds.difference(kinds)
        await self._record(self.kinds)

    async def _record(self, kinds: set[str]) -> None:
        if self.file is not None:
            await asyncio.to_thread(self.file.write, self.url, self.incarnation, kinds)
