"""The page shows tasks of every origin, also those of evolutions from outside."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from page_text import drawn, needs_node
from test_report import CHILD, SEED, data_of, metrics

import cojax.report
from cojax.pool import make_task_record
from cojax.report.page import write_report
from cojax.storage.files import Log, write_json

TONES = """
const shown = ["posterior", "frontier", "boundary", "dreams"].map(tone);
document.getElementById("main").append(`tones: ${shown.join(" ")} .`);
"""


@needs_node
def test_charts_and_filters_have_the_origins_of_all_tasks_ours_first(tmp_path: Path) -> None:
    run = tmp_path / "desk"
    write_json(run / "config.json", {"config": {"steps": 5}})
    origins = ("dreams", "frontier", "posterior", "boundary")
    counts = {"drafts": 4, "accepted": 4, "retained": 0, "discarded": 0}
    evolution = {**counts, "added": dict.fromkeys(origins, 1)}
    Log(run / "metrics.jsonl").append([metrics(1), metrics(4, evolution=evolution)])
    tasks = [SEED, *(dataclasses.replace(CHILD, query=f"{name} task", origin=name) for name in origins)]
    Log(run / "tasks.jsonl").append(make_task_record(task) for task in tasks)
    page = write_report(run).read_text()
    shown = drawn(page, data_of(page), tmp_path, TONES)
    text = " ".join(shown.split())
    assert "all posterior frontier boundary dreams save as CSV" in text  # the filters of the table
    for title in (
        "Pool tasks by origin",
        "New tasks accepted at each evolution, by origin",
    ):  # the legends of the charts
        assert "posterior frontier boundary dreams" in text.split(title, 1)[1][:200]
    assert "tones: var(--posterior) var(--frontier) var(--boundary) var(--outside) ." in text
    style = (Path(cojax.report.__file__).parent / "style.css").read_text()
    for name in ("posterior", "frontier", "boundary", "outside", "outside-second", "outside-third"):
        assert style.count(f"--{name}: #") == 3  # light, dark by the system, dark by choice
