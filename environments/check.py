"""python -m environments.check NAME [--set KEY=VALUE …]: proves an environment sound, by the path that training uses.

NAME is an environment of this folder, or package.module of one from outside. `--set` gives it a setting. `--cluster`
plays its episodes on the nodes of a Ray cluster.

For the tasks of each split: the reference solution earns reward 1, twice with the same observations; without one of its
calls it does not; and an episode answers garbage. It prints one JSON line a split:

    tasks              tasks examined
    replayed           solutions that earned reward 1, twice with the same observations
    mutated            solutions played again without one call, drawn by a fixed seed from all their calls
    mutated_rejected   mutated solutions that did not earn reward 1
    harmless           mutated solutions that did, as the dropped call had changed nothing (a look-up, say)
    let_through        the other mutated solutions: drops that the environment's own verdict does not notice
    thrown, answered   garbage, floods and endless calls; those after which the next episode was sound
    faults, seconds    readable lines; wall time

Setups without tasks, as environments/tools makes them, are checked by tasks made for that: a walk over the
actions that each offers. No episode may answer otherwise because of what another was told. The line has `setups` in
place of `tasks`, and `unnoticed`: the tools of which no call changed the state, so that dropping one goes unnoticed.
That is right for a look-up. `unclean` names calls that were refused and changed the state all the same. `untried`,
where it stands, names tools that an episode offered and of which no call worked. An environment with `cases` is checked
in each of them; its label is `server`.

Where the states of two episodes cannot be compared, tasks without solutions are opened twice, and answer garbage; the
line says that such an environment `synthesizes` nothing.

A call that does not return is a fault, with which its split ends.

Exit code 0 if there is no fault, 1 if there is one, 2 for bad arguments. With --mutations=all every call is dropped in
turn. Drops that are let through are then listed, but are no faults, and so where the environment's file says
OFFICIAL_VERDICT, as a benchmark's verdict cannot be changed.

An environment that acts by code has a check of its own: AppWorld's prints a table, see environments/appworld/audit.py.
"""

import argparse
import functools
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cojax import worlds
from cojax.command import worded
from cojax.environment import Environment, EnvironmentFailure, traits_of
from cojax.environment.watch import HangingCall, watched
from cojax.types import Task, to_json
from .cluster import place
from .soundness import SetupReport, SplitReport, examine_openings
from .worker.venv import InstallError

_SPLITS = ("seed", "dev", "eval", "challenge")
# Tasks of a split that are examined, where neither --count nor COUNT of the environment says.
_COUNT = 200
# Seconds after which a call is said to hang: these, or four times the environment's own deadline, which retries.
_PATIENCE, _OF_ITS_OWN = 120.0, 4

# Of a line, what is said of tasks that are only opened.
_OPENED = ("environment", "split", "thrown", "answered", "faults", "fault_count", "seconds", "tasks")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog=worded("python -m environments.check"),
        description=worded(__doc__),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = worlds.available()
    parser.add_argument("name", help=f"one of {', '.join(names)}, or package.module from outside")
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
    options = parser.parse_args(arguments)
    if options.count is not None and options.count < 1:
        parser.error(f"--count is {options.count}; expected at least 1")
    try:
        module = vars(worlds.module(options.name))
        assignments = options.set + ([f"data={options.data}"] if options.data else [])
        if wrong := [assignment for assignment in assignments if "=" not in assignment]:
            raise ValueError(f"--set {wrong[0]} has no value; give it as --set KEY=VALUE")
        settings = worlds.settings_from_text(options.name, dict(assignment.split("=", 1) for assignment in assignments))
        count = options.count or module.get("COUNT", _COUNT)
        if "check" in module and options.name in names:
            if settings or options.cluster:
                raise ValueError(f"the check of {options.name!r} is its own, and takes no --set and no --cluster")
            return int(module["check"](count, every=options.mutations == "all", **settings))
        faults = 0
        for server, case in module.get("cases", lambda settings: {"": settings})(settings).items():
            name = worlds.full_name(options.name)
            environment = place(options.cluster, name, case) if options.cluster else worlds.load(name, **case)
            tasks_by_split = _drawn(environment, module.get("SPLITS"), options.category, count)
            for line in _lines(environment, options.name, tasks_by_split, module, options.mutations == "all"):
                faults += line["fault_count"]
                print(json.dumps(to_json({"server": server, **line} if server else line)), flush=True)
    except (ValueError, InstallError, EnvironmentFailure) as error:
        parser.error(str(error))
    return 1 if faults else 0


def _lines(
    environment: Environment, name: str, drawn: Mapping[str, tuple[Task, ...]], module: Mapping[str, Any], every: bool
) -> Iterator[dict[str, Any]]:
    """The line of each split. A split ends with the first call that hangs."""
    for split, tasks in drawn.items():
        began = time.monotonic()
        solvable = [task for task in tasks if task.solution]
        if solvable:
            report = SplitReport()
            examine = functools.partial(report.examine, tasks=solvable, own=module.get("TRIALS", {}), every=every)
            report.faults += _hanging(environment, examine)
            list_all = every or module.get("OFFICIAL_VERDICT", False)
            line = report.line(name, split, time.monotonic() - began, every=list_all)
            yield line | {"unsolved": len(tasks) - len(solvable)}
        elif reason := traits_of(environment).incomparable:
            openings = SplitReport()
            openings.faults += _hanging(environment, functools.partial(examine_openings, tasks=tasks, report=openings))
            record = openings.line(name, split, time.monotonic() - began, every=True)
            yield {**{key: record[key] for key in _OPENED}, "synthesizes": f"nothing: {reason}"}
        else:
            bare = SetupReport()
            bare.plays.faults += _hanging(environment, functools.partial(bare.examine, setups=tasks))
            yield bare.line(environment, name, split, time.monotonic() - began)


def _hanging(environment: Environment, examine: Callable[[Environment], None]) -> list[str]:
    """Examines the environment, and returns what is told of a call that hangs, with which the examination ends."""
    patience = max(_PATIENCE, _OF_ITS_OWN * (traits_of(environment).deadline or 0.0))
    try:
        watched(environment, patience, examine)
    except HangingCall as hanging:
        return [str(hanging)]
    return []


def _drawn(
    environment: Environment, own: Sequence[str] | None, category: str, count: int
) -> dict[str, tuple[Task, ...]]:
    """The tasks of each split that is asked for: the environment's own, or else of the usual ones those that it has.

    Raises ValueError where it has none at all.
    """
    if own is not None or category != "all":
        splits = own if own is not None and category == "all" else category.split(",")
        return {split: environment.tasks(split, count) for split in splits}
    by_split: dict[str, tuple[Task, ...]] = {}
    # Nothing is explored from setups whose states cannot be compared.
    names = ("train", *_SPLITS[1:]) if traits_of(environment).incomparable else _SPLITS
    for split in names:
        try:
            by_split[split] = environment.tasks(split, count)
        except ValueError:
            continue  # it has no such split
    if not any(by_split.values()):
        raise ValueError(f"environment {environment.name!r} has no task in {', '.join(_SPLITS)}; name its --splits")
    return {split: tasks for split, tasks in by_split.items() if tasks}


if __name__ == "__main__":
    sys.exit(main())
