"""Durability: what was written or renamed is on disk once these return. Imports nothing of ours."""

from __future__ import annotations

import os
from pathlib import Path


def sync_file(path: Path) -> None:
    """Makes the content of a file durable. Raises OSError."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable: a rename is on disk only once its folder is. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
