"""Compares runs: the figures of each, and the paired differences of their held-out results, task by task.

It prints them, and writes the page that `python -m experiments.report` writes of several runs.

python -m experiments.compare runs/plain runs/feedback            # runs/feedback minus runs/plain; compare.html
python -m experiments.compare runs/plain runs/feedback runs/own   # each of the others minus the first
python -m experiments.compare runs/plain runs/feedback --tasks    # and each evaluation task on which they differ

A difference is the mean over the evaluation tasks that both runs scored, with the 95 % interval over tasks of
cojax/report/figures.py, and p of the exact sign test. It holds for these two policies. Whether one method is better
than another takes several seeds of each.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from rich.table import Table

from cojax.registry.source import shortened
from cojax.report.console import TABLE, duration
from cojax.report.figures import curves, headline, paired, totals
from cojax.report.lineage import task_id_of
from cojax.report.page import render
from cojax.report.pieces import replace_text
from cojax.report.run import Json, Run, read_run, shortened_text, task_scores
from cojax.storage.files import flat

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
    settings = [_settings(run) for run in runs]
    scores = [task_scores(run.final) for run in runs]
    return {
        "name": "comparison",
        "runs": [
            {
                "name": name,
                "headline": headline(run),
                "seconds": totals(run)["seconds"],
                "settings": leaves,
                "commit": shortened(str(run.config.get("commit") or "")),
                "curves": {key: column for key, column in curves(run.metrics).items() if key in _CURVES},
            }
            for name, run, leaves in zip(names, runs, settings, strict=True)
        ],
        "differing": sorted(
            name for name in dict.fromkeys(chain(*settings)) if len({one.get(name) for one in settings}) > 1
        ),
        # The difference of each run's final success to that of the first, over shared tasks.
        "pairs": [None, *(paired(scores[0], other) for other in scores[1:])],
        "tasks": _tasks(runs, scores),
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
    found = {name: str(value) for name, value in flat(run.config.get("config", {})).items() if name != "workdir"}
    return {name: shortened_text(text, QUERY) for name, text in found.items()}


def _tasks(runs: Sequence[Run], scores: Sequence[Mapping[str, float]]) -> Json:
    """Held-out tasks with a score in at least one run: id, query where it is known, and the score in each run."""
    queries = {
        task_id_of(episode): episode["task"]["query"][:QUERY] for run in runs for episode in (*run.before, *run.after)
    }
    ids = list(dict.fromkeys(task for one in scores for task in one))
    rows = [[id, queries.get(id, ""), [one.get(id) for one in scores]] for id in ids[:TASKS]]
    return {"rows": rows, "total": len(ids)}


def ended_run(folder: Path) -> Run:
    """A run as it ended. Raises FileNotFoundError where it has not, and StorageError for a damaged file."""
    if missing := [name for name in ("summary.json", "final.json") if not (folder / name).exists()]:
        raise FileNotFoundError(
            f"no {missing[0]} in {folder}; expected the folder of a run that has ended. The same command of the run "
            "brings it to its end"
        )
    return read_run(folder)


def sign_test(better: int, worse: int) -> float:
    """p of the exact sign test, two-sided: equal tasks do not count."""
    from scipy import stats  # here: it takes a second to load, and pages do without

    return float(stats.binomtest(better, better + worse).pvalue) if better + worse else 1.0


def _columns(title: str, first: str, runs: Sequence[Run]) -> Table:
    """An empty table with a column a run, beside the first one."""
    shown = Table(title=title, **TABLE)
    shown.add_column(first, style="dim", no_wrap=True)
    for one in runs:
        shown.add_column(str(one.folder), justify="right", overflow="fold")
    return shown


def table(results: Sequence[Run]) -> Table:
    """The figures of each run, a column a run."""
    shown = _columns("Results", "", results)
    rows = {
        "held-out success, zero-shot": [_percent(one.summary.get("zero_shot")) for one in results],
        "held-out success, final": [_percent(one.summary.get("final")) for one in results],
        "steps": [f"{one.summary.get('steps', 0):,}" for one in results],
        "tasks, start → end": [_pool(one.summary) for one in results],
        "tokens sampled": [f"{one.summary.get('tokens', {}).get('sampled', 0):,}" for one in results],
        "time": [duration(one.summary.get("seconds", {}).get("total", 0.0)) for one in results],
    }
    for head, cells in rows.items():
        shown.add_row(head, *cells)
    return shown


def differences(results: Sequence[Run]) -> Table:
    """Each further run minus the first, a row a run."""
    shown = Table(title=f"Minus {results[0].folder}, over the evaluation tasks of both", **TABLE)
    for head in ("", "tasks", "points", "95 % interval", "better", "worse", "p"):
        shown.add_column(head, justify="right" if head else "left", style=None if head else "dim", overflow="fold")
    for one in results[1:]:
        found = paired(task_scores(results[0].final), task_scores(one.final))
        if found is None:
            shown.add_row(str(one.folder), "fewer than 2 in common", *["–"] * 5)
            continue
        better, worse = found["better"], found["worse"]
        interval = f"{100 * found['low']:+.1f} to {100 * found['high']:+.1f}"
        figures = (str(found["count"]), f"{100 * found['mean']:+.1f}", interval, str(better), str(worse))
        shown.add_row(str(one.folder), *figures, f"{sign_test(better, worse):.2g}")
    return shown


def by_task(results: Sequence[Run]) -> Table:
    """The evaluation tasks on which the runs differ, with the score of each run."""
    shown = _columns("Tasks that differ", "task", results)
    every = [task_scores(one.final) for one in results]
    for task in results[0].final.get("tasks", {}):
        scores = [one.get(task) for one in every]
        if len(set(scores)) > 1:
            shown.add_row(task, *("–" if score is None else f"{score:.2f}" for score in scores))
    return shown


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def _pool(summary: Mapping[str, Any]) -> str:
    start, end = summary.get("tasks_initial"), summary.get("tasks_final")
    return "–" if start is None or end is None else f"{start:,} → {end:,}"
