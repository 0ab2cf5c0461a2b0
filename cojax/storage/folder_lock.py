"""One process at a time in a folder."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import TextIO

from cojax.durable import own_file


class RunDirectoryError(RuntimeError):
    """The directory cannot be used for this run. The message says why and what to do."""


def lock_folder(folder: Path, setting: str, name: str = ".lock") -> TextIO:
    """Makes the folder and locks it until the returned file is closed or the process ends.

    Raises RunDirectoryError, which names the `setting` that chooses the folder, if it cannot be written or is in use.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / name, "a", opener=own_file)  # noqa: SIM115  the caller closes it
    except OSError as error:
        raise RunDirectoryError(
            f"cannot write {folder}: {error.strerror or error}. Choose another {setting}."
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise RunDirectoryError(
            f"another process is running in {folder}. Wait for it, stop it, or choose another {setting}."
        ) from error
    return lock
