"""A small file system that fills up while records are written to it.

    python -m experiments.campaign.disk FOLDER SEED ID …      one JSON line a fault, by a process of its own

That process mounts a file system of two megabytes where the kernel lets it; elsewhere a bound on the size of a file
stands in for it. Whatever was acknowledged is there afterwards, nothing else is, and writing goes on once there is
room.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cojax.storage.episodes import Episodes
from cojax.storage.files import Log, StorageError, write_json
from experiments.campaign.cases import Violation, draw

_SIZE = 2 * 2**20
_ROOT = Path(__file__).parents[2]


def inject(ids: Sequence[str], seed: int, folder: Path, told: Callable[[], None]) -> list[Violation]:
    """All of them in one process, whose lines are read as they come."""
    place = folder / "disk"
    place.mkdir()
    command = [sys.executable, "-m", "experiments.campaign.disk", str(place), str(seed), *ids]
    found, answered = [], 0
    # Orbax tells at length of every disk that is full.
    with subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            answered += 1
            told()
            found += [Violation("lost", *parts) for parts in json.loads(line)]
    if process.returncode or answered != len(ids):
        found.append(Violation("lost", ids[0], f"the process that filled disks ended with {process.returncode}"))
    return found


def main(folder: str, seed: str, *ids: str) -> None:
    mounted = _mount(folder)
    if not mounted:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for id in ids:
        rng = draw(int(seed), id)
        place = Path(folder) / id
        place.mkdir()
        name = rng.choice(sorted(_WRITERS))
        try:
            faults = list(_WRITERS[name](place, rng, mounted))
        except Exception as error:
            faults = [f"{type(error).__name__}: {error}"[:400]]
        print(
            json.dumps(
                [
                    (id, f"{name} on a {'full disk' if mounted else 'file that may not grow'}: {fault}")
                    for fault in faults
                ]
            ),
            flush=True,
        )
        shutil.rmtree(place, ignore_errors=True)


def _mount(folder: str) -> bool:
    """A file system of our own, seen by this process alone."""
    from environments.worker import kernel

    uid, gid = os.geteuid(), os.getegid()
    with contextlib.suppress(OSError, AttributeError):
        if uid:
            kernel.unshare(kernel.NEWUSER)
            kernel.map_user(uid, gid)
        kernel.unshare(kernel.NEWNS)
        kernel.mount("none", "/", None, kernel.REC | kernel.PRIVATE)
        kernel.mount("tmpfs", folder, "tmpfs", kernel.NOSUID | kernel.NODEV, f"size={_SIZE}")
        return True
    return False


@contextlib.contextmanager
def full(place: Path, rng: random.Random, mounted: bool) -> Iterator[None]:
    """Little room, or none, for as long as this lasts."""
    left = rng.choice((0, 0, 100, 5_000, 60_000))
    ballast = place / "ballast"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if mounted:
        with open(ballast, "wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 4_096)
        os.truncate(ballast, max(0, ballast.stat().st_size - left))
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (max(1, left), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        ballast.unlink(missing_ok=True)


def _log(place: Path, rng: random.Random, mounted: bool) -> Iterator[str]:
    """Appends of one record and of many; a torn tail is no record."""
    log = Log(place / "log.jsonl")
    kept: list[dict[str, Any]] = []

    def append(count: int) -> bool:
        records = [{"n": len(kept) + number, "text": "x" * rng.randrange(3_000)} for number in range(count)]
        try:
            log.append(records)
        except StorageError as error:
            if "\n" in str(error) or "log.jsonl" not in str(error):
                raise
            return False
        kept.extend(records)
        return True

    append(3)
    with full(place, rng, mounted):
        refused = [not append(rng.choice((1, 2, 40))) for _ in range(30)]
        if list(log.read()) != kept:
            yield "the log does not hold what was acknowledged while the disk was full"
    if not any(refused):
        yield "a full disk was not noticed"
    if not append(2) or list(log.read()) != kept:
        yield "the log does not go on once there is room"


def _replaced(place: Path, rng: random.Random, mounted: bool) -> Iterator[str]:
    """JSON files are the old or the new one."""
    path, value = place / "value.json", {"n": 0}
    write_json(path, value)
    with full(place, rng, mounted):
        for number in range(20):
            new: Any = {"n": number, "text": "x" * rng.randrange(200_000)}
            with contextlib.suppress(StorageError):
                write_json(path, new)
                value = new
            if json.loads(path.read_text()) != value:
                yield "the file is neither the old nor the new one"
    if [other.name for other in place.iterdir()] != ["value.json"]:
        yield "something is left beside the file"


def _episodes(place: Path, rng: random.Random, mounted: bool) -> Iterator[str]:
    """A step's episodes are there whole or not at all."""
    episodes, kept = Episodes(place / "episodes"), {}

    def write(step: int) -> None:
        records = [{"episode": f"{step}-{n}", "text": rng.randbytes(2_000).hex()} for n in range(rng.randrange(1, 30))]
        with contextlib.suppress(StorageError):
            episodes.write(step, records)
            kept[step] = records

    write(1)
    with full(place, rng, mounted):
        for step in range(2, 12):
            write(step)
    write(12)
    if 12 not in kept:
        yield "episodes cannot be written once there is room"
    if {step: episodes.read(step) for step in episodes.steps()} != kept:
        yield "the episodes are not those that were acknowledged"


def _checkpoints(place: Path, rng: random.Random, mounted: bool) -> Iterator[str]:
    """An older checkpoint stays the newest good one until another is whole."""
    import numpy as np

    from cojax.storage.checkpoint import Checkpointer

    keeper, like = Checkpointer(place / "checkpoints", keep=2), {"w": np.zeros(4_000, np.float32)}
    keeper.save(1, {"w": np.full(4_000, 1, np.float32)}, {"n": 1})
    good = 1
    with full(place, rng, mounted):
        for step in (2, 3):
            with contextlib.suppress(StorageError):
                keeper.save(step, {"w": rng.random() + np.zeros(4_000, np.float32)}, {"n": step})
                good = step
    if (found := keeper.restore(like)) is None or (found[0], found[2]["n"]) != (good, good):
        yield f"the newest good checkpoint is {found and found[0]}, expected {good}"
    keeper.save(4, {"w": np.full(4_000, 4, np.float32)}, {"n": 4})
    if (found := keeper.restore(like)) is None or found[0] != 4 or found[1]["w"][0] != 4:
        yield "no checkpoint can be saved once there is room"


_WRITERS: Mapping[str, Callable[[Path, random.Random, bool], Iterator[str]]] = {
    "log": _log, "JSON file": _replaced, "episodes": _episodes, "checkpoints": _checkpoints,
}  # fmt: skip

if __name__ == "__main__":
    main(*sys.argv[1:])
