"""The arrays of one checkpoint on disk, by Orbax."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import orbax.checkpoint as ocp


class ArrayStore(Protocol):
    """Writes and reads the arrays of one checkpoint."""

    def save(self, folder: Path, arrays: Any) -> None:
        """Writes a pytree of arrays as a new folder; all of it is there on return."""

    def restore(self, folder: Path, like: Any) -> Any:
        """Reads it into the structure, dtypes and shardings of `like`, which are outlines."""


class ArrayFiles:
    """`ArrayStore` by Orbax. Where arrays are spread over several processes, all of them call it."""

    def __init__(self) -> None:
        self._orbax = ocp.Checkpointer(ocp.StandardCheckpointHandler())

    def save(self, folder: Path, arrays: Any) -> None:
        self._orbax.save(folder, args=ocp.args.StandardSave(arrays))

    def restore(self, folder: Path, like: Any) -> Any:
        return self._orbax.restore(folder, args=ocp.args.StandardRestore(like))
