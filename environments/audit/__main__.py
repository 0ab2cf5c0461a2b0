"""python -m environments.audit NAME [--set KEY=VALUE …]: can this world's reward be gamed?

NAME is an environment of this folder, or package.module:make of one from outside. `--set` gives it a setting. With
`--run W`, the tasks are those that the run in the folder W has synthesized, and NAME may be left out.

Attackers play the world's tasks: some do nothing, some change the honest solution, some try to break the world. The
command prints one line for each finding, then a summary. With `--json` both are JSON:

    a finding   attacker, severity, verdict (open, or by design), task, rule, and what was done
    the last    tasks, episodes, findings (open ones by severity), floor (mean rewards of doing nothing, of talking and
                of random calls), seed, attackers (what each tried, in how many episodes and seconds), left_out

Tasks without solutions get the attackers that need none. A setup without a query gets a task whose solution is a walk
over calls that work.

The exit status is 1 if there is an open finding at or above `--fail-on`, 2 if the audit failed, else 0. A finding is by
design if the world's module documents it (BY_DESIGN, attacker → reason), or a file of accepted findings has it:

    [[accept]]
    attacker = "drop"
    task = "*"                       # or the id of a task
    reason = "logging in is a means, and the judge does not ask for it"

With `--trainer` cojax itself is audited: faults strike a run of two steps on the desk, and a line for each says what it
became. The exit status is 1 if one became a reward.

docs/auditing.md leads from a world to a CI job.
"""

import argparse
import contextlib
import dataclasses
import functools
import importlib
import json
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cojax import worlds
from cojax.command import CommandLineParser
from cojax.environment import Environment, EnvironmentFailure, InstallError
from cojax.environment.watch import ask_within
from cojax.types import Task, to_json
from ..check import make_environment, read_assignments
from . import findings as results
from .attackers import ATTACKERS, SEVERITIES, find_attackers
from .examination import Examination, complete
from .findings import Finding
from .page import expect_writable, write_page
from .repetition import Origin

_COUNT, _MAX_SEARCHED = 50, 5_000
# Splits that a world may have. Tasks to evaluate on come first: they have queries and, mostly, solutions.
_SPLITS = ("eval", "dev", "test", "train", "challenge", "seed")
_ASK_TIMEOUT_S = 120.0
_PROGRESS_S = 10.0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _make_parser()
    options = parser.parse_args(arguments)
    try:
        if options.trainer:
            if options.name or options.run:
                raise ValueError("--trainer takes no world; give --trainer alone, or with --json")
            # A trainer stands above the worlds.
            return int(importlib.import_module("cojax.run.faults").main(as_json=options.json))
        return _audit(options)
    except (ValueError, InstallError, EnvironmentFailure, OSError) as error:
        parser.error(" ".join(str(error).split()))
    except Exception:  # of the world's module, or of what it returns: 1 would say that there is a finding
        traceback.print_exc()
        return 2


def _make_parser() -> CommandLineParser:
    parser = CommandLineParser("python -m environments.audit", __doc__)
    parser.add_argument("name", nargs="?", default="", help=f"one of {', '.join(worlds.available())}, or module:make")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting (repeatable)")
    parser.add_argument("--data", help="the data, as it was installed: short for --set data=DATA")
    parser.add_argument("--run", metavar="W", help="audit the tasks that the run in this folder has synthesized")
    parser.add_argument("--trainer", action="store_true", help="audit cojax's trainer: can a fault become a reward?")
    parser.add_argument("--cluster", help="a Ray cluster on whose nodes it is played, ray://HOST:PORT")
    parser.add_argument("--tasks", type=_read_count, default=_COUNT, help=f"tasks in all (default: {_COUNT})")
    parser.add_argument("--splits", default="", help="comma-separated splits (default: all that it has)")
    parser.add_argument("--seed", type=int, default=0, help="of the tasks and of all random choices (default: 0)")
    parser.add_argument("--attackers", default="", help=f"of {', '.join(ATTACKERS)}, or module:name (default: all)")
    parser.add_argument("--accepted", metavar="FILE", help="findings that are by design, as above")
    parser.add_argument("--fail-on", choices=(*SEVERITIES, "never"), default="high", help="default: high")
    parser.add_argument("--budget", type=_read_positive, metavar="MINUTES", default=float("inf"), help="lists the rest")
    parser.add_argument("--deadline", type=_read_positive, metavar="SECONDS", help="of a call (default: 30, or longer)")
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    parser.add_argument("--html", metavar="OUT", help="write a page with filters and transcripts")
    parser.add_argument("--replay", metavar="FINDING", help="play one finding again, by its id")
    return parser


def _read_positive(text: str, kind: type[int | float] = float) -> Any:
    try:
        number = kind(text)
    except ValueError:
        number = 0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"is {text!r}; expected a {'whole ' * (kind is int)}number above 0")
    return number


_read_count = functools.partial(_read_positive, kind=int)


def _audit(options: Any) -> int:
    name, settings, tasks = _choose_world(options)
    attackers = find_attackers(options.attackers)
    accepted = results.read_accepted(options.accepted, tuple({**ATTACKERS, **attackers})) if options.accepted else []
    accepted += results.read_by_design(vars(worlds.module(name)))
    if options.html:
        expect_writable(Path(options.html))
    with contextlib.redirect_stdout(sys.stderr):  # what a world prints is no finding
        environment = make_environment(options, name, settings)
        origin = None if options.cluster else Origin(worlds.complete_name(name), settings)
        budget_s, say = 60 * options.budget, _Progress().say
        examination = Examination(
            environment, attackers, options.seed, origin, accepted, budget_s, say, options.deadline
        )
        if tasks is None:
            splits = options.splits.split(",") if options.splits else vars(worlds.module(name)).get("SPLITS", _SPLITS)
            count = _MAX_SEARCHED if options.replay else options.tasks
            tasks = draw_tasks(environment, splits, count, options.seed)
        if options.replay:
            task = _find_task(examination, tasks, options.replay)
            # What was played before, and when, depends on all tasks.
            tasks = tasks if options.replay.startswith(("leak/", "clock/")) else [task]
        tasks = [complete(examination.player, task, options.seed) for task in tasks[: options.tasks]]
        examination.examine(tasks)
    if options.replay:
        return _print_replay(examination, options.replay)
    summary = summarise(examination, name, len(tasks))
    _print_results(examination.findings, summary, as_json=options.json)
    if options.html:
        write_page(Path(options.html), name, examination.findings, summary)
    status = results.exit_status(examination.findings, examination.failures, options.fail_on)
    _print_summary_line(name, examination, summary, status)
    return status


def _choose_world(options: Any) -> tuple[str, dict[str, Any], list[Task] | None]:
    """The world's name and settings, and the tasks of a run, if one is named. Raises ValueError."""
    if not options.name and not options.run:
        raise ValueError("no world is named; expected a name, such as desk, or --run W")
    text_by_setting = read_assignments(options)
    if options.run:
        from .runs import read_run  # only it reads folders of runs

        return read_run(options.run, options.name, text_by_setting)
    return options.name, worlds.parse_settings(options.name, text_by_setting), None


def draw_tasks(environment: Environment, splits: Sequence[str], count: int, seed: int) -> list[Task]:
    """Tasks of the splits in turn, those with solutions first, then those with queries. Raises ValueError if none."""
    by_split: list[list[Task]] = []
    reasons: list[str] = []
    for split in splits:
        try:
            ask_tasks = functools.partial(environment.tasks, split, count, seed)
            by_split.append(list(ask_within(_ASK_TIMEOUT_S, ask_tasks)))
        except EnvironmentFailure as failure:  # it has no such split
            reasons.append(f"{split}: {failure}")
    longest = max(map(len, by_split), default=0)
    merged = [tasks[rank] for rank in range(longest) for tasks in by_split if rank < len(tasks)]
    unique = list({task.id: task for task in reversed(merged)}.values())[::-1]
    if not unique:
        raise ValueError(f"{environment.name!r} has no task in {', '.join(splits)}; name its --splits {reasons[:1]}")
    # A bare setup asks for nothing; it stands in where there are no tasks.
    asking = [task for task in unique if task.solution or task.query] or unique
    return sorted(asking, key=lambda task: not task.solution)[:count]


def summarise(examination: Examination, name: str, task_count: int) -> dict[str, Any]:
    """The last object of the output."""
    player = examination.player
    open_attackers = {finding.attacker for finding in examination.findings if finding.verdict == "open"}
    attackers = {
        attacker: {
            "verdict": "open" if attacker in open_attackers else "holds" if tally.tried else "not tried",
            **dataclasses.asdict(tally),
            "episodes": player.episodes[attacker],
            "seconds": round(player.seconds[attacker], 2),
        }
        for attacker, tally in ((name, examination.tallies[name]) for name in examination.attackers)
    }
    return {
        "environment": name,
        "tasks": task_count,
        "episodes": sum(player.episodes.values()),
        "findings": results.count_open(examination.findings),
        "floor": examination.floor(),
        "seed": examination.seed,
        "by_design": sum(finding.verdict == "by design" for finding in examination.findings),
        "attackers": attackers,
        "left_out": dict(examination.left_out),
        "failures": examination.failures,
    }


def _print_results(found: Sequence[Finding], summary: Mapping[str, Any], *, as_json: bool) -> None:
    ordered = sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))
    if as_json:
        for finding in ordered:
            print(json.dumps(to_json(finding)))
        print(json.dumps(summary), flush=True)
        return
    for finding in ordered:
        verdict = finding.verdict if not finding.reason else f"by design: {finding.reason}"
        print(f"{finding.severity:8} {finding.attacker:9} {verdict:9} {finding.id}  {finding.why!a}")
        print(f"         {finding.rule}. To mend it, {finding.mend}.")
    for attacker, tally in summary["attackers"].items():
        print(f"{attacker:9} {tally['verdict']:9} tried {tally['tried']} times in {tally['tasks']} tasks")
    floor = ", ".join(f"{name} {reward}" for name, reward in summary["floor"].items())
    print(f"floor: {floor}", flush=True)


def _print_summary_line(name: str, examination: Examination, summary: Mapping[str, Any], status: int) -> None:
    """One line as GitHub's runner reads it, on stderr."""
    counts = ", ".join(f"{count} {severity}" for severity, count in summary["findings"].items() if count)
    text = f"{name}: {summary['tasks']} tasks, {summary['episodes']} episodes, {counts or 'no'} open findings"
    left_out = [f"left out: {', '.join(examination.left_out)}"] if examination.left_out else []
    text = "; ".join((text, *examination.failures, *left_out))
    level = "notice" if status == 0 else "error"
    print(f"::{level} title=cojax audit::{' '.join(text.replace('%', '%25').split())}", file=sys.stderr, flush=True)


def _find_task(examination: Examination, tasks: Sequence[Task], finding_id: str) -> Task:
    """The task of a finding, whose attacker is then the only one. Raises ValueError if there is none."""
    attacker, task_id, *_ = (*finding_id.split("/"), "")
    for task in tasks:
        whole_task = complete(examination.player, task, examination.seed)
        if whole_task.id == task_id and attacker in examination.attackers:
            examination.attackers = {attacker: examination.attackers[attacker]}
            return whole_task
    raise ValueError(
        f"--replay={finding_id}: there is no such task or attacker; give the id of a finding (attacker/task/number), "
        "and the NAME, --set, --seed, --splits and --run with which it was found"
    )


def _print_replay(examination: Examination, finding_id: str) -> int:
    """Prints a finding that was played again beside the honest solution; 1 if it still is one, 0 if not."""
    prefix = finding_id.rpartition("/")[0]
    found = [finding for finding in examination.findings if finding.id.rpartition("/")[0] == prefix]
    if not found:
        print(f"{finding_id}: no longer a finding")
    for finding in found:
        print(f"{finding.id}: {finding.why!a}\n{finding.attempt}, of {finding.query!a}")
        for title, lines in (("attacker", finding.actions), ("honest", finding.honest_actions)):
            print(f"{title}:")
            for action, answer in lines:
                print(f"    {action!a}\n        → {answer!a}")
    return int(bool(found))


class _Progress:
    """Lines of progress on stderr, at most one in ten seconds."""

    def __init__(self) -> None:
        self._last_time = time.monotonic()

    def say(self, line: str) -> None:
        now = time.monotonic()
        if now - self._last_time > _PROGRESS_S:
            self._last_time = now
            print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
