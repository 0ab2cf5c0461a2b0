"""Compares runs: the figures of each, and the paired differences of their held-out results, task by task.

It prints them, and writes the page that `python -m experiments.report` writes of several runs.

python -m experiments.compare runs/plain runs/feedback            # runs/feedback minus runs/plain; compare.html
python -m experiments.compare runs/plain runs/feedback runs/own   # each of the others minus the first
python -m experiments.compare runs/plain runs/feedback --tasks    # and each evaluation task on which they differ

A difference is the mean over the evaluation tasks that both runs scored, with the 95 % interval over tasks of
cojax/report/paired.py, and p of the exact sign test. It holds for these two policies. Whether one method is better than
another takes several seeds of each.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from scipy import stats

from cojax.report import command as report
from cojax.report.compare import check_folders
from cojax.report.console import CONSOLE, duration
from cojax.report.paired import paired
from cojax.settings.command_line import CommandLineParser
from cojax.storage.files import StorageError, read_json
from cojax.unicode_forms import plain


@dataclasses.dataclass(frozen=True)
class ComparedRun:
    """A finished run: its summary, and the score of each evaluation task after training, by the task's id."""

    folder: Path
    summary: Mapping[str, Any]
    scores: Mapping[str, float]


def result(folder: Path) -> ComparedRun:
    """A run as it ended. Raises FileNotFoundError where it has not, and StorageError for a damaged file."""
    found = {}
    for name in ("summary.json", "final.json"):
        try:
            found[name] = read_json(folder / name)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"no {name} in {folder}; expected the folder of a run that has ended. The same command of the run "
                "brings it to its end"
            ) from error
        except ValueError as error:
            raise StorageError(f"{folder / name} is not JSON ({error}). Restore it from a copy.") from error
    return ComparedRun(folder, found["summary.json"], found["final.json"].get("tasks", {}))


def sign_test(better: int, worse: int) -> float:
    """p of the exact sign test, two-sided: equal tasks do not count."""
    return float(stats.binomtest(better, better + worse).pvalue) if better + worse else 1.0


def table(results: Sequence[ComparedRun]) -> Table:
    """The figures of each run, a column a run."""
    shown = Table(title="Results", title_justify="left", title_style="bold", box=None, padding=(0, 2))
    shown.add_column("", style="dim", no_wrap=True)
    for one in results:
        shown.add_column(str(one.folder), justify="right", overflow="fold")
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


def differences(results: Sequence[ComparedRun]) -> Table:
    """Each further run minus the first, a row a run."""
    shown = Table(
        title=f"Minus {results[0].folder}, over the evaluation tasks of both", title_justify="left", title_style="bold",
        box=None, padding=(0, 2),
    )  # fmt: skip
    for head in ("", "tasks", "points", "95 % interval", "better", "worse", "p"):
        shown.add_column(head, justify="right" if head else "left", style=None if head else "dim", overflow="fold")
    for one in results[1:]:
        found = paired(results[0].scores, one.scores)
        if found is None:
            shown.add_row(str(one.folder), "fewer than 2 in common", *["–"] * 5)
            continue
        interval = f"{100 * found.low:+.1f} to {100 * found.high:+.1f}"
        figures = (str(found.count), f"{100 * found.mean:+.1f}", interval, str(found.better), str(found.worse))
        shown.add_row(str(one.folder), *figures, f"{sign_test(found.better, found.worse):.2g}")
    return shown


def by_task(results: Sequence[ComparedRun]) -> Table:
    """The evaluation tasks on which the runs differ, with the score of each run."""
    shown = Table(title="Tasks that differ", title_justify="left", title_style="bold", box=None, padding=(0, 2))
    shown.add_column("task", style="dim", no_wrap=True)
    for one in results:
        shown.add_column(str(one.folder), justify="right", overflow="fold")
    for task in results[0].scores:
        scores = [one.scores.get(task) for one in results]
        if len(set(scores)) > 1:
            shown.add_row(task, *("–" if score is None else f"{score:.2f}" for score in scores))
    return shown


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def _pool(summary: Mapping[str, Any]) -> str:
    start, end = summary.get("tasks_initial"), summary.get("tasks_final")
    return "–" if start is None or end is None else f"{start:,} → {end:,}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0, or 2 where a folder holds no run that has ended, is named twice, or the page cannot be made."""
    parser = CommandLineParser(
        prog="python -m experiments.compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("first", metavar="WORKDIR", type=Path, help="the run that the others are compared with")
    parser.add_argument("others", metavar="WORKDIR", type=Path, nargs="+", help="another run")
    parser.add_argument("--tasks", action="store_true", help="also list the evaluation tasks on which they differ")
    parser.add_argument("--out", default="compare.html", help="where the page goes")
    chosen = parser.parse_args(arguments)
    folders = (chosen.first, *chosen.others)
    try:
        check_folders(folders)
    except ValueError as error:
        parser.error(str(error))
    try:
        results = [result(folder) for folder in folders]
    except OSError as error:
        print(f"error: {plain(str(error))}", file=sys.stderr)
        return 2
    CONSOLE.print(table(results))
    CONSOLE.print(differences(results))
    if chosen.tasks:
        CONSOLE.print(by_task(results))
    return report.main([*map(str, folders), f"--out={chosen.out}"])
