"""The folder of weights that trainer and servers share: the trainer writes versions, servers find the newest."""

import contextlib
import errno
import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from cojax.durable import own_file
from cojax.policy.config import DamagedFile, ModelConfig
from cojax.rollout.engine import Weights
from cojax.rollout.export import (
    check_item,
    check_weights,
    is_item,
    prune_weights,
    read_label,
    write_item,
    write_weights,
)
from cojax.rollout.sglang.server import LabelledWeights
from cojax.storage.files import explain, is_number

_LOG = logging.getLogger(__name__)
# Errors of file systems without locks.
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
_ATTEMPTS = 5  # to read a folder whose versions vanish meanwhile
_PAUSE = 0.05  # seconds before another one
_SETTLED = 5.0  # seconds after which another host's files should be seen here


class WeightsFolder:
    """The versions in `folder`/weights/, one subfolder each, locked for this process until `close`.

    Raises OSError if the folder cannot be written, ValueError if another process has locked it.
    """

    def __init__(self, folder: Path) -> None:
        self._versions, lock = folder.absolute() / "weights", folder.absolute() / "weights.lock"
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            self._lock = own_file(lock, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise explain(error, lock) from error
        try:
            # The kernel releases the lock when this process dies.
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise ValueError(
                f"another run keeps its weights in {self._versions}; the two would replace each other's. "
                "Stop it, or choose another --config.sglang.folder"
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise explain(error, lock) from error
            _LOG.warning("%s cannot be locked: see to it that no other run uses this folder", lock)

    def write(self, weights: Weights, config: ModelConfig, dtype: str, label: str) -> LabelledWeights:
        """Writes the arrays as the subfolder of their version. Raises what `write_weights` raises."""
        folder = self._versions / str(weights.version)
        write_weights(folder, config, weights.arrays(), dtype, label=label)
        return LabelledWeights(folder, label)

    def save(
        self, version: int, save: Callable[[str, str], None], config: ModelConfig, dtype: str, label: str
    ) -> LabelledWeights:
        """Has `Weights.save` write the subfolder of the version. Raises what `write_item` raises."""
        folder = self._versions / str(version)
        write_item(folder, config, save, dtype, label)
        return LabelledWeights(folder, label)

    def prune(self, keep: Iterable[Path]) -> None:
        """Removes all versions except those to keep."""
        prune_weights(self._versions, keep)

    def close(self) -> None:
        """Releases the lock. May be called twice."""
        if self._lock >= 0:
            # Closing alone is not enough: a forked child may hold a copy.
            with contextlib.suppress(OSError):
                fcntl.flock(self._lock, fcntl.LOCK_UN)
            os.close(self._lock)
            self._lock = -1


def newest_version(folder: Path, known: LabelledWeights | None = None) -> LabelledWeights | None:
    """The version written last to `folder`/weights/, with the label that its trainer gave it; None for no version.

    Its files are checked, unless it is the `known` one. If a version is removed while it is read, its successor is
    returned. Raises DamagedFile for a version that is damaged or not whole.
    """
    missing: list[tuple[Path, int]] = []
    for _ in range(_ATTEMPTS):
        try:
            versions = [path for path in (folder.absolute() / "weights").iterdir() if is_number(path.name)]
            written = {path: path.stat().st_mtime_ns for path in versions}
        except FileNotFoundError:
            continue
        if not written:
            return None
        # By time, not by number: a run that is resumed from an old step writes lower numbers.
        found = max(written, key=lambda path: (written[path], int(path.name)))
        try:
            label = read_label(found)
            if LabelledWeights(found, label) == known:
                return known
            (check_item if is_item(found) else check_weights)(found)
            # It may have been replaced between reading the label and checking the files.
            if read_label(found) == label:
                return LabelledWeights(found, label)
        except FileNotFoundError as error:
            missing.append((found, written[found]))
            # One that is being removed changes meanwhile.
            settled = time.time() - written[found] / 1e9 > _SETTLED
            if settled and missing == [missing[0]] * _ATTEMPTS:
                raise DamagedFile(f"{found} is not whole: {error}") from error
            time.sleep(_PAUSE)
    return None
