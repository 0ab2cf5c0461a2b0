"""Results of the suite: one JSON file a part, with commit, versions and card, written atomically."""

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import children
from benchmarks.results import Row, as_json
from cojax.run.machine import facts
from cojax.storage.files import read_json, write_json

Record = Mapping[str, Any]
COMMIT = "COMMIT"  # beside the kit's code, which is no repository


def write(out: Path, name: str, rows: Sequence[Row], seconds: float, about: Record | None = None) -> None:
    """The result of a part that took `seconds`. Raises OSError with the fix where the disk refuses."""
    _write(out, name, {"rows": [as_json(row) for row in rows]}, seconds, about)


def write_failure(out: Path, name: str, reason: str, seconds: float, about: Record | None = None) -> None:
    """In place of a result, one line that says why there is none."""
    _write(out, name, {"failed": reason}, seconds, about)


def _write(out: Path, name: str, found: Record, seconds: float, about: Record | None) -> None:
    """`about` without hardware is for a process that must not take the card."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    said = {"part": name, "when": now, "seconds": round(seconds, 1), **(about or facts()), **found}
    if (file := children.ROOT / COMMIT).exists():
        said["commit"] = file.read_text().strip()
    write_json(out / f"{name}.json", said)


def read(out: Path, name: str) -> Record | None:
    """The result of a part; None where there is none yet, or where the file is damaged: then it is measured again."""
    try:
        found = read_json(out / f"{name}.json")
    except (OSError, ValueError):
        return None
    return found if "rows" in found or "failed" in found else None
