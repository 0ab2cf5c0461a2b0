"""Are long tasks failed for their skills, or for composing them?

    python -m experiments.study.composition --arms=uniform,feedback [--out=results] [--actions=4]

A task of the desk asks for one skill, or for several in a row. From the records of a table this compares the held-out
success of long tasks with that of the same skills when a task asks for one alone. It uses the seeds that all its arms
have.
"""

import dataclasses
import math
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from cojax import worlds
from cojax.report.console import CONSOLE
from cojax.types import Task, content_hash
from . import stored
from .markdown import markdown_table
from .record import Record
from .runs import command_parser
from .summary import LONG, held_out_tasks

MASTERED = 0.75  # a skill is mastered if this share of the tasks that ask for it alone is solved


@dataclasses.dataclass(frozen=True)
class Composition:
    """Long tasks of a run, and those of them whose skills are all mastered alone.

    `solved` and `mastered_solved` are shares; `independent` and `mastered_independent` are what they would be if the
    skills of a task failed independently of each other, as often as they do alone.
    """

    tasks: float
    solved: float
    independent: float
    mastered: float
    mastered_solved: float
    mastered_independent: float


def composition(tasks: Sequence[Task], solved: Sequence[bool], actions: int) -> Composition | None:
    """The composition of tasks with at least `actions` actions, finish counted; None where there is no such task.

    A task with a skill that no task asks for alone is left out. Raises ValueError for a query outside the desk's
    language.
    """
    read, suite = worlds.part("desk.grammar").read, worlds.part("desk.skills").DESK
    skills = [tuple(skill.wording for skill, _ in read(task.query, suite)) for task in tasks]
    alone: dict[str, list[bool]] = defaultdict(list)
    for names, success in zip(skills, solved, strict=True):
        if len(names) == 1:
            alone[names[0]].append(success)
    rate = {name: sum(found) / len(found) for name, found in alone.items()}
    long = [
        (names, success)
        for task, names, success in zip(tasks, skills, solved, strict=True)
        if len(task.solution) >= actions and rate.keys() >= set(names)
    ]
    if not long:
        return None
    mastered = [(names, success) for names, success in long if min(rate[name] for name in names) >= MASTERED]
    return Composition(len(long), *_shares(long, rate), len(mastered), *_shares(mastered, rate))


def _shares(long: Sequence[tuple[Sequence[str], bool]], rate: Mapping[str, float]) -> tuple[float, float]:
    """The share of these tasks that are solved, and the mean product of their skills' success alone."""
    if not long:
        return math.nan, math.nan
    products = [math.prod(rate[name] for name in names) for names, _ in long]
    return sum(success for _, success in long) / len(long), sum(products) / len(long)


def of_records(records: Sequence[Record], actions: int) -> Composition | None:
    """The means over an arm's runs; None where a run has no such task.

    Raises ValueError for a run whose held-out tasks are not those of its settings today: its bits are of other tasks.
    """
    evaluated = {record["held_out"]["digest"]: record for record in records}
    tasks = {digest: held_out_tasks(record)[1] for digest, record in evaluated.items()}
    known = {digest: (content_hash([task.id for task in some]), len(some)) for digest, some in tasks.items()}
    for record in records:
        held_out = record["held_out"]
        if known[held_out["digest"]] != (held_out["digest"], held_out["tasks"]):
            raise ValueError(
                f"{record['arm']}-{record['seed']} was evaluated on other tasks than its settings give today, or a "
                f"task's episode was invalid; make arm {record['arm']} again, or choose other --arms or --out"
            )
    found = [
        composition(tasks[record["held_out"]["digest"]], [bit == "1" for bit in record["held_out"]["final"]], actions)
        for record in records
    ]
    if not found or None in found:
        return None
    rows = [dataclasses.astuple(one) for one in found if one is not None]
    return Composition(*(_mean(column) for column in zip(*rows, strict=True)))


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints one row an arm. Exit status 0, or 2 for wrong arguments and records."""
    parser = command_parser("experiments.study.composition", __doc__)
    parser.add_argument("--arms", default="uniform,feedback", help="arms with records, with commas (uniform,feedback)")
    parser.add_argument("--out", type=Path, default=Path("results"), help="where the records are (results)")
    parser.add_argument("--actions", type=int, default=LONG, help=f"actions of a long task, finish counted ({LONG})")
    given = parser.parse_args(arguments)
    rows = []
    try:
        for arm, records in _paired(given.out, given.arms.split(",")).items():
            found = of_records(records, given.actions)
            if found is None:
                raise ValueError(f"no held-out task of {arm} has {given.actions} actions; choose fewer with --actions")
            rows.append([arm, str(len(records)), *_cells(found)])
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    head = ("arm", "runs", "long tasks", "solved", "if independent", "all skills mastered", "solved", "if independent")
    CONSOLE.print(markdown_table(head, rows), markup=False, soft_wrap=True)
    return 0


def _paired(out: Path, arms: Sequence[str]) -> dict[str, list[Record]]:
    """Arm → its records of the seeds that all arms have.

    Raises ValueError where there are none, and for an arm of a grown desk.
    """
    stored_records = {arm: stored.read_arm(out, arm) for arm in arms}
    for arm, found in stored_records.items():
        if not found:
            raise ValueError(
                f"no record of arm {arm!r} in {out / 'runs'}; run its table, or choose other --arms or --out"
            )
        if any(record["config"]["environment"].get("suites") for record in found.values()):
            raise ValueError(f"{arm} is of a grown desk; expected an arm of the desk")
    seeds = sorted(set.intersection(*(set(found) for found in stored_records.values())))
    if not seeds:
        raise ValueError(f"no seed has a record of each of {', '.join(arms)}; choose arms of one table with --arms")
    return {arm: [found[seed] for seed in seeds] for arm, found in stored_records.items()}


def _cells(found: Composition) -> list[str]:
    def percent(share: float) -> str:
        return "–" if math.isnan(share) else f"{100 * share:.1f} %"

    every = [f"{found.tasks:.0f}", percent(found.solved), percent(found.independent)]
    return [*every, f"{found.mastered:.0f}", percent(found.mastered_solved), percent(found.mastered_independent)]


if __name__ == "__main__":
    sys.exit(main())
