"""The command: python -m experiments.study --name=main [--quick] [--development] [--config.KEY=VALUE …]

The same command continues where it was stopped: it reads a finished run from its record in OUT/runs/ARM.jsonl.gz (of
a pretrained model: OUT/pretrained), and resumes an unfinished one from its checkpoint. It writes OUT/NAME.json,
OUT/NAME.md and pictures in OUT/NAME. docs/study.md, docs/signals-study.md and docs/pretrained.md say what tables ask.
Two commands at once take the same cores; start the second one under taskset.

    python -m experiments.study --name=main --out=results --seeds=12    # the table kept in git, from its records
    python -m experiments.study --again=feedback-101                    # one stored run anew: the same to the bit?
    python -m experiments.study --name=main --development --config.steps=60    # what settings are chosen by
"""

import argparse
import dataclasses
import shutil
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cojax.command import CommandLineParser
from cojax.durable import sweep
from cojax.report.console import CONSOLE, format_time
from cojax.run.checks import check_settings
from cojax.settings import presets
from cojax.storage.files import RunDirectoryError, lock_folder, read_json, write_json, write_text
from . import figures, schedule, stored, tables
from .comparison import adopt_stored_variables, differing_facts, explain_mismatch, find_differing_parts, read_variables
from .launch import VARIABLES
from .record import Record, try_record
from .summary import Records, list_complete_seeds, percent, render_page, summarise
from .tables import DEFAULT_SEEDS, DEVELOPMENT_SEEDS, ROOT, TABLES, StudyRun, Table, make_configuration, read_settings

_ALL = "all"
# Records that are part of the repository.
RESULTS = ROOT / "results"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0; 1 if a run failed or differs from its stored record; 2 for wrong settings; 130 if stopped."""
    options, overrides = _parser().parse_known_args(arguments)
    stop = threading.Event()
    handlers = {signal_number: signal.getsignal(signal_number) for signal_number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for signal_number in handlers:
            signal.signal(signal_number, lambda *signal_details: stop.set())
        return _run_study(options, overrides, stop)
    except (ValueError, KeyError, TypeError, OSError, RunDirectoryError) as error:
        print(f"error: {error.args[0] if isinstance(error, KeyError) else error}", file=sys.stderr)
        return 2
    finally:
        for signal_number, handler in handlers.items():
            signal.signal(signal_number, handler)


def _run_study(options: argparse.Namespace, overrides: Sequence[str], stop: threading.Event) -> int:
    """Does what the flags say, until `stop` is set. Raises an error that `main` prints for wrong settings."""
    further_settings = read_settings(overrides)
    if not options.deadline > 0:
        raise ValueError(f"--deadline={options.deadline:g}; expected seconds above 0")
    if options.again and further_settings:
        raise ValueError("--again takes its settings from the stored record; leave --config.… out")
    runs_folder = options.runs or Path("runs/study-development" if options.development else "runs/study")
    cores = schedule.list_cores(options.jobs)
    table_plans = [] if options.again else plan_tables(options, further_settings)
    with lock_folder(runs_folder, "--runs"):
        if options.again:
            return repeat_run(options.again, options.out or RESULTS, runs_folder, cores[0], options.deadline, stop)
        output_folder = options.out or runs_folder / "results"
        if output_folder.resolve() == runs_folder.resolve():
            raise ValueError(f"--runs and --out are the same folder, {output_folder}; choose another --out")
        with lock_folder(output_folder, "--out"):
            sweep(output_folder, *(output_folder / folder for folder in stored.FOLDERS))
            for name, _, jobs in table_plans:
                expect_no_larger(output_folder, name, jobs)
            for name, table, jobs in table_plans:
                if exit_status := study(name, table, jobs, runs_folder, output_folder, cores, options.deadline, stop):
                    return exit_status
            return 0


def _parser() -> CommandLineParser:
    parser = CommandLineParser("python -m experiments.study", __doc__, allow_abbrev=False)
    parser.add_argument("--name", choices=(*TABLES, _ALL), default="main", help="the table (main), or all of them")
    parser.add_argument("--arms", help="some of its arms alone, with commas: a table of its own name")
    parser.add_argument("--seeds", type=int, help=f"this many, from the first on ({DEFAULT_SEEDS}, or a table's own)")
    parser.add_argument("--quick", action="store_true", help=f"{tables.QUICK_SEEDS} seeds")
    parser.add_argument("--development", action="store_true", help="development seeds, evaluated on the dev split")
    parser.add_argument("--again", metavar="ARM-SEED", help="a stored run anew, compared with its record")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, each on a core of its own (2)")
    parser.add_argument("--runs", type=Path, help="run directories (runs/study)")
    parser.add_argument("--out", type=Path, help="records, tables, pictures (RUNS/results)")
    parser.add_argument("--deadline", type=float, default=3600.0, help="seconds a run may take (3600)")
    return parser


def plan_tables(options: argparse.Namespace, further: Mapping[str, Any]) -> list[tuple[str, Table, list[StudyRun]]]:
    """Each requested table with its name and its runs. Raises ValueError, KeyError or TypeError."""
    table_plans = []
    for table_name in TABLES if options.name == _ALL else (options.name,):
        table = select_arms(table_name, options.arms)
        output_name = table_name if options.arms is None else f"{table_name}-of-{'-'.join(table.arms)}"
        jobs = tables.jobs(table.arms, select_seeds(options, table), options.development, {**table.settings, **further})
        # Wrong settings are found before anything runs.
        configurations = {job.arm: (make_configuration(job.settings), job.settings) for job in jobs}
        for config, run_overrides in configurations.values():
            check_settings(presets.apply_preset(config, run_overrides))
        table_plans.append((output_name, table, jobs))
    return table_plans


def expect_no_larger(results_folder: Path, table_name: str, jobs: Sequence[StudyRun]) -> None:
    """Raises ValueError if OUT/NAME.json holds a table of more seeds than these runs have, or of another split."""
    path = results_folder / f"{table_name}.json"
    if not path.exists():
        return
    try:
        summary = read_json(path)
        seeds, split = len(summary["seeds"]), summary["split"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} cannot be read ({error!r}); restore it, or delete it") from error
    seed_count, new = len({job.seed for job in jobs}), jobs[0].config["evaluation"]["split"]
    if seeds > seed_count or split != new:
        raise ValueError(
            f"{path} holds a table of {seeds} seeds on the split {split!r}, which one of {seed_count} seeds on the "
            f"split {new!r} would replace; choose another --out" + (f", or --seeds={seeds}" if split == new else "")
        )


def select_seeds(options: argparse.Namespace, table: Table) -> Sequence[int]:
    """The seeds of a table that the flags select. Raises ValueError for more seeds than there are."""
    seeds = DEVELOPMENT_SEEDS if options.development else table.seeds
    seed_count = options.seeds if options.seeds is not None else tables.QUICK_SEEDS if options.quick else table.count
    if not 1 <= seed_count <= len(seeds):
        raise ValueError(f"--seeds={seed_count}; {len(seeds)} seeds are fixed beforehand ({seeds[0]} to {seeds[-1]})")
    return seeds[:seed_count]


def select_arms(table_name: str, arm_list: str | None) -> Table:
    """The table, or the part of it with these arms. Raises ValueError for an arm that the table does not have."""
    table = TABLES[table_name]
    if arm_list is None:
        return table
    arm_names = list(dict.fromkeys(arm.strip() for arm in arm_list.split(",") if arm.strip()))
    if unknown_arms := [arm for arm in arm_names if arm not in table.arms] or [] if arm_names else [arm_list]:
        raise ValueError(f"arm {unknown_arms[0]!r} is not in table {table_name!r}; it has {', '.join(table.arms)}")
    differences = tuple(arm_pair for arm_pair in table.differences if set(arm_pair) <= {*arm_names, tables.START})
    return dataclasses.replace(table, arms=tuple(arm_names), differences=differences)


def study(
    table_name: str,
    table: Table,
    jobs: Sequence[StudyRun],
    runs_folder: Path,
    out: Path,
    cores: Sequence[int | None],
    timeout_s: float,
    stop: threading.Event,
) -> int:
    """Makes the runs that have no record, then writes the table of all complete seeds; returns the exit status."""
    records = stored.read_runs(out, jobs)
    jobs_left = [job for job in jobs if (job.arm, job.seed) not in records]
    jobs_left = adopt_stored_variables(jobs_left, stored.read_all(out).values() if jobs_left else ())
    CONSOLE.print(f"{table_name}: {len(jobs)} runs, {len(records)} of them stored in {out}")
    if older := [job.name for job in jobs_left if job.variables != VARIABLES]:
        CONSOLE.print(
            f"with the variables of stored runs of their seeds, which give other bits than today's: {', '.join(older)}",
            style="yellow",
        )
    failures: list[str] = []
    durations_s: list[float] = []

    def on_end(job: StudyRun, failure: str, duration_s: float) -> None:
        record, failure = (None, failure) if failure else try_record(job, runs_folder / job.name)
        if record is None:
            failures.append(job.name)
            CONSOLE.print(f"{job.name}: {failure}", style="yellow")
            return
        stored.store_record(out, record)
        records[job.arm, job.seed] = record
        durations_s.append(duration_s)
        to_go = sum(durations_s) / len(durations_s) * (len(jobs_left) - len(durations_s) - len(failures)) / len(cores)
        CONSOLE.print(_write_status_line(record, duration_s, out) + f"; {format_time(to_go)} to go")

    schedule.run_all(jobs_left, runs_folder, cores, timeout_s, stop, on_end)
    if stop.is_set():
        CONSOLE.print("stopped; run the same command again to go on")
        return 130
    if seeds := list_complete_seeds(table, sorted({job.seed for job in jobs}), records):
        try:
            write_table(table_name, table, sorted({job.seed for job in jobs}), records, out)
        except (LookupError, TypeError, AttributeError, ArithmeticError) as error:
            raise ValueError(
                f"a record that no run wrote is stored in {out} ({error!r}); restore the records of the arms "
                f"{', '.join(table.arms)}, or delete them and run the study again"
            ) from error
    if failures:
        CONSOLE.print(
            f"{len(failures)} of {len(jobs)} runs did not finish: {', '.join(failures)}"
            + ("" if seeds else "; no seed is complete, so there is no table"),
            style="bold red",
        )
    return 1 if failures else 0


def write_table(table_name: str, table: Table, seeds: Sequence[int], records: Records, results_folder: Path) -> None:
    """Writes NAME.json, NAME.md and the pictures, and prints the page."""
    summary = summarise(table_name, table, seeds, records)
    records_by_arm = {arm: [records[arm, seed] for seed in summary["seeds"]] for arm in table.arms}
    page = render_page(summary, figures.draw_all(records_by_arm, results_folder / table_name, summary["differences"]))
    write_json(results_folder / f"{table_name}.json", summary)
    write_text(results_folder / f"{table_name}.md", page)
    print(page, flush=True)
    CONSOLE.print(f"table: {results_folder / table_name}.md, {results_folder / table_name}.json")


def repeat_run(
    name: str, results_folder: Path, runs_folder: Path, core: int | None, timeout_s: float, stop: threading.Event
) -> int:  # fmt: skip
    """Repeats a stored run by its settings alone, and prints whether results are equal; returns the exit status."""
    record = stored.read_run(results_folder, name)
    job = StudyRun(record["arm"], record["seed"], record["settings"], read_variables(record))
    workdir = runs_folder / "again" / job.name
    # A run that a killed command left behind may still write into this folder.
    if not schedule.wait_until_free(workdir, stop):
        if stop.is_set():
            return 130
        raise RunDirectoryError(
            f"another process is still running in {workdir}; wait for it, stop it, or choose another --runs"
        )
    shutil.rmtree(workdir, ignore_errors=True)
    failure = schedule.run_job(job, workdir, core, timeout_s, stop, lambda: None)
    new_record, failure = (None, failure) if failure else try_record(job, workdir)
    if new_record is None:
        CONSOLE.print(f"{name}: {failure}", style="yellow")
        return 130 if stop.is_set() else 1
    for difference in differing_facts(record["facts"], new_record["facts"]):
        CONSOLE.print(difference)
    differing_keys = find_differing_parts(record, new_record)
    verdict = f"differs in {', '.join(differing_keys)}" if differing_keys else "the same to the last bit"
    CONSOLE.print(f"{name}: stored {percent(record['final'], 2)} %, now {percent(new_record['final'], 2)} %: {verdict}")
    return 1 if differing_keys else 0


def _write_status_line(record: Record, duration_s: float, results_folder: Path) -> str:
    """One line on a run that has just finished, compared with the repository's record of the same settings."""
    line = (
        f"{record['arm']}-{record['seed']}: {percent(record['zero_shot'])} → {percent(record['final'])} % "
        f"in {format_time(duration_s)}"
    )
    if results_folder.absolute() == RESULTS:
        return line
    try:
        earlier_record = stored.read_arm(RESULTS, record["arm"]).get(record["seed"])
    except ValueError as error:
        return f"{line}; {error}"
    if earlier_record is None or explain_mismatch(earlier_record, record["config"]):
        return line
    differing_keys = find_differing_parts(earlier_record, record)
    return (
        f"{line}, as in results/" if not differing_keys else f"{line}; {percent(earlier_record['final'])} % in results/"
    )


if __name__ == "__main__":
    sys.exit(main())
