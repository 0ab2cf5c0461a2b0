"""Compares runs: the figures of each, and the paired differences of their held-out results, task by task.

It prints them, and writes the page that `python -m experiments.report` writes for several runs.

python -m experiments.compare runs/plain runs/feedback            # runs/feedback minus runs/plain; compare.html
python -m experiments.compare runs/plain runs/feedback runs/own   # each of the others minus the first
python -m experiments.compare runs/plain runs/feedback --tasks    # and each evaluation task on which they differ

A difference is the mean over the evaluation tasks that both runs scored, with its 95 % interval over tasks
(cojax/report/figures.py) and the p-value of the exact sign test. It compares these two policies. To compare two
methods takes several seeds of each.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from rich.table import Table

from cojax.registry.source import shorten_commit
from cojax.report.console import TABLE_OPTIONS, format_time
from cojax.report.figures import build_curves, build_headline, paired_difference, sum_totals
from cojax.report.lineage import find_task_id
from cojax.report.page import render_page
from cojax.report.pieces import replace_text
from cojax.report.run import Json, Run, begin_text, describe_fork, read_run, read_scores
from cojax.storage.files import flat

PAGE_SCRIPTS = ("elements.js", "charts.js", "table.js", "compare.js")
MAX_TASKS = 20_000  # held-out tasks in the table
MAX_RUNS = 12  # as many as there are distinguishable colours
QUERY = 300  # characters of a query
_CURVE_NAMES = ("step", "success", "reward", "live_groups", "tasks", "dev")


def write_comparison(folders: Sequence[str | Path], path: str | Path) -> Path:
    """Writes the comparison of these runs with the first one to `path`, and returns the path.

    Raises FileNotFoundError for a folder that is not a run directory, and ValueError for fewer than two runs, for more
    than MAX_RUNS, and for a run that is named twice.
    """
    if len(folders) < 2:
        raise ValueError(f"{len(folders)} runs to compare; name 2 to {MAX_RUNS}")
    check_folders(folders)
    path = Path(path)
    return replace_text(path, render_page(build_comparison([read_run(folder) for folder in folders]), PAGE_SCRIPTS))


def check_folders(folders: Sequence[str | Path]) -> None:
    """Raises ValueError for a run that is named twice, even by two paths, and for more than MAX_RUNS. Reads no run."""
    folder_by_path: dict[Path, str | Path] = {}
    for folder in folders:
        path = Path(folder).resolve()
        if path in folder_by_path:
            first_spelling = folder_by_path[path]
            also_note = "" if str(first_spelling) == str(folder) else f", also as {folder}"
            raise ValueError(f"{first_spelling} is named twice{also_note}; name each run once")
        folder_by_path[path] = folder
    if len(folders) > MAX_RUNS:
        raise ValueError(f"{len(folders)} runs to compare; name at most {MAX_RUNS}")


def build_comparison(runs: Sequence[Run]) -> Json:
    """Everything the page shows, as JSON."""
    run_names = _find_shortest_names([run.folder.resolve() for run in runs])
    settings = [_read_settings(run) for run in runs]
    scores = [read_scores(run.final) for run in runs]
    return {
        "name": "comparison",
        "runs": [
            {
                "name": run_name,
                "headline": build_headline(run),
                "seconds": sum_totals(run)["seconds"],
                "settings": run_settings,
                "commit": shorten_commit(str(run.config.get("commit") or "")),
                "curves": {key: column for key, column in build_curves(run.metrics).items() if key in _CURVE_NAMES},
            }
            for run_name, run, run_settings in zip(run_names, runs, settings, strict=True)
        ],
        "differing": sorted(
            label for label in dict.fromkeys(chain(*settings)) if len({values.get(label) for values in settings}) > 1
        ),
        # Each run's final success minus that of the first run, over the tasks they share.
        "pairs": [None, *(paired_difference(scores[0], run_scores) for run_scores in scores[1:])],
        "tasks": _list_tasks(runs, scores),
        "forks": list_forks(runs),
    }


def _find_shortest_names(folders: Sequence[Path]) -> list[str]:
    """The shortest endings of the paths that distinguish all of them."""
    for depth in range(1, max(len(folder.parts) for folder in folders) + 1):
        run_names = ["/".join(folder.parts[-depth:]) for folder in folders]
        if len(set(run_names)) == len(run_names):
            return run_names
    return [str(folder) for folder in folders]


def _read_settings(run: Run) -> dict[str, str]:
    """The leaves of the configuration by dotted name, as text."""
    value_texts = {name: str(value) for name, value in flat(run.config.get("config", {})).items() if name != "workdir"}
    return {setting: begin_text(value_text, QUERY) for setting, value_text in value_texts.items()}


def _list_tasks(runs: Sequence[Run], scores: Sequence[Mapping[str, float]]) -> Json:
    """Held-out tasks with a score in at least one run: id, query if known, and the score in each run."""
    queries = {
        find_task_id(episode): episode["task"]["query"][:QUERY] for run in runs for episode in (*run.before, *run.after)
    }
    task_ids = list(dict.fromkeys(task for run_scores in scores for task in run_scores))
    rows = [
        [task, queries.get(task, ""), [run_scores.get(task) for run_scores in scores]] for task in task_ids[:MAX_TASKS]
    ]
    return {"rows": rows, "total": len(task_ids)}


def read_ended_run(folder: Path) -> Run:
    """Reads a finished run. Raises FileNotFoundError if it has not finished, and StorageError for a damaged file."""
    if missing := [name for name in ("summary.json", "final.json") if not (folder / name).exists()]:
        raise FileNotFoundError(
            f"no {missing[0]} in {folder}; expected the folder of a finished run. To finish it, run its command again"
        )
    return read_run(folder)


def run_sign_test(better: int, worse_count: int) -> float:
    """The p-value of the two-sided exact sign test, which ignores tasks with equal scores."""
    from scipy import stats  # imported here: it takes a second to load, and pages do not need it

    return float(stats.binomtest(better, better + worse_count).pvalue) if better + worse_count else 1.0


def _make_table(title: str, first_column: str, runs: Sequence[Run]) -> Table:
    """An empty table with a first column and a column for each run."""
    table = Table(title=title, **TABLE_OPTIONS)
    table.add_column(first_column, style="dim", no_wrap=True)
    for run in runs:
        table.add_column(str(run.folder), justify="right", overflow="fold")
    return table


def build_table(runs: Sequence[Run]) -> Table:
    """The figures of the runs, in a column each."""
    figure_table = _make_table("Results", "", runs)
    cells_by_title = {
        "held-out success, zero-shot": [_format_percent(run.summary.get("zero_shot")) for run in runs],
        "held-out success, final": [_format_percent(run.summary.get("final")) for run in runs],
        "steps": [f"{run.summary.get('steps', 0):,}" for run in runs],
        "tasks, start → end": [_format_pool(run.summary) for run in runs],
        "tokens sampled": [f"{run.summary.get('tokens', {}).get('sampled', 0):,}" for run in runs],
        "time": [format_time(run.summary.get("seconds", {}).get("total", 0.0)) for run in runs],
    }
    for row_title, cells in cells_by_title.items():
        figure_table.add_row(row_title, *cells)
    return figure_table


def build_differences(runs: Sequence[Run]) -> Table:
    """Each of the other runs minus the first, in a row each."""
    title, caption = f"Minus {runs[0].folder}, over the evaluation tasks of both", " ".join(list_forks(runs)) or None
    grid = Table(title=title, caption=caption, **TABLE_OPTIONS)
    for column in ("", "tasks", "points", "95 % interval", "better", "worse", "p"):
        grid.add_column(column, justify="right" if column else "left", style=None if column else "dim", overflow="fold")
    for run in runs[1:]:
        difference = paired_difference(read_scores(runs[0].final), read_scores(run.final))
        if difference is None:
            grid.add_row(str(run.folder), "fewer than 2 in common", *["–"] * 5)
            continue
        better, worse = difference["better"], difference["worse"]
        interval_text = f"{100 * difference['low']:+.1f} to {100 * difference['high']:+.1f}"
        cells = (str(difference["count"]), f"{100 * difference['mean']:+.1f}", interval_text, str(better), str(worse))
        grid.add_row(str(run.folder), *cells, f"{run_sign_test(better, worse):.2g}")
    return grid


def list_forks(runs: Sequence[Run]) -> list[str]:
    """A sentence about each fork among the runs, and then what one pair of runs cannot say; [] if none is a fork."""
    sentences = [f"{run.folder.resolve().name} is a {text}." for run in runs if (text := describe_fork(run.fork))]
    caution = "One pair of runs is one draw: the interval covers the tasks, not other sampling seeds (--repeats)."
    return [*sentences, caution] if sentences else []


def build_task_table(runs: Sequence[Run]) -> Table:
    """The evaluation tasks on which the runs differ, with the score of each run."""
    task_table = _make_table("Tasks that differ", "task", runs)
    scores_by_run = [read_scores(run.final) for run in runs]
    for task_id in runs[0].final.get("tasks", {}):
        scores = [run_scores.get(task_id) for run_scores in scores_by_run]
        if len(set(scores)) > 1:
            task_table.add_row(task_id, *("–" if score is None else f"{score:.2f}" for score in scores))
    return task_table


def _format_percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def _format_pool(summary: Mapping[str, Any]) -> str:
    initial_count, final_count = summary.get("tasks_initial"), summary.get("tasks_final")
    return "–" if initial_count is None or final_count is None else f"{initial_count:,} → {final_count:,}"
