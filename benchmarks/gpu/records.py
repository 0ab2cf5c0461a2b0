"""Results of the suite: one JSON file a part, with commit, versions and card, written atomically."""

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import children
from benchmarks.results import Row, row_to_json
from cojax.run.machine import read_facts
from cojax.storage.files import read_json, write_json

Record = Mapping[str, Any]
COMMIT_FILE = "COMMIT"  # beside the kit's code, which is no repository


def write_result(
    results_folder: Path, part_name: str, rows: Sequence[Row], seconds: float, about: Record | None = None
) -> None:
    """The result of a part that took `seconds`. Raises OSError with the fix where the disk refuses."""
    _write(results_folder, part_name, {"rows": [row_to_json(row) for row in rows]}, seconds, about)


def write_failure(
    results_folder: Path, part_name: str, reason: str, seconds: float, about: Record | None = None
) -> None:
    """In place of a result, one line that says why there is none."""
    _write(results_folder, part_name, {"failed": reason}, seconds, about)


def _write(results_folder: Path, part_name: str, outcome: Record, seconds: float, about: Record | None) -> None:
    """`about` without hardware is for a process that must not take the card."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    record = {"part": part_name, "when": now, "seconds": round(seconds, 1), **(about or read_facts()), **outcome}
    if (commit_path := children.ROOT / COMMIT_FILE).exists():
        record["commit"] = commit_path.read_text().strip()
    write_json(results_folder / f"{part_name}.json", record)


def read_record(results_folder: Path, part_name: str) -> Record | None:
    """The result of a part; None where there is none yet, or where the file is damaged: then it is measured again."""
    try:
        record = read_json(results_folder / f"{part_name}.json")
    except (OSError, ValueError):
        return None
    return record if "rows" in record or "failed" in record else None
