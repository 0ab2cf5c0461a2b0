"""Records which memory SGLang servers have released, in a file for the next trainer in case this one is killed."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import threading
from collections.abc import Iterable
from pathlib import Path

from cojax.storage.files import read_json, write_json

RELEASED_MEMORY = "asleep.json"  # in sglang.folder
_LOG = logging.getLogger(__name__)


class ReleasedMemoryFile:
    """The record of all servers that have released memory, by URL. One trainer writes it, from any thread."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._found: dict[str, tuple[str, list[str]]] = {}
        try:
            for url, (incarnation, kinds) in read_json(path).items():
                self._found[url] = str(incarnation), list(map(str, kinds))
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, AttributeError) as error:
            _LOG.warning("%s is not read: %s. Start those servers again that still lack their memory", path, error)

    def find(self, url: str) -> tuple[str, list[str]]:
        """The `ServerClient.incarnation` that released memory at this address, and the kinds; empty if none."""
        return self._found.get(url, ("", []))

    def write(self, url: str, incarnation: str, kinds: Iterable[str]) -> None:
        """Records the kinds of memory that a server has released; no kinds remove its entry. Raises StorageError."""
        with self._lock:
            if lacking := sorted(kinds):
                self._found[url] = incarnation, lacking
            else:
                self._found.pop(url, None)
            write_json(self._path, self._found)


@dataclasses.dataclass(eq=False)
class ReleasedMemory:
    """The `kinds` of memory that one server has released, and the `incarnation` of its process at that time.

    The file names a kind from before its release until it is restored. It must be correct: a server crashes if it is
    asked to restore memory that it has, or to load weights without memory for them.
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
        """Records further kinds. Raises StorageError if that fails; then no memory may be released."""
        more = self.kinds.union(kinds)
        await self._record(more)
        self.kinds = more

    async def remove(self, kinds: Iterable[str]) -> None:
        """Records that these kinds are restored. Raises StorageError if that fails."""
        self.kinds = self.kinds.difference(kinds)
        await self._record(self.kinds)

    async def _record(self, kinds: set[str]) -> None:
        if self.file is not None:
            await asyncio.to_thread(self.file.write, self.url, self.incarnation, kinds)
