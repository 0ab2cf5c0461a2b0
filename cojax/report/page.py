"""Writes report.html of a run or an evaluation: one file that makes no network requests.

Queries and observations are untrusted. They reach the page only as JSON in a data block whose `<`, `>` and `&` are
escaped. The script adds them as text nodes. The content policy runs no script but this one, by its hash.
"""

import base64
import dataclasses
import hashlib
import html
import importlib.resources
import json
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from cojax.report import figures, origins
from cojax.report.episodes import EpisodeIndex, TokenDecoder, compact, follow, make_decoder, pair_up, pick, pick_within
from cojax.report.exchanges import collect_texts, name_expedition
from cojax.report.lineage import TaskHistory, find_task_id, read_histories
from cojax.report.pieces import PIECE_TASKS, Pieces, make_stamp, name_tasks_piece, replace_text, strict_json
from cojax.report.run import Json, Run, begin_text, describe_fork, describe_origin, read_run, read_sound_json
from cojax.storage.files import Log

PAGE_SCRIPTS = (
    "elements.js", "charts.js", "table.js", "overview.js", "taskset.js", "origins.js", "exchanges.js", "pieces.js",
    "tasks.js", "groups.js", "viewer.js", "pairs.js", "live.js", "start.js",
)  # fmt: skip
EVALUATION_SCRIPTS = ("elements.js", "table.js", "pieces.js", "groups.js", "viewer.js", "evaluation.js")
MAX_EVALUATION_BYTES = 12_000_000  # of episodes in one page
MAX_HISTORY_BYTES = 1_500_000  # bytes of histories of tasks in the page
MAX_ROW_BYTES = 2_000_000  # bytes of the table's rows of tasks whose histories are not in the page
DRAFT_BYTES = 300_000
MAX_DRAFTS = 300  # drafts that were not accepted
MAX_TEXT_CHARACTERS = 600  # characters of a query or a line of evidence
MAX_ENTRIES = 60  # lines of evidence, actions of a solution
MAX_LINES = 12  # entries of a list in a context of exploration
MAX_VISITS = 40  # the newest visits of a task


def write_report(folder: str | Path) -> Path:
    """Writes `folder`/report.html from whatever the run directory holds and returns its path.

    Data that one page does not hold goes to report_files/ beside it.
    Raises FileNotFoundError when `folder` is not a run directory.
    """
    run = read_run(folder)
    pieces = Pieces(make_stamp(run), run.folder)
    page_path = replace_text(run.folder / "report.html", render_page(build_contents(run, pieces)))
    pieces.remove_old()
    return page_path


def write_evaluation_report(folder: str | Path) -> Path:
    """Writes `folder`/report.html, and report-2.html … if one page does not hold every episode.

    Returns the path of the first page.
    Raises FileNotFoundError when `folder` holds no evaluation that has ended, StorageError for a damaged file.
    """
    folder = Path(folder)
    result, config = _read_result(folder / "result.json"), _read_result(folder / "config.json")
    split_order = {split: position for position, split in enumerate(result["splits"])}
    # The last record of an episode that was played again counts.
    record_by_episode = {
        record["episode"]: record for record in Log(folder / "episodes.jsonl").read() if record["split"] in split_order
    }
    episodes = sorted(record_by_episode.values(), key=lambda record: (split_order[record["split"]], record["episode"]))
    pages = list(_split_pages(episodes, make_decoder(folder)))
    page_names = ["report.html", *(f"report-{page_number}.html" for page_number in range(2, len(pages) + 1))]
    for page_name, page_views in zip(page_names, pages, strict=True):
        page_data = {
            "name": f"evaluation of {folder.resolve().name}",
            "config": config,
            "result": result,
            "origin": describe_origin(result["origin"]) if "origin" in result else "",
            "tasks": [],
            "episodes": page_views,
            "unit": "split",
            "counts": {"episodes": len(episodes)},
            "page": page_name,
            "pages": page_names,
        }
        replace_text(folder / page_name, render_page(page_data, EVALUATION_SCRIPTS))
    for old_path in folder.glob("report-*.html"):
        if re.fullmatch(r"report-\d+\.html", old_path.name) and old_path.name not in page_names:
            old_path.unlink()
    return folder / page_names[0]


def _split_pages(records: list[Json], decode: TokenDecoder | None) -> Iterator[list[Json]]:
    """The episodes by page, at least one page. A page takes MAX_EVALUATION_BYTES, unless one episode is larger."""
    page_views: list[Json] = []
    used_bytes = 0
    for record in records:
        view = {**compact(record, find_task_id(record), 0, decode), "step": record["split"]}
        view_bytes = len(json.dumps(view))
        if page_views and used_bytes + view_bytes > MAX_EVALUATION_BYTES:
            yield page_views
            page_views, used_bytes = [], 0
        page_views.append(view)
        used_bytes += view_bytes
    yield page_views


def _read_result(path: Path) -> Json:
    if not path.exists():
        raise FileNotFoundError(f"no {path.name} in {path.parent}; run python -m experiments.evaluate to its end")
    return read_sound_json(path, "Evaluate again with the same --out.")


def build_contents(run: Run, pieces: Pieces | None = None, index: EpisodeIndex | None = None) -> Json:
    """Everything the page shows, as JSON; data that one page does not hold goes to `pieces`, by default in memory.

    With `index`, the page holds no texts of episodes, and only steps that are new since the last call are read.
    """
    pieces, episodes, source_counts = pieces or Pieces(""), list[Json](), [0, 0]
    if index is None:
        source_ids = {task["lineage"]["episode"] for task in run.synthesized_tasks}
        episodes, source_counts = pick(run, source_ids, index := EpisodeIndex(), pieces)
    else:
        follow(run, index)
    task_histories, synthesized_ids = read_histories(run, index.rewards), {task["id"] for task in run.synthesized_tasks}
    new_tasks = [task for task in task_histories if task.id in synthesized_ids]
    task_views = [_render_task(task, run) for task in new_tasks]
    page_views = pick_within(task_views, MAX_HISTORY_BYTES)
    if len(page_views) < len(task_views):
        for first_task in range(0, len(task_views), PIECE_TASKS):
            pieces.put(name_tasks_piece(first_task // PIECE_TASKS), task_views[first_task : first_task + PIECE_TASKS])
    page_ids = {task["id"] for task in page_views}
    refusals = [entry for entry in run.numbered_drafts() if entry[1]["verdict"]["status"] != "accepted"]
    initial_count = sum(not draft["step"] for _, draft in refusals)  # drafts of D_0; the others are of the evolutions
    return {
        **_collect_figures(run, task_histories, refusals),
        "tasks": _list_rows(task_views, page_ids),
        "exchanges": collect_texts([task for task in new_tasks if task.id in page_ids], run.folder / "journal.jsonl"),
        "pairs": pair_up(run),
        "episodes": episodes,
        "index": index.build_index(),
        "pieces": pieces.describe() if pieces.names else None,
        "counts": {
            "tasks": len(task_views),
            "histories": len(page_views),
            "episodes": index.group_count,
            "sources": source_counts,
            "drafts": [initial_count, len(refusals) - initial_count],
        },
    }


def _collect_figures(run: Run, tasks: Sequence[TaskHistory], refusals: Sequence[tuple[str, Json]]) -> Json:
    """What the page shows above its lists, and the drafts that were not accepted."""
    return {
        "name": run.folder.resolve().name,
        "config": run.config,
        "fork": describe_fork(run.fork),
        "kinds": run.kinds,
        "headline": figures.build_headline(run),
        "curves": figures.build_curves(run.metrics),
        "agents": figures.build_agent_curves(run.metrics),
        "evolutions": figures.list_evolutions(run),
        "pool": figures.count_pool(run),
        "totals": figures.sum_totals(run),
        "helped": figures.average_first_and_last(tasks),
        "quality": figures.build_quality_curves(run),
        "lengths": figures.count_lengths(run),
        "conversion": figures.build_conversion(run),
        "feedback": figures.measure_feedback(run),
        "worth": origins.build_worth(run, tasks),
        "gains": origins.build_gains(run),
        "drafts": pick_within([_render_draft(*entry) for entry in figures.evenly(refusals, MAX_DRAFTS)], DRAFT_BYTES),
        "unit": "step",
    }


def _list_rows(tasks: Sequence[Json], page_ids: Collection[str]) -> list[Json]:
    """The tasks of the table, in the order of the pool: those in `page_ids` with their histories, the others as rows.

    A row has the number of its task, which identifies its piece. Rows are left out evenly beyond MAX_ROW_BYTES.
    """
    short_rows = [
        {
            "number": task_number,
            **{field_name: task[field_name] for field_name in ("id", "step", "origin", "source_episode", "visits")},
            "query": task["query"][:200],
            "actions": len(task["solution"]),
        }
        for task_number, task in enumerate(tasks)
        if task["id"] not in page_ids
    ]
    row_by_id = {row["id"]: row for row in pick_within(short_rows, MAX_ROW_BYTES)}
    page_rows = [task if task["id"] in page_ids else row_by_id.get(task["id"]) for task in tasks]
    return [row for row in page_rows if row is not None]


def render_page(data: Json, scripts: Sequence[str] = PAGE_SCRIPTS) -> str:
    """The page with its data, drawn by these scripts."""
    style = _read_asset("style.css")
    script = f'(() => {{\n"use strict";\n{"".join(_read_asset(name) for name in scripts)}}})();\n'
    # Pieces are scripts that this script adds; a live page asks its own server alone.
    loading_rule = " 'strict-dynamic'" if data.get("pieces") else ""
    connects = "connect-src 'self'; " if data.get("live") else ""
    value_by_mark = {
        "TITLE": html.escape(f"cojax · {data['name']}"),
        "POLICY": f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}{loading_rule}; {connects}"
        "img-src data:; base-uri 'none'; form-action 'none'",
        "STYLE": style,
        "SCRIPT": script,
        "DATA": embed_json(data),
    }
    # One pass: a value that holds {{ is not replaced.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: value_by_mark[match[1]], _read_asset("page.html"))


def embed_json(data: Any) -> str:
    """JSON without characters that an HTML parser could take for a tag; null for NaN and infinity."""
    return strict_json(data).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _render_task(task: TaskHistory, run: Run) -> Json:
    """The history of a task for the page: long texts cut, visits as rows of step, episodes, successes, mean reward."""
    fields = {field.name: _shorten(getattr(task, field.name)) for field in dataclasses.fields(task)}
    fields["expedition"] = name_expedition(task.expedition) if task.expedition else ""
    expedition_record = run.expeditions.get(task.expedition) if task.expedition else None
    fields["explored"] = _render_expedition(expedition_record) if expedition_record else None
    fields["parents"] = [[task_id, origin, _shorten(query)] for task_id, origin, query in task.parents[:12]]
    for field_name in ("visits", "parent_visits"):
        visits = getattr(task, field_name)[-MAX_VISITS:]
        fields[field_name] = [[visit.step, visit.episodes, visit.successes, round(visit.reward, 4)] for visit in visits]
    return fields


def _render_expedition(record: Json) -> Json:
    """The record of an expedition for the page: the explorer's context, and the results of its runs."""
    context = record.get("context") or {}
    return {
        "context": {
            name: _shorten(part[:MAX_LINES] if isinstance(part, list) else part) for name, part in context.items()
        },
        "runs": record.get("runs", [])[:MAX_LINES],
        "failures": _shorten(record.get("failures", [])[:MAX_LINES]),
        "error": _shorten(record.get("error", "")),
    }


def _render_draft(name: str, draft: Json) -> Json:
    """A record of drafts.jsonl for the page."""
    return {
        "name": name,
        "step": draft["step"],
        "origin": draft["origin"],
        "query": _shorten(draft["draft"]["query"]),
        "status": draft["verdict"]["status"],
        "evidence": _shorten(draft["verdict"]["evidence"]),
    }


def _shorten(value: Any) -> Any:
    if isinstance(value, str):
        return begin_text(value, MAX_TEXT_CHARACTERS)
    return [_shorten(item) for item in value[:MAX_ENTRIES]] if isinstance(value, (list, tuple)) else value


def _read_asset(file_name: str) -> str:
    return (importlib.resources.files("cojax.report") / file_name).read_text(encoding="utf-8")


def _hash(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"
