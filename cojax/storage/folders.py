"""Folders that were made for a moment, and go again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path


def missing_folders(folder: Path) -> list[Path]:
    """The folder and those above it that do not exist, the deepest first."""
    folder = folder.absolute()
    return [path for path in (folder, *folder.parents) if not path.exists()]


def remove_empty(folders: Iterable[Path]) -> None:
    """Removes the folders in which nothing is. Never raises."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()
