"""Where a rollout host finds weights: versions that a trainer writes, or checkpoints of a run.

A server reads a model folder. What all processes of a trainer saved together, and checkpoints, are written as one here,
in memory where it fits.
"""

import contextlib
import fcntl
import logging
import math
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol, TextIO

import numpy as np

from cojax.durable import own_file
from cojax.policy.config import ModelConfig
from cojax.policy.parameters import parameters
from cojax.rollout.export import is_item, item_bytes, other_model, prune_weights, restore_item, write_weights
from cojax.rollout.sglang.server import LabelledWeights
from cojax.rollout.sglang.weights import newest_version
from cojax.run import trained
from cojax.storage.checkpoint import Checkpointer, CheckpointError
from cojax.storage.files import is_number, lock_folder

_LOG = logging.getLogger("cojax.serve")
_MEMORY, _NAME, _LOCK = Path("/dev/shm"), "cojax-weights-", ".lock"
_PATIENCE = 10.0  # seconds for a look under way to end
_SPARE = 1.5  # a version is kept in memory if so many of it are free
FAULTS = (OSError, ValueError, CheckpointError)


class Source(Protocol):
    """Where versions come from. `expected`, once set, is the model of which they must be."""

    expected: ModelConfig | None

    def newest(self) -> LabelledWeights | None:
        """The newest version as a model folder of this host; None where there is none. Raises one of FAULTS."""


class LocalFolders:
    """Model folders that this host makes, in `folder`; "" is /dev/shm where they fit, else the temporary folder.

    They are removed by `close`. Those of a process that was killed are removed by the next one.
    """

    def __init__(self, folder: str = "") -> None:
        self._folder, self._count = folder, 0
        self._roots: dict[Path, tuple[Path, TextIO]] = {}

    def make(self, size: int, write: Callable[[Path], None]) -> Path:
        """The next folder, of `size` bytes, filled by `write`. Raises what `write` raises, and OSError."""
        place = Path(self._folder) if self._folder else _MEMORY if _fits(size) else Path(tempfile.gettempdir())
        self._count += 1
        folder = self._root(place) / str(self._count)
        write(folder)
        return folder

    def prune(self, keep: Iterable[Path]) -> None:
        """Removes all folders but those to keep, and newer ones: they are not known elsewhere yet."""
        roots, kept = [root for root, _ in list(self._roots.values())], list(keep)
        newest = max((int(path.name) for path in kept if path.parent in roots), default=0)
        for root in roots:
            newer = (path for path in root.iterdir() if is_number(path.name) and int(path.name) > newest)
            prune_weights(root, [*kept, *newer])

    def close(self) -> None:
        """Removes everything."""
        for root, lock in self._roots.values():
            shutil.rmtree(root, ignore_errors=True)
            lock.close()
        self._roots.clear()

    def _root(self, place: Path) -> Path:
        """This process's own folder in `place`, locked while it lives."""
        if place not in self._roots:
            place.mkdir(parents=True, exist_ok=True)
            _sweep(place)
            root = Path(tempfile.mkdtemp(prefix=_NAME, dir=place)).absolute()
            self._roots[place] = root, lock_folder(root, "--config.sglang.local", _LOCK)
        return self._roots[place][0]


class Versions:
    """The versions that a trainer writes to `folder`/weights/."""

    def __init__(self, folder: Path, local: LocalFolders, expected: ModelConfig | None = None) -> None:
        self.expected = expected
        self._folder, self._local = folder, local
        self._known: LabelledWeights | None = None
        self._served: LabelledWeights | None = None
        self._damaged: tuple[LabelledWeights, int, ValueError] | None = None  # when it was written, and its error

    def newest(self) -> LabelledWeights | None:
        found = newest_version(self._folder, self._known)
        if found is None or found == self._known:
            return self._served
        if self.expected is not None and (difference := other_model(found.folder, self.expected)):
            raise ValueError(
                f"{found.folder} is of another model: {difference}. Another run writes there: give each its own "
                "--config.sglang.folder, and this host the --config.model.path of its run"
            )
        served = LabelledWeights(self._restored(found), found.label) if is_item(found.folder) else found
        self._known, self._served = found, served
        return served

    def _restored(self, found: LabelledWeights) -> Path:
        """The version as a model folder here. One that cannot be read is not read again and again."""
        began, written, size = time.monotonic(), found.folder.stat().st_mtime_ns, item_bytes(found.folder)
        if self._damaged is not None and self._damaged[:2] == (found, written):
            raise self._damaged[2]
        try:
            made = self._local.make(size, lambda folder: restore_item(found.folder, folder, found.label))
        except ValueError as error:
            self._damaged = found, written, error
            raise
        _LOG.info("%s restored to %s in %.1f s", found.folder, made, time.monotonic() - began)
        return made


class Checkpoints:
    """The newest sound checkpoint of the run in `run`, its parameters as `dtype`; "" is that in which it computes.

    No trainer needs to run.
    """

    def __init__(self, run: Path, local: LocalFolders, dtype: str = "", expected: ModelConfig | None = None) -> None:
        self.expected = expected
        self._run, self._local, self._dtype = run, local, dtype
        self._known: tuple[int, int] | None = None
        self._served: LabelledWeights | None = None

    def newest(self) -> LabelledWeights | None:
        folder = self._run / "checkpoints"
        steps = Checkpointer(folder).steps()
        if not steps:
            trained.settings_of(self._run)  # that it is a run at all
            return None
        # A run that is resumed from an older step writes the same numbers again.
        known = steps[-1], (folder / str(steps[-1])).stat().st_mtime_ns
        if known != self._known:
            self._served, self._known = self._written(trained.of_run(self._run)), known
        return self._served

    def _written(self, policy: trained.TrainedPolicy) -> LabelledWeights:
        label, model = f"step-{policy.step}-{policy.content}", policy.model
        if self._served is not None and self._served.label == label:
            return self._served
        dtype = self._dtype or model.dtype
        numbers = sum(math.prod(row.shape(model)) for row in parameters(model))

        def write(folder: Path) -> None:
            write_weights(folder, model, policy.weights().arrays(), dtype, label=label)
            if self.expected is not None and (difference := other_model(folder, self.expected)):
                raise ValueError(f"{self._run} is a run of another model: {difference}; correct --config.model.path")

        return LabelledWeights(self._local.make(numbers * np.dtype(dtype).itemsize, write), label)


class Watch:
    """Looks for the newest version every `poll` seconds, on a thread of its own: a network's folder may hang.

    `found` is the newest version that could be read; `changed` is called on that thread after each new one.
    `fault` says why the last look found none. A look that takes longer than `deadline` seconds is late.
    """

    def __init__(self, source: Source, poll: float, deadline: float, changed: Callable[[], object]) -> None:
        self._source, self._poll, self._deadline, self._changed = source, poll, deadline, changed
        self.found: LabelledWeights | None = None
        self.fault: Exception | None = None
        self.looked, self._stopped = threading.Event(), threading.Event()
        self._since = self._told = 0.0  # when the look under way began, on the monotonic clock; 0 between two looks
        self._thread = threading.Thread(target=self._look, name="newest weights", daemon=True)
        self._thread.start()

    def raise_if_late(self) -> None:
        """Raises TimeoutError if the look under way is late."""
        if (since := self._since) and time.monotonic() - since > self._deadline:
            raise TimeoutError(
                f"reading the newest version takes longer than sglang.sync_deadline={self._deadline:g} s"
            )

    def tell_if_late(self) -> None:
        """Logs, once for each look, that it is late."""
        try:
            self.raise_if_late()
        except TimeoutError as error:
            if self._told != self._since:
                _LOG.error("%s; the one before stays", error)
                self._told = self._since

    def stop(self) -> None:
        """Ends the thread; one that hangs is left behind."""
        self._stopped.set()
        self._thread.join(_PATIENCE)

    def _look(self) -> None:
        while not self._stopped.is_set():
            self._since = time.monotonic()
            before = self.found
            try:
                self.found, self.fault = self._source.newest() or self.found, None
            except Exception as error:  # whatever it is, the thread must go on looking
                error = error if isinstance(error, FAULTS) else ValueError(f"{type(error).__name__}: {error}")
                if str(error) != str(self.fault):
                    _LOG.warning("the newest version cannot be served, the one before stays: %s", error)
                self.fault = error
            self._since = 0.0
            self.looked.set()
            if self.found != before and not self._stopped.is_set():
                self._changed()
            self._stopped.wait(self._poll)


def _fits(size: int) -> bool:
    """Whether a folder of so many bytes fits into /dev/shm, which is memory, with some to spare."""
    try:
        free = shutil.disk_usage(_MEMORY).free
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free = min(free, int(lines["MemAvailable"].split()[0]) * 1024)
    except (OSError, KeyError, ValueError):
        return False
    return os.access(_MEMORY, os.W_OK) and free >= _SPARE * size


def _sweep(place: Path) -> None:
    """Removes folders of processes of ours that ended without removing them."""
    for root in place.glob(f"{_NAME}*"):
        with contextlib.suppress(OSError):
            if root.stat().st_uid != os.getuid():
                continue
            with open(root / _LOCK, opener=own_file) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(root, ignore_errors=True)
