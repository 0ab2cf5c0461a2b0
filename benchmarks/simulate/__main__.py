"""The command: predicts the steps of other settings from the times of runs, or of machines of many accelerators."""

import argparse
import dataclasses
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import benchmarks.simulate
from benchmarks.simulate.accelerators import Assumptions, layouts, shaped, system
from benchmarks.simulate.measured import measure, median_step
from benchmarks.simulate.steps import Step, System, simulate
from benchmarks.simulate.times import RunTimes, read, write
from cojax.command import CommandLineParser

# Simulated steps of a prediction, and of each layout of accelerators; the first of them begins without overlap.
_STEPS, _LAYOUT_STEPS = 400, 11
_PARTS = ("rollout", "update", "sync", "evolution", "host")
Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0; 2 for runs or settings that make no sense."""
    given = _parser().parse_args(arguments)
    try:
        runs = [read(path) for path in given.runs]
        if given.keep:
            for run in runs:
                write(Path(given.keep) / f"{run.name}.json.gz", run)
        rows = _rows(given, runs)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if given.json:
        print(json.dumps({"rows": rows}))
    else:
        Console(width=None if sys.stdout.isatty() else 200).print(_table(rows))
    return 0


def _rows(given: argparse.Namespace, runs: Sequence[RunTimes]) -> list[Row]:
    if given.accelerators:
        assumed = Assumptions(**{f.name: getattr(given, f.name) for f in dataclasses.fields(Assumptions)})
        return [
            row
            for tasks in given.tasks or [32]
            for count in given.accelerators
            for row in accelerators(runs, assumed, count, tasks, given.group_size, given.seed)
        ]
    if given.against:
        return [against(runs, read(path), given.seed) for path in given.against]
    return [
        _described({"servers": servers, "tasks": tasks, "conversations": conversations}, steps)
        for servers in given.servers or sorted({run.servers for run in runs})
        for tasks in given.tasks or [8]
        for conversations in given.conversations or sorted({run.conversations for run in runs})
        for steps in [
            simulate(measure(runs, servers).system(tasks, given.group_size, conversations), _STEPS, given.seed)
        ]
    ]


def against(runs: Sequence[RunTimes], other: RunTimes, seed: int) -> Row:
    """The median step of a run as simulated from `runs`, beside the measured one. Raises ValueError if it is one."""
    if other in runs:
        raise ValueError(f"{other.name} is one of the runs that the distributions are from; a check needs another")
    found = dataclasses.replace(
        measure(runs, other.servers).system(other.tasks, other.group_size, other.conversations),
        evolve_every=other.evolve_every,
        staleness=other.staleness,
        quorum=other.quorum,
        evolve_beside=other.staleness > 0,  # as a run has it whose explorer is not its policy
    )
    predicted = statistics.median(step.seconds for step in simulate(found, _STEPS, seed))
    return {
        "run": other.name,
        "servers": other.servers,
        "conversations": other.conversations,
        "episodes": other.tasks * other.group_size,
        "staleness": other.staleness,
        "steps": len(other.steps),
        "measured_seconds": median_step(other),
        "predicted_seconds": predicted,
        "error": predicted / median_step(other) - 1,
    }


def accelerators(
    runs: Sequence[RunTimes], assumed: Assumptions, count: int, tasks: int, group_size: int, seed: int
) -> list[Row]:
    """The layout that learns from the most episodes a second at each staleness and quorum, the best of all first."""
    groups = shaped([group for run in runs for step in run.steps for group in step.groups], assumed)
    rows = []
    for staleness, quorum in ((0, 1.0), (0, 0.75), (1, 1.0), (1, 0.75)):
        found = []
        for layout in layouts(count, assumed):
            if layout.shared and staleness:
                continue  # the same accelerators cannot sample and learn at once
            made: System = system(
                groups, assumed, layout, tasks=tasks, group_size=group_size, staleness=staleness, quorum=quorum
            )
            about = {
                "accelerators": count,
                "episodes": tasks * group_size,
                "staleness": staleness,
                "quorum": quorum,
                "learner": "all, in turn" if layout.shared else layout.learner,
                "servers": made.servers,
                "conversations": made.conversations,
            }
            found.append(_described(about, simulate(made, _LAYOUT_STEPS, seed)[1:]))
        rows.append(max(found, key=lambda row: row["learned_per_second"]))
    return sorted(rows, key=lambda row: -row["learned_per_second"])


def _described(about: Row, steps: Sequence[Step]) -> Row:
    """The row of these steps: their median, the share of each part in all their seconds, episodes learned a second."""
    seconds = sum(step.seconds for step in steps)
    return {
        **about,
        "step_seconds": statistics.median(step.seconds for step in steps),
        **{part: sum(getattr(step, part) for step in steps) / seconds for part in _PARTS},
        "generating": statistics.fmean(step.generating for step in steps),
        "learned_per_second": sum(step.learned for step in steps) / seconds,
    }


def _parser() -> CommandLineParser:
    parser = CommandLineParser("python -m experiments.simulate", benchmarks.simulate.__doc__, allow_abbrev=False)
    counts: Mapping[str, Any] = {"type": _counts, "metavar": "N,N,…"}
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run directory, or a file that --keep wrote")
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output")
    parser.add_argument("--keep", metavar="FOLDER", help="store the times of the runs in files of this folder")
    parser.add_argument("--against", nargs="+", metavar="RUN", help="predict these other runs, and compare")
    parser.add_argument("--servers", **counts, help="numbers of servers; those of the runs without it")
    parser.add_argument("--conversations", **counts, help="numbers of conversations at once; those of the runs")
    parser.add_argument("--tasks", **counts, help="tasks a step (8; with --accelerators 32)")
    parser.add_argument("--group-size", type=_count, default=8, metavar="N", help="episodes of each task (8)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of all draws (0)")
    parser.add_argument("--accelerators", **counts, help="simulate machines of so many accelerators instead")
    group = parser.add_argument_group("assumptions about accelerators", Assumptions.__doc__)
    for field in dataclasses.fields(Assumptions):
        kind = type(field.default)
        group.add_argument(f"--{field.name.replace('_', '-')}", type=kind, default=field.default, metavar="N",
                           help=f"({field.default:g})")  # fmt: skip
    return parser


def _count(text: str) -> int:
    if (value := int(text)) < 1:
        raise ValueError
    return value


def _counts(text: str) -> list[int]:
    return [_count(part) for part in text.split(",")]


def _table(rows: Sequence[Row]) -> Table:
    table = Table(title="a row for each prediction; parts are shares of the time", title_justify="left")
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*(f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values()))
    return table
