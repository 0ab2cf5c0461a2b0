"""python -m environments.check NAME [--set KEY=VALUE …]: proves an environment sound, by the path that training uses.

NAME is an environment of this folder, or package.module of one from outside. `--set` gives it a setting. `--cluster`
plays its episodes on the nodes of a Ray cluster.

In each split, a task's reference solution must earn reward 1 in two plays with equal observations, and less without one
of its calls; an episode must answer garbage. The check prints one JSON line a split:

    tasks              tasks examined
    replayed           solutions that earned reward 1 in two plays with equal observations
    mutated            solutions played again without one call, drawn by a fixed seed from all their calls
    mutated_rejected   mutated solutions that did not earn reward 1
    harmless           mutated solutions that did, as the dropped call had changed nothing (a look-up, say)
    let_through        the other mutated solutions: drops that the environment's own verdict does not notice
    thrown, answered   garbage, floods and endless calls; those after which the next episode was sound
    faults             readable lines, at most 20; `fault_count` counts all
    seconds            wall time
    unsolved           tasks without a solution, which are not examined
    environment, split, server    what was examined; the case of an environment with `cases`

Progress goes to stderr.

Setups without tasks, such as those of environments/tools, are checked by tasks made for the purpose, each from a walk
over the actions that a setup offers. What one episode is told must not change another's answers. The line then has

    setups, actions    setups examined; actions taken in walks
    unnoticed          tools whose calls changed no state, so that dropping one goes unnoticed: right for a look-up
    unclean            calls that were refused but changed the state
    untried            tools that were offered and never worked, with a call and the answer to it
    warnings           parameters of made-up values, and what to write; tools that take values which are not there
    examples           tasks in words, as a run would make them: would you give these to a person?

The last three are printed to stderr too.

If the states of two episodes cannot be compared, tasks without solutions are opened twice and must answer garbage. The
line says that such an environment `synthesizes` nothing.

A call that does not return is a fault, and ends its split.

The exit code is 0 if there is no fault, 1 if there is one, 2 for bad arguments. --mutations=all drops every call in
turn, and lists the drops that are let through; they are then no faults. Nor are they if the environment's file sets
OFFICIAL_VERDICT, as a benchmark's verdict cannot be changed.

An environment that acts by code has its own check: AppWorld's prints a table, see environments/appworld/audit.py.
"""

import argparse
import functools
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cojax import worlds
from cojax.command import reword
from cojax.environment import Environment, EnvironmentFailure, traits_of
from cojax.environment.watch import HangingCall, run_watched
from cojax.types import Task, to_json
from .advice import describe_tools, explain_refusals, warn_of_values, word_examples
from .cluster import place
from .soundness import SetupReport, SplitReport, examine_openings
from .worker.venv import InstallError

_SPLITS = ("seed", "dev", "eval", "challenge")
# The number of tasks of a split to examine if neither --count nor the environment's COUNT gives it.
_COUNT = 200
# A call hangs after this many seconds or, if that is longer, this many of the environment's own deadlines, since it may
# retry.
_MIN_HANG_S, _HANG_DEADLINES = 120.0, 4

# Progress is told at most this often.
_PROGRESS_PERIOD_S = 5.0
# The keys of a line on tasks that are only opened.
_OPENING_KEYS = ("environment", "split", "thrown", "answered", "faults", "fault_count", "seconds", "tasks")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog=reword("python -m environments.check"),
        description=reword(__doc__),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    environment_names = worlds.available()
    parser.add_argument("name", help=f"one of {', '.join(environment_names)}, or package.module from outside")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the environment (repeatable)"
    )
    parser.add_argument("--data", help="the data, as it was installed: short for --set data=DATA")
    parser.add_argument(
        "--cluster", help="a Ray cluster on whose nodes it is checked, ray://HOST:PORT (docs/deploy.md)"
    )
    parser.add_argument("--category", "--splits", default="all", help="comma-separated splits (default: all)")
    parser.add_argument("--count", type=int, help=f"tasks of each split (default: the environment's own, or {_COUNT})")
    parser.add_argument("--mutations", choices=("one", "all"), default="one", help="calls dropped (default: one)")
    parser.add_argument("--tools", action="store_true", help="only list the tools, with schemas and sample answers")
    options = parser.parse_args(arguments)
    if options.count is not None and options.count < 1:
        parser.error(f"--count is {options.count}; expected at least 1")
    try:
        namespace = vars(worlds.module(options.name))
        settings = worlds.parse_settings(options.name, read_assignments(options))
        count = options.count or namespace.get("COUNT", _COUNT)
        if "check" in namespace and options.name in environment_names:
            if settings or options.cluster:
                raise ValueError(f"{options.name!r} has its own check, which takes neither --set nor --cluster")
            return int(namespace["check"](count, drops_each_call=options.mutations == "all", **settings))
        fault_count = 0
        for case_label, case in namespace.get("cases", lambda settings: {"": settings})(settings).items():
            environment = make_environment(options, options.name, case)
            tasks_by_split = _draw_tasks(environment, namespace.get("SPLITS"), options.category, count)
            if options.tools:
                for text in describe_tools(environment, next(iter(tasks_by_split.values()))[0]):
                    print(text)
                continue
            for line in _examine(environment, options.name, tasks_by_split, namespace, options.mutations == "all"):
                fault_count += line["fault_count"]
                print(json.dumps(to_json({"server": case_label, **line} if case_label else line)), flush=True)
    except (ValueError, InstallError, EnvironmentFailure) as error:
        parser.error(str(error))
    return 1 if fault_count else 0


def make_environment(options: Any, name: str, settings: Mapping[str, Any]) -> Environment:
    """The environment of that name here or, with --cluster, on the nodes of a cluster."""
    full_name = worlds.complete_name(name)
    return place(options.cluster, full_name, settings) if options.cluster else worlds.load(full_name, **settings)


def read_assignments(options: Any) -> dict[str, str]:
    """What --set and --data set, as text. Raises ValueError for a setting without a value."""
    assignments = options.set + ([f"data={options.data}"] if options.data else [])
    if malformed_assignments := [assignment for assignment in assignments if "=" not in assignment]:
        raise ValueError(f"--set {malformed_assignments[0]} has no value; give it as --set KEY=VALUE")
    return dict(assignment.split("=", 1) for assignment in assignments)


def _examine(
    environment: Environment,
    environment_name: str,
    tasks_by_split: Mapping[str, tuple[Task, ...]],
    namespace: Mapping[str, Any],
    drops_all: bool,
) -> Iterator[dict[str, Any]]:
    """Yields the line of each split. The first call that hangs ends its split."""
    for split, tasks in tasks_by_split.items():
        start_time, note = time.monotonic(), _Progress(f"{environment.name}, {split}")
        solvable = [task for task in tasks if task.solution]
        if solvable:
            split_report = SplitReport(note=note)
            examine = functools.partial(
                split_report.examine_tasks, tasks=solvable, trials=namespace.get("TRIALS", {}), drops_all=drops_all
            )
            split_report.faults += _watch(environment, examine)
            list_all = drops_all or namespace.get("OFFICIAL_VERDICT", False)
            line = split_report.make_record(environment_name, split, time.monotonic() - start_time, drops_all=list_all)
            yield line | {"unsolved": len(tasks) - len(solvable)}
        elif reason := traits_of(environment).incomparable:
            opened = SplitReport(note=note)
            opened.faults += _watch(environment, functools.partial(examine_openings, tasks=tasks, report=opened))
            record = opened.make_record(environment_name, split, time.monotonic() - start_time, drops_all=True)
            yield {**{key: record[key] for key in _OPENING_KEYS}, "synthesizes": f"nothing: {reason}"}
        else:
            setup_report = SetupReport(note)
            setup_report.plays.faults += _watch(environment, functools.partial(setup_report.examine, setups=tasks))
            line = setup_report.line(environment, environment_name, split, time.monotonic() - start_time)
            yield line | _advise(environment, tasks, setup_report, line)


def _advise(
    environment: Environment, setups: Sequence[Task], report: SetupReport, line: Mapping[str, Any]
) -> dict[str, list[str]]:
    """What the author of the world should look at. It is printed for people, and returned for the line."""
    if not report.walks:
        return {}
    report.plays.note("examples of tasks")
    found: dict[str, list[str]] = {"untried": explain_refusals(environment, setups, line.get("untried", ()))}
    found["warnings"] = warn_of_values(environment, setups, report)
    found["examples"] = word_examples(environment, setups, report)
    for tool_line in found["untried"]:
        _tell(f"never worked: {tool_line}")
    for warning in found["warnings"]:
        _tell(f"warning: {warning}")
    if found["examples"]:
        _tell(f"{environment.name}: tasks as a run would make them. Would you give these to a person?")
        for number, example in enumerate(found["examples"], 1):
            _tell(f"{number:4}. {example}")
    return {key: lines for key, lines in found.items() if lines or key != "untried"}


def _tell(text: str) -> None:
    """Prints a line for people; the lines for programs are on stdout."""
    print(text, file=sys.stderr, flush=True)


class _Progress:
    """Says what is being done, at most every few seconds."""

    def __init__(self, label: str) -> None:
        self.label, self._start_s, self._told_s = label, time.monotonic(), time.monotonic()

    def __call__(self, text: str) -> None:
        if (now_s := time.monotonic()) - self._told_s >= _PROGRESS_PERIOD_S:
            self._told_s = now_s
            _tell(f"{self.label}: {text}, {now_s - self._start_s:.0f} s")


def _watch(environment: Environment, examine: Callable[[Environment], None]) -> list[str]:
    """Examines the environment; returns the message about a call that hangs, which ends the examination."""
    patience_s = max(_MIN_HANG_S, _HANG_DEADLINES * (traits_of(environment).deadline or 0.0))
    try:
        run_watched(environment, patience_s, examine)
    except HangingCall as hanging:
        return [str(hanging)]
    return []


def _draw_tasks(
    environment: Environment, own_splits: Sequence[str] | None, category: str, task_count: int
) -> dict[str, tuple[Task, ...]]:
    """Draws tasks of each split in `category`: by default the environment's own splits, or the usual ones that it has.

    Raises ValueError if it has no tasks at all.
    """
    if own_splits is not None or category != "all":
        chosen_splits = own_splits if own_splits is not None and category == "all" else category.split(",")
        return {split: environment.tasks(split, task_count) for split in chosen_splits}
    tasks_by_split: dict[str, tuple[Task, ...]] = {}
    # No explorer starts from setups whose states cannot be compared, so their split does not count.
    split_names = ("train", *_SPLITS[1:]) if traits_of(environment).incomparable else _SPLITS
    for split in split_names:
        try:
            tasks_by_split[split] = environment.tasks(split, task_count)
        except ValueError:
            continue  # it has no such split
    if not any(tasks_by_split.values()):
        raise ValueError(f"environment {environment.name!r} has no task in {', '.join(_SPLITS)}; name its --splits")
    return {split: tasks for split, tasks in tasks_by_split.items() if tasks}


if __name__ == "__main__":
    sys.exit(main())
