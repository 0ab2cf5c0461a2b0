"""How much of a result is rounding: python -m experiments.study.rounding --seed=21 --copies=4 [--config.KEY=VALUE …]

Runs of one development seed that differ in the last bit of initial parameters alone (cojax/run/assemble.py); copy
0 is the run itself. They are evaluated on the dev split. The same command goes on where it was stopped.
"""

import argparse
import dataclasses
import statistics
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cojax.report.console import CONSOLE, duration
from cojax.settings.command_line import CommandLineParser
from cojax.storage.files import lock_folder, write_json
from . import schedule, tables
from .arms import ARMS
from .markdown import percent
from .record import record_or_reason
from .runs import StudyRun, check_deadline, check_settings, command_parser, settings_of, stoppable

_COPIES = 1000


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0; 1 where a run failed; 2 for wrong settings; 130 when stopped."""
    given, rest = _parser().parse_known_args(arguments)
    return stoppable(lambda stop: _carry_out(given, rest, stop))


def _carry_out(given: argparse.Namespace, rest: Sequence[str], stop: threading.Event) -> int:
    """Does what the flags say. Raises an error that `stoppable` tells."""
    check_deadline(given.deadline)
    runs = copies(given.arm, given.seed, given.copies, settings_of(rest))
    cores = schedule.available_cores(given.jobs)
    with lock_folder(given.runs, "--runs"):
        return measure(runs, given.runs, cores, given.deadline, stop)


def _parser() -> CommandLineParser:
    parser = command_parser("experiments.study.rounding", __doc__)
    parser.add_argument("--arm", choices=tuple(ARMS), default="feedback", help="the arm (feedback)")
    parser.add_argument("--seed", type=int, default=tables.DEVELOPMENT_SEEDS[0], help="a development seed (21)")
    parser.add_argument("--copies", type=int, default=4, help="perturbed runs beside the run itself (4)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, each on a core of its own (1)")
    parser.add_argument("--runs", type=Path, default=Path("runs/rounding"), help="run directories (runs/rounding)")
    parser.add_argument("--deadline", type=float, default=3600.0, help="seconds a run may take (3600)")
    return parser


def copies(arm: str, seed: int, count: int, further: dict[str, Any]) -> list[StudyRun]:
    """The run itself and `count` perturbed copies. Raises ValueError for an evaluation seed or no copy."""
    if seed not in tables.DEVELOPMENT_SEEDS:
        known = ", ".join(map(str, tables.DEVELOPMENT_SEEDS))
        raise ValueError(f"--seed={seed} is no development seed; expected one of {known}")
    if not 1 <= count <= _COPIES:
        raise ValueError(f"--copies={count}; expected 1 to {_COPIES} perturbed runs beside the run itself")
    (job,) = tables.jobs([arm], [seed], True, further)
    check_settings([job])
    return [
        dataclasses.replace(job, arm=f"{arm}-copy-{one}", settings={**job.settings, "perturbation": one})
        for one in range(count + 1)
    ]


def measure(
    runs: Sequence[StudyRun], folder: Path, cores: Sequence[int | None], deadline: float, stop: threading.Event
) -> int:
    """Makes the runs, prints each result and their spread, and writes FOLDER/rounding.json. Returns the exit status."""
    found: dict[str, dict[str, Any]] = {}

    def on_end(job: StudyRun, why: str, seconds: float) -> None:
        record, why = (None, why) if why else record_or_reason(job, folder / job.name)
        if record is None:
            CONSOLE.print(f"{job.name}: {why}", style="yellow", markup=False, soft_wrap=True)
            return
        found[job.name] = {name: record[name] for name in ("zero_shot", "final", "held_out", "facts", "threads")}
        CONSOLE.print(
            f"{job.name}: {percent(record['zero_shot'])} → {percent(record['final'])} % in {duration(seconds)}",
            soft_wrap=True,
        )

    schedule.run_all(runs, folder, cores, deadline, stop, on_end)
    if len(found) > 1:
        ordered = {job.name: found[job.name] for job in runs if job.name in found}
        finals = [one["final"] for one in ordered.values() if one["final"] is not None]
        spread = spread_of(finals) if len(finals) > 1 else None
        write_json(folder / "rounding.json", {"spread": spread, "runs": ordered})
        CONSOLE.print(describe(spread) if spread else "no spread: the runs were not evaluated", soft_wrap=True)
    return 130 if stop.is_set() else 1 if len(found) < len(runs) else 0


def spread_of(finals: Sequence[float]) -> dict[str, float]:
    """Number, mean, standard deviation (n − 1) and extremes of at least two successes."""
    return {
        "runs": len(finals),
        "mean": statistics.fmean(finals),
        "deviation": statistics.stdev(finals),
        "least": min(finals),
        "most": max(finals),
    }


def describe(spread: dict[str, float]) -> str:
    """One line, in percent and points."""
    points = {name: 100 * value for name, value in spread.items()}
    return (
        f"{spread['runs']} runs that differ in rounding alone: mean {points['mean']:.1f} %, standard deviation "
        f"{points['deviation']:.1f} points, from {points['least']:.1f} to {points['most']:.1f} %"
    )


if __name__ == "__main__":
    sys.exit(main())
