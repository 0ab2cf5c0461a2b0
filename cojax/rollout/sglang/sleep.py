"""What memory servers have given back, noted where the next trainer finds it should this one be killed meanwhile."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import threading
from collections.abc import Iterable
from pathlib import Path

from cojax.storage.files import write_json

NOTES = "asleep.json"  # in sglang.folder
_LOG = logging.getLogger(__name__)


class Notes:
    """A file of the servers that sleep, by url; of one trainer at a time. Methods may be called from any thread."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._found: dict[str, tuple[str, list[str]]] = {}
        try:
            for url, (born, kinds) in json.loads(path.read_text()).items():
                self._found[url] = str(born), list(map(str, kinds))
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, AttributeError) as error:
            _LOG.warning("%s is not read: %s. Start those servers again that still sleep", path, error)

    def find(self, url: str) -> tuple[str, list[str]]:
        """The process that slept at this address, as `Endpoint.born` tells it, and the kinds of memory it lacked."""
        return self._found.get(url, ("", []))

    def write(self, url: str, born: str, kinds: Iterable[str]) -> None:
        """Notes the kinds of memory that a server lacks; one that lacks none is forgotten. Raises StorageError."""
        with self._lock:
            if lacking := sorted(kinds):
                self._found[url] = born, lacking
            else:
                self._found.pop(url, None)
            write_json(self._path, self._found)


@dataclasses.dataclass(eq=False)
class Asleep:
    """The kinds of memory that the server at `url` has given back, and its process, `born`, as it was by then.

    The notes say so before any goes, and no more once it is back: a server does not survive to be given memory that it
    has, nor weights for which it has none.
    """

    url: str = ""
    notes: Notes | None = None
    born: str = ""
    kinds: set[str] = dataclasses.field(default_factory=set)

    def __post_init__(self) -> None:
        if self.notes is not None:
            self.born, kinds = self.notes.find(self.url)
            self.kinds.update(kinds)

    def __bool__(self) -> bool:
        return bool(self.kinds)

    async def add(self, kinds: Iterable[str]) -> None:
        """Raises StorageError, after which none must go."""
        more = self.kinds.union(kinds)
        await self._note(more)
        self.kinds = more

    async def remove(self, kinds: Iterable[str]) -> None:
        """Raises StorageError."""
        self.kinds = self.kinds.difference(kinds)
        await self._note(self.kinds)

    async def _note(self, kinds: set[str]) -> None:
        if self.notes is not None:
            await asyncio.to_thread(self.notes.write, self.url, self.born, kinds)
