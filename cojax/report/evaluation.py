"""Writes the report of an evaluation as offline HTML: its figures and every episode."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from cojax.report.episodes import Words, compact, words_of
from cojax.report.lineage import task_id_of
from cojax.report.page import render
from cojax.report.pieces import replace_text
from cojax.report.run import Json, origin_line
from cojax.storage.files import Log, StorageError, read_json

SCRIPTS = ("elements.js", "table.js", "pieces.js", "groups.js", "viewer.js", "evaluation.js")
BYTES = 12_000_000  # of episodes in one page


def write_evaluation_report(folder: str | Path) -> Path:
    """Writes `folder`/report.html, and report-2.html … where one page does not hold every episode.

    Returns the path of the first page.
    Raises FileNotFoundError when `folder` holds no evaluation that has ended, StorageError for a damaged file.
    """
    folder = Path(folder)
    result, config = _read(folder / "result.json"), _read(folder / "config.json")
    order = {split: place for place, split in enumerate(result["splits"])}
    # The last record of an episode that was played again counts.
    records = {
        record["episode"]: record for record in Log(folder / "episodes.jsonl").read() if record["split"] in order
    }
    ordered = sorted(records.values(), key=lambda record: (order[record["split"]], record["episode"]))
    pages = list(_pages(ordered, words_of(folder)))
    names = ["report.html", *(f"report-{number}.html" for number in range(2, len(pages) + 1))]
    for name, shown in zip(names, pages, strict=True):
        data = {
            "name": f"evaluation of {folder.resolve().name}",
            "config": config,
            "result": result,
            "origin": origin_line(result["origin"]) if "origin" in result else "",
            "tasks": [],
            "episodes": shown,
            "unit": "split",
            "counts": {"episodes": len(ordered)},
            "page": name,
            "pages": names,
        }
        replace_text(folder / name, render(data, SCRIPTS))
    for old in folder.glob("report-*.html"):
        if re.fullmatch(r"report-\d+\.html", old.name) and old.name not in names:
            old.unlink()
    return folder / names[0]


def _pages(records: list[Json], words: Words | None) -> Iterator[list[Json]]:
    """The episodes by page, at least one page. A page takes at most BYTES, unless a single episode is larger."""
    page: list[Json] = []
    used = 0
    for record in records:
        shown = {**compact(record, task_id_of(record), 0, words), "step": record["split"]}
        size = len(json.dumps(shown))
        if page and used + size > BYTES:
            yield page
            page, used = [], 0
        page.append(shown)
        used += size
    yield page


def _read(path: Path) -> Json:
    if not path.exists():
        raise FileNotFoundError(f"no {path.name} in {path.parent}; run python -m experiments.evaluate to its end")
    try:
        return read_json(path)
    except ValueError as error:
        raise StorageError(f"{path} is not JSON ({error}). Evaluate again with the same --out.") from error
