"""Pieces of a report: data that the page does not hold, in scripts in a folder beside it, which it loads on demand.

A page opened from disk may load a script that lies beside it, and nothing else. A piece is one call with a name and
compressed JSON in Base64, so that a script contains no text of the run. Pieces of another report have another stamp.
"""

import base64
import hashlib
import json
import re
import zlib
from pathlib import Path
from typing import Any

from cojax.durable import replacing
from cojax.metrics import plain
from cojax.report.run import Json, Run
from cojax.storage.files import expect_file, expect_no_link

PIECES_FOLDER = "report_files"
PIECE_TASKS = 250  # tasks in a piece
# Names of pieces and of their temporary files, in former versions too.
_PIECE_FILE_PATTERN = re.compile(r"\.?(?:episodes-\d{6,}|tasks-\d{4,})\.(?:js|partial|js\.[0-9a-f]{16}\.tmp)")


def make_stamp(run: Run) -> str:
    """A hash of the configuration and of the sizes of stored episodes and logs, which is the same for equal runs."""
    log_files = [run.folder / name for name in ("metrics.jsonl", "tasks.jsonl", "drafts.jsonl")]
    paths = [*log_files, *(run.episodes.path(step) for step in run.episodes.list_steps())]
    file_sizes = [[path.name, path.stat().st_size] for path in paths if path.exists()]
    fingerprint = json.dumps([plain(run.config), file_sizes], sort_keys=True)
    return hashlib.sha256(fingerprint.encode()).hexdigest()[:16]


def replace_text(path: Path, text: str) -> Path:
    """Writes a derived file by renaming a complete one, so that no reader and no interruption finds half of it."""
    expect_file(path)
    with replacing(path, sync=False) as derived_file:
        derived_file.write(text.encode())
    return path


def name_steps_piece(step: int) -> str:
    """The name of the piece with the episodes of a step."""
    return f"episodes-{step:06d}"


def name_tasks_piece(piece_number: int) -> str:
    """The name of the piece with the histories of tasks number × PIECE_TASKS and following."""
    return f"tasks-{piece_number:04d}"


def piece(stamp: str, name: str, content: Any) -> str:
    """The script of a piece, with null for NaN and infinity."""
    payload = zlib.compress(strict_json(content).encode(), 4)
    return f'cojaxPiece("{stamp}","{name}","{base64.b64encode(payload).decode()}");\n'


class Pieces:
    """The pieces of one report: files in a folder of `report_folder`, or without it the scripts by name, in memory."""

    def __init__(self, stamp: str, report_folder: Path | None = None) -> None:
        self.stamp = stamp
        self.folder = report_folder / PIECES_FOLDER if report_folder else None
        self.scripts: dict[str, str] = {}
        self.names: set[str] = set()

    def put(self, name: str, content: Any) -> None:
        script = piece(self.stamp, name, content)
        self.names.add(name)
        if self.folder is None:
            self.scripts[name] = script
        else:
            expect_no_link(self.folder)
            self.folder.mkdir(exist_ok=True)
            replace_text(self.folder / f"{name}.js", script)

    def remove_old(self) -> None:
        """Removes the pieces of earlier reports, and the folder if that leaves it empty."""
        if self.folder is None or self.folder.is_symlink() or not self.folder.is_dir():
            return
        for path in list(self.folder.iterdir()):
            if _PIECE_FILE_PATTERN.fullmatch(path.name) and path.name not in {f"{name}.js" for name in self.names}:
                path.unlink()
        if not any(self.folder.iterdir()):
            self.folder.rmdir()

    def describe(self) -> Json:
        """The facts that the page needs to load pieces."""
        return {"folder": PIECES_FOLDER, "stamp": self.stamp, "tasks": PIECE_TASKS}


def strict_json(value: Any) -> str:
    """The value as compact ASCII JSON, with null for every number that is not finite."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(plain(value), separators=(",", ":"), allow_nan=False)
