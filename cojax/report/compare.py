"""Compares runs on one page: curves over steps, figures, and the paired difference on every held-out task."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cojax.registry.commits import shortened
from cojax.report.figures import curves, headline, totals
from cojax.report.lineage import task_id_of
from cojax.report.page import render
from cojax.report.paired import paired
from cojax.report.pieces import replace_text
from cojax.report.run import Json, Run, read_run, task_scores

SCRIPTS = ("elements.js", "charts.js", "table.js", "compare.js")
TASKS = 20_000  # held-out tasks in the table
RUNS = 12  # as many as there are colours that can be told apart
QUERY = 300  # characters of a query
_CURVES = ("step", "success", "reward", "live_groups", "tasks", "dev")


def write_comparison(folders: Sequence[str | Path], path: str | Path) -> Path:
    """Writes the comparison of these runs to `path` and returns it. Differences are to the first run.

    Raises FileNotFoundError for a folder that is no run directory, ValueError for fewer than two runs or more than
    RUNS, and for one that is named twice.
    """
    if len(folders) < 2:
        raise ValueError(f"{len(folders)} runs to compare; name 2 to {RUNS}")
    check_folders(folders)
    path = Path(path)
    return replace_text(path, render(comparison([read_run(folder) for folder in folders]), SCRIPTS))


def check_folders(folders: Sequence[str | Path]) -> None:
    """Raises ValueError for a run that is named twice, also by two paths, and for more than RUNS. Reads no run."""
    named: dict[Path, str | Path] = {}
    for folder in folders:
        place = Path(folder).resolve()
        if place in named:
            first = named[place]
            also = "" if str(first) == str(folder) else f", also as {folder}"
            raise ValueError(f"{first} is named twice{also}; name each run once")
        named[place] = folder
    if len(folders) > RUNS:
        raise ValueError(f"{len(folders)} runs to compare; name at most {RUNS}")


def comparison(runs: Sequence[Run]) -> Json:
    """Everything the page shows, as JSON."""
    names = _names([run.folder.resolve() for run in runs])
    return {
        "name": "comparison",
        "runs": [
            {
                "name": name,
                "headline": headline(run),
                "seconds": totals(run)["seconds"],
                "settings": _settings(run),
                "commit": shortened(str(run.config.get("commit") or "")),
                "curves": {key: column for key, column in curves(run.metrics).items() if key in _CURVES},
            }
            for name, run in zip(names, runs, strict=True)
        ],
        "differing": _differing(runs),
        "pairs": _pairs(runs),
        "tasks": _tasks(runs),
    }


def _names(folders: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that differ from each other."""
    for depth in range(1, max(len(folder.parts) for folder in folders) + 1):
        names = ["/".join(folder.parts[-depth:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]


def _settings(run: Run) -> dict[str, str]:
    """The leaves of the configuration by dotted name, as text."""
    found: dict[str, str] = {}

    def walk(value: Any, name: str) -> None:
        if isinstance(value, dict) and value:
            for key, item in value.items():
                walk(item, f"{name}.{key}" if name else str(key))
        else:
            text = str(value)
            found[name] = text if len(text) <= QUERY else f"{text[:QUERY]} …"

    walk(run.config.get("config", {}), "")
    return {name: value for name, value in found.items() if name != "workdir"}


def _differing(runs: Sequence[Run]) -> list[str]:
    """The settings in which the runs differ."""
    every = [_settings(run) for run in runs]
    return sorted(name for name in {name for one in every for name in one} if len({one.get(name) for one in every}) > 1)


def _pairs(runs: Sequence[Run]) -> list[Json | None]:
    """For each run the difference of its final success to that of the first, over shared tasks; None for the first."""
    scores = [task_scores(run.final) for run in runs]
    found = [paired(scores[0], other) for other in scores[1:]]
    return [None, *(dataclasses.asdict(one) if one else None for one in found)]


def _tasks(runs: Sequence[Run]) -> Json:
    """Held-out tasks with a score in at least one run: id, query where it is known, and the score in each run."""
    scores = [task_scores(run.final) for run in runs]
    queries = {
        task_id_of(episode): episode["task"]["query"][:QUERY] for run in runs for episode in (*run.before, *run.after)
    }
    ids = list(dict.fromkeys(task for one in scores for task in one))
    rows = [[id, queries.get(id, ""), [one.get(id) for one in scores]] for id in ids[:TASKS]]
    return {"rows": rows, "total": len(ids)}
