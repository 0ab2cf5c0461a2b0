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
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cojax.report import figures, task_set
from cojax.report.episodes import pairs, select
from cojax.report.exchanges import Exchanges
from cojax.report.lineage import Lineages, TaskHistory, VisitIndex
from cojax.report.page_exchanges import expedition_name, journal_texts
from cojax.report.run import Json, Run, read_run
from cojax.storage.files import expect_file

SCRIPTS = (
    "elements.js", "charts.js", "overview.js", "taskset.js", "exchanges.js", "tasks.js", "viewer.js", "pairs.js",
    "start.js",
)  # fmt: skip
TASKS = 1_200  # synthesized tasks in the table
DRAFTS = 60  # drafts that were not accepted
TEXT = 600  # characters of a query or a line of evidence
LINES = 12  # entries of a list in a context of exploration


def write_report(folder: str | Path) -> Path:
    """Writes `folder`/report.html from whatever the run directory holds and returns its path.

    Raises FileNotFoundError when `folder` is no run directory.
    """
    run = read_run(folder)
    return write_page(run.folder / "report.html", render(contents(run)))


def write_page(path: Path, text: str) -> Path:
    """Writes a page by renaming a complete file: neither a reader nor an interruption sees half of one."""
    expect_file(path)
    partial = path.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
    return path


def contents(run: Run) -> Json:
    """Everything the page shows, as JSON."""
    visits = VisitIndex()
    selection = select(run, {task["lineage"]["episode"] for task in run.synthesized}, visits)
    lineages = Lineages(run, visits)
    histories = [lineages.history(task) for task in run.tasks]
    synthesized = {task["id"] for task in run.synthesized}
    shown = figures.evenly([task for task in histories if task.id in synthesized], TASKS)
    numbers = {id(draft): name for name, draft in run.numbered_drafts()}
    rejected = [draft for draft in run.drafts if draft["verdict"]["status"] != "accepted"]
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
        "tasks": [_task(task) for task in shown],
        "expeditions": _expeditions(run, shown),
        "exchanges": journal_texts(shown, Exchanges(run.folder / "journal.jsonl")),
        "drafts": [_draft(draft, numbers[id(draft)]) for draft in figures.evenly(rejected, DRAFTS)],
        "pairs": pairs(run),
        "unit": "step",
        "episodes": selection.episodes,
        "counts": {
            "tasks": len(synthesized),
            "episodes": selection.total,
            "sources": [selection.sources, selection.sources_total],
            "drafts": len(rejected),
        },
    }


def render(data: Json, scripts: Sequence[str] = SCRIPTS) -> str:
    """The page with its data, drawn by these scripts."""
    style = _part("style.css")
    script = f'(() => {{\n"use strict";\n{"".join(_part(name) for name in scripts)}}})();\n'
    parts = {
        "TITLE": html.escape(f"cojax · {data['name']}"),
        "POLICY": f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; img-src data:; "
        "base-uri 'none'; form-action 'none'",
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
    text = json.dumps(_finite(data), ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _task(task: TaskHistory) -> Json:
    """The history of a task for the page: long texts cut, visits as rows of step, episodes, successes, mean reward."""
    values = {field.name: _cut(getattr(task, field.name)) for field in dataclasses.fields(task)}
    values["expedition"] = expedition_name(task.expedition) if task.expedition else ""
    values["parents"] = [[parent.id, parent.origin, _cut(parent.query)] for parent in task.parents[:12]]
    for name in ("visits", "parent_visits"):
        rows = values[name][-40:]
        values[name] = [[visit.step, visit.episodes, visit.successes, round(visit.reward, 4)] for visit in rows]
    return values


def _expeditions(run: Run, tasks: Sequence[TaskHistory]) -> dict[str, Json]:
    """The expeditions that brought these tasks, by "STEP/NUMBER", as far as the run stored them."""
    wanted = {task.expedition for task in tasks if task.expedition in run.expeditions}
    found = {expedition_name(key): run.expeditions[key] for key in sorted(key for key in wanted if key)}
    return {
        name: {
            "context": {name: _cut(part[:LINES] if isinstance(part, list) else part) for name, part in context.items()}
            if (context := record.get("context"))
            else None,
            "runs": record.get("runs", []),
            "failures": _cut(record.get("failures", [])[:LINES]),
            "error": _cut(record.get("error", "")),
        }
        for name, record in found.items()
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
    return [_cut(item) for item in value] if isinstance(value, (list, tuple)) else value


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value


def _part(name: str) -> str:
    return (importlib.resources.files("cojax.report") / name).read_text(encoding="utf-8")


def _digest(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"
