"""Writes records to a small file system while it fills up, and checks what is there afterwards.

    python -m campaign.disk FOLDER SEED ID …      one JSON line a fault, by a process of its own

That process mounts a file system of two megabytes if the kernel allows it; otherwise it limits the size of a file.
Afterwards exactly the acknowledged records must be there, and writing must work again once there is room.
"""

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

from campaign.cases import ROOT, Violation, child, draw
from cojax.storage.episodes import Episodes
from cojax.storage.files import Log, StorageError, write_json

_SIZE = 2 * 2**20


def inject(ids: Sequence[str], seed: int, folder: Path, done: Callable[[], None]) -> list[Violation]:
    """Injects all faults in one process; reads its lines as they come."""
    target = folder / "disk"
    target.mkdir()
    command = child("campaign.disk", str(target), str(seed), *ids)
    found, answered = [], 0
    # Orbax prints a long message for every full disk.
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            answered += 1
            done()
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
        target = Path(folder) / id
        target.mkdir()
        name = rng.choice(sorted(_WRITERS))
        try:
            faults = list(_WRITERS[name](target, rng, mounted))
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
        shutil.rmtree(target, ignore_errors=True)


def _mount(folder: str) -> bool:
    """Mounts a file system that this process alone sees; False if the kernel does not allow it."""
    from environments.worker import kernel

    with contextlib.suppress(OSError, AttributeError):
        if os.geteuid():
            kernel.unshare(kernel.NEWUSER)
        kernel.unshare(kernel.NEWNS)
        kernel.mount("none", "/", None, kernel.REC | kernel.PRIVATE)
        kernel.mount("tmpfs", folder, "tmpfs", kernel.NOSUID | kernel.NODEV, f"size={_SIZE}")
        return True
    return False


@contextlib.contextmanager
def full(target: Path, rng: random.Random, mounted: bool) -> Iterator[None]:
    """Leaves little room or none on the disk for the duration of the block."""
    left = rng.choice((0, 0, 100, 5_000, 60_000))
    ballast = target / "ballast"
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


def _log(target: Path, rng: random.Random, mounted: bool) -> Iterator[str]:
    """Appends one record and many; an incomplete last line is no record."""
    log = Log(target / "log.jsonl")
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
    with full(target, rng, mounted):
        refused = [not append(rng.choice((1, 2, 40))) for _ in range(30)]
        if list(log.read()) != kept:
            yield "the log does not hold what was acknowledged while the disk was full"
    if not any(refused):
        yield "a full disk was not noticed"
    if not append(2) or list(log.read()) != kept:
        yield "the log does not go on once there is room"


def _replaced(target: Path, rng: random.Random, mounted: bool) -> Iterator[str]:
    """Replaces a JSON file, which must be the old or the new one."""
    path, value = target / "value.json", {"n": 0}
    write_json(path, value)
    with full(target, rng, mounted):
        for number in range(20):
            new: Any = {"n": number, "text": "x" * rng.randrange(200_000)}
            with contextlib.suppress(StorageError):
                write_json(path, new)
                value = new
            if json.loads(path.read_text()) != value:
                yield "the file is neither the old nor the new one"
    if [other.name for other in target.iterdir()] != ["value.json"]:
        yield "something is left beside the file"


def _episodes(target: Path, rng: random.Random, mounted: bool) -> Iterator[str]:
    """Writes episodes: those of a step must be there whole or not at all."""
    episodes, kept = Episodes(target / "episodes"), {}

    def write(step: int) -> None:
        records = [{"episode": f"{step}-{n}", "text": rng.randbytes(2_000).hex()} for n in range(rng.randrange(1, 30))]
        with contextlib.suppress(StorageError):
            episodes.write(step, records)
            kept[step] = records

    write(1)
    with full(target, rng, mounted):
        for step in range(2, 12):
            write(step)
    write(12)
    if 12 not in kept:
        yield "episodes cannot be written once there is room"
    if {step: episodes.read(step) for step in episodes.list_steps()} != kept:
        yield "the episodes are not those that were acknowledged"


def _checkpoints(target: Path, rng: random.Random, mounted: bool) -> Iterator[str]:
    """Saves checkpoints: an older one must stay the newest good one until another is complete."""
    import numpy as np
    from restored import restored

    from cojax.storage.checkpoint import Checkpointer

    keeper, like = Checkpointer(target / "checkpoints", keep=2), {"w": np.zeros(4_000, np.float32)}
    keeper.save(1, {"w": np.full(4_000, 1, np.float32)}, {"n": 1})
    good = 1
    with full(target, rng, mounted):
        for step in (2, 3):
            with contextlib.suppress(StorageError):
                keeper.save(step, {"w": rng.random() + np.zeros(4_000, np.float32)}, {"n": step})
                good = step
    if (found := restored(keeper, like)) is None or (found[0], found[2]["n"]) != (good, good):
        yield f"the newest good checkpoint is {found and found[0]}, expected {good}"
    keeper.save(4, {"w": np.full(4_000, 4, np.float32)}, {"n": 4})
    if (found := restored(keeper, like)) is None or found[0] != 4 or found[1]["w"][0] != 4:
        yield "no checkpoint can be saved once there is room"


_WRITERS: Mapping[str, Callable[[Path, random.Random, bool], Iterator[str]]] = {
    "log": _log, "JSON file": _replaced, "episodes": _episodes, "checkpoints": _checkpoints,
}  # fmt: skip

if __name__ == "__main__":
    main(*sys.argv[1:])
