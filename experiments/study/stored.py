"""Stored records: OUT/runs/ARM.jsonl.gz, one record a line, in the order of seeds.

The bytes follow from the records and the compressor: gzip stores no time and no name.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import io
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from cojax.durable import own_file
from cojax.storage.episodes import expanded
from cojax.storage.files import encode_record, explaining, parse_record, replace_file
from .comparison import mismatch
from .record import Record
from .runs import StudyRun
from .shape import check_record

_ENDING = ".jsonl.gz"
_LOCK = ".lock"


def path_of(out: Path, arm: str) -> Path:
    """The file with the records of an arm."""
    return out / "runs" / f"{arm}{_ENDING}"


def read_arm(out: Path, arm: str) -> dict[int, Record]:
    """Seed → record of an arm; empty where none is stored. Raises ValueError, with the path, for a damaged file."""
    path = path_of(out, arm)
    if not path.exists():
        return {}
    records: dict[int, Record] = {}
    where = str(path)
    try:
        for number, line in enumerate(expanded(path).splitlines(), 1):
            where = f"{path}, line {number}"
            record = check_record(parse_record(line), arm)
            if record["seed"] in records:
                raise ValueError(f"seed {record['seed']} has two records")
            records[record["seed"]] = record
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise ValueError(
            f"{where} cannot be read ({error}); restore the file, or delete it and run the study again"
        ) from error
    return records


def read_all(out: Path) -> dict[tuple[str, int], Record]:
    """(arm, seed) → record of all that is stored. Raises ValueError, with the path, for a damaged file."""
    return {(arm, seed): record for arm in _arms(out) for seed, record in read_arm(out, arm).items()}


def _arms(out: Path) -> list[str]:
    return sorted(path.name.removesuffix(_ENDING) for path in (out / "runs").glob(f"*{_ENDING}"))


def read_run(out: Path, name: str) -> Record:
    """The record of the run ARM-SEED. Raises ValueError for a missing one, naming the seeds or arms that there are, and
    for a damaged file."""
    arm, _, seed = name.rpartition("-")
    found = read_arm(out, arm) if arm and seed.isascii() and seed.isdigit() else {}
    if not found or int(seed) not in found:
        seeds, arms = ", ".join(map(str, sorted(found))), ", ".join(_arms(out)) or "none"
        known = f"{arm} has the seeds {seeds}" if found else f"expected ARM-SEED, of the arms {arms}"
        raise ValueError(f"no record {name!r} in {out / 'runs'}; {known}")
    return found[int(seed)]


def read_runs(out: Path, jobs: Iterable[StudyRun]) -> dict[tuple[str, int], Record]:
    """(arm, seed) → record of those of these runs that have one.

    Raises ValueError for a record of other settings and for a damaged file.
    """
    jobs = list(jobs)
    arms = {arm: read_arm(out, arm) for arm in dict.fromkeys(job.arm for job in jobs)}
    records: dict[tuple[str, int], Record] = {}
    for job in jobs:
        if (record := arms[job.arm].get(job.seed)) is None:
            continue
        if different := mismatch(record, job.config):
            raise ValueError(
                f"{path_of(out, job.arm)} holds the run {job.name} with other settings: {different}. Choose another "
                "--out and --runs for these settings, or delete the file and the run directories of its arm"
            )
        records[job.arm, job.seed] = record
    return records


def store(out: Path, record: Record) -> None:
    """Adds a record to those of its arm, in place of one of the same seed.

    Readers see the old file or the new one; of several writers each waits for the one before. Raises StorageError if
    writing fails, and ValueError for a damaged file and for a record that is not strict JSON.
    """
    path = path_of(out, record["arm"])
    with _locked(path.parent):
        records = {**read_arm(out, record["arm"]), record["seed"]: record}
        replace_file(path, _compressed(b"".join(encode_record(records[seed], path) for seed in sorted(records))))


def _compressed(content: bytes) -> bytes:
    # gzip.compress writes a header that differs between versions of Python.
    made = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=made, mtime=0) as file:
        file.write(content)
    return made.getvalue()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Makes the folder, and waits until no other thread or process holds it."""
    with explaining(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / _LOCK, "a", opener=own_file)  # noqa: SIM115  closed below, which frees it
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
