"""Writes report.html: one file that makes no request to anywhere.

Queries and observations are untrusted. They reach the page only as JSON in a data block whose `<`, `>` and `&` are
escaped. The script adds them as text nodes. The content policy runs no script but this one, by its hash.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html
import importlib.resources
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from cojax.report import figures, origins, task_set, tools
from cojax.report.episodes import follow, pairs, pick_within, select
from cojax.report.exchanges import Exchanges
from cojax.report.finite import strict_json
from cojax.report.groups import EpisodeIndex
from cojax.report.lineage import Lineages, TaskHistory
from cojax.report.page_exchanges import expedition_name, journal_texts
from cojax.report.pieces import TASKS, Pieces, replace_text, stamp_of, tasks_piece
from cojax.report.run import Json, Run, read_run

SCRIPTS = (
    "elements.js", "charts.js", "table.js", "overview.js", "taskset.js", "origins.js", "exchanges.js", "pieces.js",
    "tasks.js", "groups.js", "viewer.js", "pairs.js", "live.js", "start.js",
)  # fmt: skip
HISTORIES = 1_500_000  # bytes of histories of tasks in the page
ROWS = 2_000_000  # bytes of the table's rows of tasks whose histories are not in the page
DRAFT_BYTES = 300_000
DRAFTS = 300  # drafts that were not accepted
TEXT = 600  # characters of a query or a line of evidence
LIST = 60  # lines of evidence, actions of a solution
LINES = 12  # entries of a list in a context of exploration
VISITS = 40  # the newest of a task


def write_report(folder: str | Path) -> Path:
    """Writes `folder`/report.html from whatever the run directory holds and returns its path.

    What one page does not hold goes to report_files/ beside it.
    Raises FileNotFoundError when `folder` is no run directory.
    """
    run = read_run(folder)
    pieces = Pieces(stamp_of(run), run.folder)
    page = replace_text(run.folder / "report.html", render(contents(run, pieces)))
    pieces.clear()
    return page


def contents(run: Run, pieces: Pieces | None = None, played: EpisodeIndex | None = None) -> Json:
    """Everything the page shows, as JSON; what one page does not hold goes to `pieces`, or is left out without.

    With `played`, the page holds no texts of episodes, and only steps that are new since the last call are read.
    """
    sources = {task["lineage"]["episode"] for task in run.synthesized}
    if played is None:
        selection = select(run, sources, played := EpisodeIndex(), pieces)
    else:
        selection = follow(run, played)
    shown, histories = _histories(run, played)
    tasks = [_task(task, run) for task in shown]
    kept = pick_within(tasks, HISTORIES)
    if len(kept) < len(tasks) and pieces is not None:
        for start in range(0, len(tasks), TASKS):
            pieces.put(tasks_piece(start // TASKS), tasks[start : start + TASKS])
    chosen = {task["id"] for task in kept}
    journal = Exchanges(run.folder / "journal.jsonl")
    return {
        **_figures(run, histories),
        "tasks": _rows(tasks, chosen),
        "exchanges": journal_texts([task for task in shown if task.id in chosen], journal),
        "pairs": pairs(run),
        "episodes": selection.episodes,
        "index": played.index(),
        "pieces": pieces.about() if pieces is not None and pieces.names else None,
        "counts": {
            "tasks": len(tasks),
            "histories": len(kept),
            "episodes": selection.total,
            "sources": [selection.sources, selection.sources_total],
            "drafts": _rejected_counts(run),
        },
    }


def _histories(run: Run, played: EpisodeIndex) -> tuple[list[TaskHistory], list[TaskHistory]]:
    """The histories of the synthesized tasks, in the order of the pool, and those of all tasks."""
    lineages = Lineages(run, played.visits)
    histories = [lineages.history(task) for task in run.tasks]
    synthesized = {task["id"] for task in run.synthesized}
    return [task for task in histories if task.id in synthesized], histories


def _figures(run: Run, histories: Sequence[TaskHistory]) -> Json:
    """What the page shows above its lists, and the drafts that were not accepted."""
    drafts = figures.evenly(_rejected(run), DRAFTS)
    numbers = {id(draft): name for name, draft in run.numbered_drafts()}
    return {
        "name": run.folder.resolve().name,
        "config": run.config,
        "kinds": run.kinds,
        "headline": figures.headline(run),
        "curves": figures.curves(run.metrics),
        "agents": figures.agents(run.metrics),
        "evolutions": figures.evolutions(run),
        "pool": figures.pool(run),
        "totals": figures.totals(run),
        "helped": figures.first_and_last_success(histories),
        "quality": task_set.quality(run),
        "lengths": task_set.lengths(run),
        "conversion": task_set.conversion(run),
        "feedback": task_set.feedback(run),
        "worth": origins.worth(run, histories),
        "gains": tools.gains(run),
        "drafts": pick_within([_draft(draft, numbers[id(draft)]) for draft in drafts], DRAFT_BYTES),
        "unit": "step",
    }


def _rejected(run: Run) -> list[Json]:
    return [draft for draft in run.drafts if draft["verdict"]["status"] != "accepted"]


def _rejected_counts(run: Run) -> list[int]:
    """Drafts that were not accepted: of D_0, and of the evolutions."""
    initial = sum(not draft["step"] for draft in _rejected(run))
    return [initial, len(_rejected(run)) - initial]


def _rows(tasks: Sequence[Json], whole: Collection[str]) -> list[Json]:
    """The tasks of the table, in the order of the pool: those in `whole` with their histories, the others as rows.

    A row has the number of its task, by which its piece is known. Rows are left out evenly beyond ROWS bytes.
    """
    rows = [
        {
            "number": number,
            **{name: task[name] for name in ("id", "step", "origin", "source_episode", "visits")},
            "query": task["query"][:200],
            "actions": len(task["solution"]),
        }
        for number, task in enumerate(tasks)
        if task["id"] not in whole
    ]
    kept = {row["id"]: row for row in pick_within(rows, ROWS)}
    found = [task if task["id"] in whole else kept.get(task["id"]) for task in tasks]
    return [task for task in found if task is not None]


def render(data: Json, scripts: Sequence[str] = SCRIPTS) -> str:
    """The page with its data, drawn by these scripts."""
    style = _part("style.css")
    script = f'(() => {{\n"use strict";\n{"".join(_part(name) for name in scripts)}}})();\n'
    # Pieces are scripts that this script adds; a live page asks its own server alone.
    loads = " 'strict-dynamic'" if data.get("pieces") else ""
    asks = "connect-src 'self'; " if data.get("live") else ""
    parts = {
        "TITLE": html.escape(f"cojax · {data['name']}"),
        "POLICY": f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}{loads}; {asks}"
        "img-src data:; base-uri 'none'; form-action 'none'",
        "STYLE": style,
        "SCRIPT": script,
        "DATA": embed(data),
    }
    head, *rest = _part("page.html").split("{{")
    for piece in rest:  # one pass: a value that holds {{ is not replaced
        name, text = piece.split("}}", 1)
        head += parts[name] + text
    return head


def embed(data: Any) -> str:
    """JSON without characters that an HTML parser could take for a tag; null for NaN and infinity."""
    return strict_json(data).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _task(task: TaskHistory, run: Run) -> Json:
    """The history of a task for the page: long texts cut, visits as rows of step, episodes, successes, mean reward."""
    values = {field.name: _cut(getattr(task, field.name)) for field in dataclasses.fields(task)}
    values["expedition"] = expedition_name(task.expedition) if task.expedition else ""
    explored = run.expeditions.get(task.expedition) if task.expedition else None
    values["explored"] = _explored(explored) if explored else None
    values["parents"] = [[parent.id, parent.origin, _cut(parent.query)] for parent in task.parents[:12]]
    for name in ("visits", "parent_visits"):
        rows = getattr(task, name)[-VISITS:]
        values[name] = [[visit.step, visit.episodes, visit.successes, round(visit.reward, 4)] for visit in rows]
    return values


def _explored(record: Json) -> Json:
    """The record of an expedition: what the explorer was told, and what its runs came to."""
    context = record.get("context") or {}
    return {
        "context": {name: _cut(part[:LINES] if isinstance(part, list) else part) for name, part in context.items()},
        "runs": record.get("runs", [])[:LINES],
        "failures": _cut(record.get("failures", [])[:LINES]),
        "error": _cut(record.get("error", "")),
    }


def _draft(draft: Json, name: str) -> Json:
    """A record of drafts.jsonl for the page."""
    return {
        "name": name,
        "step": draft["step"],
        "origin": draft["origin"],
        "query": _cut(draft["draft"]["query"]),
        "status": draft["verdict"]["status"],
        "evidence": _cut(draft["verdict"]["evidence"]),
    }


def _cut(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= TEXT else f"{value[:TEXT]} …"
    return [_cut(item) for item in value[:LIST]] if isinstance(value, (list, tuple)) else value


def _part(name: str) -> str:
    return (importlib.resources.files("cojax.report") / name).read_text(encoding="utf-8")


def _digest(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"
