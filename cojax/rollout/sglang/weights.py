"""Versions of the weights on a disk that trainer and servers share: written by one trainer, found by servers."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
from collections.abc import Iterable
from pathlib import Path

from cojax.policy.config import ModelConfig
from cojax.rollout.engine import Weights
from cojax.rollout.export import check_weights, prune_weights, read_label, write_weights
from cojax.rollout.sglang.server import Target
from cojax.storage.files import explain

_LOG = logging.getLogger(__name__)
# What file systems answer that know no locks.
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
_LOOKS = 5  # at a folder whose versions vanish while it is looked at


class WeightsFolder:
    """The versions in `folder`/weights/, one subfolder each; held by one process at a time until `close`.

    Raises OSError where the folder cannot be written, ValueError where another process holds it.
    """

    def __init__(self, folder: Path) -> None:
        self._versions, lock = folder.absolute() / "weights", folder.absolute() / "weights.lock"
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise explain(error, lock) from error
        try:
            # The kernel gives it back when this process dies.
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

    def write(self, weights: Weights, config: ModelConfig, dtype: str, label: str) -> Target:
        """Writes the arrays as the subfolder of their version. Raises what `write_weights` raises."""
        folder = self._versions / str(weights.version)
        write_weights(folder, config, weights.arrays(), dtype, label=label)
        return Target(folder, label)

    def prune(self, keep: Iterable[Path]) -> None:
        """Removes all versions but those to keep."""
        prune_weights(self._versions, keep)

    def close(self) -> None:
        """Lets another process have the folder. May be called twice."""
        if self._lock >= 0:
            # Not by closing alone: a forked child may hold a copy.
            with contextlib.suppress(OSError):
                fcntl.flock(self._lock, fcntl.LOCK_UN)
            os.close(self._lock)
            self._lock = -1


def newest(folder: Path, known: Target | None = None) -> Target | None:
    """The version written last to `folder`/weights/, whole and sound, under the label that its trainer expects.

    None where there is none; a `known` one is not examined again. A version that goes while it is looked at gives way
    to its successor. Raises DamagedFile for one that is broken.
    """
    for _ in range(_LOOKS):
        try:
            versions = [path for path in (folder.absolute() / "weights").iterdir() if path.name.isdigit()]
            # By time: a run that starts again from an old step writes lower numbers.
            found = max(versions, key=lambda path: (path.stat().st_mtime_ns, int(path.name)), default=None)
            if found is None:
                return None
            label = read_label(found)
            if Target(found, label) == known:
                return known
            check_weights(found)
            # Replaced meanwhile, one may have been read and the other checked.
            if read_label(found) == label:
                return Target(found, label)
        except FileNotFoundError:
            continue
    return None
