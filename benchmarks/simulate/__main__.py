"""The command: predicts the steps of other settings from the times of runs, or of machines of many accelerators."""

import argparse
import dataclasses
import itertools
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import benchmarks.simulate
from benchmarks.simulate.accelerators import Assumptions, list_layouts, make_system, shape_episodes
from benchmarks.simulate.measured import measure_runs, median_step
from benchmarks.simulate.steps import Step, System, simulate_steps
from benchmarks.simulate.times import RunTimes, read_run, write_run
from cojax.command import CommandLineParser

# Simulated steps of a prediction, and of each layout of accelerators; the first of them begins without overlap.
_PREDICTED_STEPS, _LAYOUT_STEPS = 400, 11
_MAX_STALENESS = 4
_STEP_PARTS = ("rollout", "update", "sync", "evolution", "host")
Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0; 2 for runs or settings that make no sense."""
    options = _make_parser().parse_args(arguments)
    try:
        runs = [read_run(path) for path in options.runs]
        if options.keep:
            for run in runs:
                write_run(Path(options.keep) / f"{run.name}.json.gz", run)
        rows = _make_rows(options, runs)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps({"rows": rows}))
    else:
        Console(width=None if sys.stdout.isatty() else 200).print(_make_table(rows))
    return 0


def _make_rows(options: argparse.Namespace, runs: Sequence[RunTimes]) -> list[Row]:
    if options.accelerators:
        assumed = Assumptions(**{field.name: getattr(options, field.name) for field in dataclasses.fields(Assumptions)})
        return [
            row
            for tasks in options.tasks or [32]
            for accelerator_count in options.accelerators
            for row in choose_layouts(runs, assumed, accelerator_count, tasks, options.group_size, options.seed)
        ]
    if options.against:
        return [compare_with_run(runs, read_run(path), options.seed) for path in options.against]
    return [
        _make_row({"servers": servers, "tasks": tasks, "conversations": conversations}, steps)
        for servers in options.servers or sorted({run.servers for run in runs})
        for tasks in options.tasks or [8]
        for conversations in options.conversations or sorted({run.conversations for run in runs})
        for steps in [
            simulate_steps(
                measure_runs(runs, servers).system(tasks, options.group_size, conversations),
                _PREDICTED_STEPS,
                options.seed,
            )
        ]
    ]


def compare_with_run(runs: Sequence[RunTimes], other: RunTimes, seed: int) -> Row:
    """The median step of a run as simulated from `runs`, beside the measured one. Raises ValueError if it is one."""
    if other in runs:
        raise ValueError(f"{other.name} is one of the runs that the distributions are from; a check needs another")
    simulated_system = dataclasses.replace(
        measure_runs(runs, other.servers).system(other.tasks, other.group_size, other.conversations),
        evolve_every=other.evolve_every,
        staleness=other.staleness,
        quorum=other.quorum,
        evolve_beside=other.staleness > 0,  # as a run has it whose explorer is not its policy
    )
    predicted_s = statistics.median(step.seconds for step in simulate_steps(simulated_system, _PREDICTED_STEPS, seed))
    return {
        "run": other.name,
        "servers": other.servers,
        "conversations": other.conversations,
        "episodes": other.tasks * other.group_size,
        "staleness": other.staleness,
        "steps": len(other.steps),
        "measured_seconds": median_step(other),
        "predicted_seconds": predicted_s,
        "error": predicted_s / median_step(other) - 1,
    }


def choose_layouts(
    runs: Sequence[RunTimes], assumed: Assumptions, accelerator_count: int, tasks: int, group_size: int, seed: int
) -> list[Row]:
    """The layout that learns from the most episodes a second at each staleness and quorum, the best of all first."""
    groups = shape_episodes([group for run in runs for step in run.steps for group in step.groups], assumed)
    rows = []
    for staleness, quorum in itertools.product(range(_MAX_STALENESS + 1), (1.0, 0.75)):
        candidate_rows = []
        for layout in list_layouts(accelerator_count, assumed):
            if layout.shared and staleness:
                continue  # the same accelerators cannot sample and learn at once
            simulated_system: System = make_system(
                groups, assumed, layout, task_count=tasks, group_size=group_size, staleness=staleness, quorum=quorum
            )
            facts = {
                "accelerators": accelerator_count,
                "episodes": tasks * group_size,
                "staleness": staleness,
                "quorum": quorum,
                "learner": "all, in turn" if layout.shared else layout.learner,
                "servers": simulated_system.servers,
                "conversations": simulated_system.conversations,
            }
            candidate_rows.append(_make_row(facts, simulate_steps(simulated_system, _LAYOUT_STEPS, seed)[1:]))
        rows.append(max(candidate_rows, key=lambda row: row["learned_per_second"]))
    return sorted(rows, key=lambda row: -row["learned_per_second"])


def _make_row(facts: Row, steps: Sequence[Step]) -> Row:
    """The row of these steps: their median, the share of each part in all their seconds, episodes learned a second."""
    seconds = sum(step.seconds for step in steps)
    return {
        **facts,
        "step_seconds": statistics.median(step.seconds for step in steps),
        **{part_name: sum(getattr(step, part_name) for step in steps) / seconds for part_name in _STEP_PARTS},
        "generating": statistics.fmean(step.generating for step in steps),
        "learned_per_second": sum(step.learned for step in steps) / seconds,
    }


def _make_parser() -> CommandLineParser:
    parser = CommandLineParser("python -m experiments.simulate", benchmarks.simulate.__doc__, allow_abbrev=False)
    counts_option: Mapping[str, Any] = {"type": _parse_counts, "metavar": "N,N,…"}
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run directory, or a file that --keep wrote")
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output")
    parser.add_argument("--keep", metavar="FOLDER", help="store the times of the runs in files of this folder")
    parser.add_argument("--against", nargs="+", metavar="RUN", help="predict these other runs, and compare")
    parser.add_argument("--servers", **counts_option, help="numbers of servers; those of the runs without it")
    parser.add_argument("--conversations", **counts_option, help="numbers of conversations at once; those of the runs")
    parser.add_argument("--tasks", **counts_option, help="tasks a step (8; with --accelerators 32)")
    parser.add_argument("--group-size", type=_parse_count, default=8, metavar="N", help="episodes of each task (8)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of all draws (0)")
    parser.add_argument("--accelerators", **counts_option, help="simulate machines of so many accelerators instead")
    group = parser.add_argument_group("assumptions about accelerators", Assumptions.__doc__)
    for field in dataclasses.fields(Assumptions):
        field_type = type(field.default)
        group.add_argument(f"--{field.name.replace('_', '-')}", type=field_type, default=field.default, metavar="N",
                           help=f"({field.default:g})")  # fmt: skip
    return parser


def _parse_count(text: str) -> int:
    if (value := int(text)) < 1:
        raise ValueError
    return value


def _parse_counts(text: str) -> list[int]:
    return [_parse_count(number_text) for number_text in text.split(",")]


def _make_table(rows: Sequence[Row]) -> Table:
    table = Table(title="a row for each prediction; parts are shares of the time", title_justify="left")
    for column_name in rows[0]:
        table.add_column(column_name.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*(f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values()))
    return table
