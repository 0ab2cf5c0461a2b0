"""Copies a run at one of its checkpoints with one thing taken away, and goes on with the copy.

python -m experiments.fork runs/desk --at=40 --without=evolution:40 --workdir=runs/without-40
python -m experiments.fork runs/desk --at=0 --without=task:3a0ed5 --workdir=runs/without-task   # and its descendants
python -m experiments.fork runs/desk --at=40 --without=origin:rare --workdir=runs/without-rare
python -m experiments.fork runs/desk --at=40 --without=signal:rare --workdir=runs/no-signal     # from step 40 on
python -m experiments.fork runs/desk --at=40 --without=validation --workdir=runs/unchecked
python -m experiments.fork runs/desk --at=40 --without=evolution:40 --workdir=runs/five --repeats=5

Everything else stays: weights, seeds, and what steps draw. Nothing of the first run is written to. The same command
goes on with a fork that was stopped, as does python -m experiments.run --workdir=V. Further flags, --config.KEY=VALUE
and --trust-code=FOLDER, are those of python -m experiments.run.
"""

import dataclasses
import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cojax.api.process import RunFailed
from cojax.api.training import finish
from cojax.command import CommandLineParser
from cojax.pool import TaskPool, read_task_record
from cojax.report.comparison import read_ended_run
from cojax.report.console import CONSOLE
from cojax.report.figures import compute_student, find_evolution_step, paired_difference
from cojax.report.lineage import find_task_id
from cojax.report.run import read_scores
from cojax.run.changes import FORK_FILE, FORMS, Change, Fork, read_fork, read_fork_record
from cojax.settings.compatibility import read_run_settings
from cojax.storage.checksums import add_checksum
from cojax.storage.differences import history, read_stored_config
from cojax.storage.episodes import Episodes
from cojax.storage.files import CheckpointError, Log, RunDirectoryError, is_number, read_json, write_json
from cojax.types import content_hash

RUN_FLAGS = ("--config.", "--trust-code=")  # how flags of the runs begin


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns exit status 0, 1 if no fork can be made or its run fails, or 2 for wrong flags."""
    all_arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = CommandLineParser("python -m experiments.fork", __doc__)
    parser.add_argument("parent", metavar="WORKDIR", type=Path, help="the run to fork, such as runs/desk")
    parser.add_argument("--at", required=True, type=int, metavar="STEP", help="a step whose checkpoint it keeps")
    parser.add_argument("--without", required=True, metavar="WHAT", help=f"one of {', '.join(FORMS)}")
    parser.add_argument("--workdir", required=True, type=Path, metavar="V", help="the folder of the fork")
    parser.add_argument(
        "--repeats", type=int, metavar="R", help="R pairs of forks, each with a sampling seed of its own"
    )
    parser.add_argument("--controls", type=Path, help="where forks without a change stand, for --repeats; V/controls")
    run_flags = [argument for argument in all_arguments if argument.startswith(RUN_FLAGS)]
    options = parser.parse_args([argument for argument in all_arguments if argument not in run_flags])
    if options.repeats is not None and options.repeats < 2:
        parser.error(f"--repeats={options.repeats}; an interval needs at least 2")
    try:
        parent = read_parent(options.parent, options.at)
        change = parent.find_change(Change.read(options.without))
        parent.check_place(options.workdir, extends=any(flag.startswith("--config.steps=") for flag in run_flags))
        if options.repeats is None:
            fork_once(parent, change, options.workdir, run_flags)
        else:
            controls = options.controls or options.workdir / "controls"
            fork_repeatedly(parent, change, options.workdir, controls, options.repeats, run_flags)
    except (ValueError, OSError, CheckpointError, RunDirectoryError, RunFailed) as error:
        CONSOLE.print(f"error: {error}", style="bold red")
        return 1
    except KeyboardInterrupt:
        CONSOLE.print("stopped; run the same command again to go on")
        return 130
    return 0


@dataclasses.dataclass(frozen=True)
class Parent:
    """What a fork reads of the run that it is made from, at the checkpoint `step`.

    `host` is the host state of the checkpoint, `pool` holds the tasks that the run has found so far, and `metrics` are
    the records of its steps so far.
    """

    folder: Path
    step: int
    settings: Mapping[str, Any]
    host: Mapping[str, Any]
    pool: TaskPool
    metrics: Sequence[dict[str, Any]]

    def find_change(self, change: Change) -> Change:
        """The change with the whole id of its task. Raises ValueError if the run has nothing of that name to lose."""
        names = {
            "task": [task.id for task in self.pool if task.id.startswith(change.name)],
            "origin": sorted({task.origin for task in self.pool}),
            "evolution": [str(find_evolution_step(row)) for row in self.metrics if "evolution" in row],
            "signal": list(dict.fromkeys(itertools.chain(*(row.get("signals", {}) for row in self.metrics)))),
            "validation": [""] if self.settings["validate"] else [],
        }[change.kind]
        if change.kind == "task" and len(names) != 1:
            raise ValueError(
                f"{len(names)} tasks are {change}…; give an id of {self.folder / 'tasks.jsonl'}, or more of it"
            )
        change = Change("task", names[0]) if change.kind == "task" else change
        if change.name not in names:
            raise ValueError(f"{self.folder} has no {change}; it has {', '.join(names) or 'none'}")
        fork = Fork((*read_fork(self.folder).changes, change))
        if all(fork.is_gone(task, self.pool) for task in itertools.islice(self.pool, self.host["logs"]["tasks"][1])):
            raise ValueError(f"without {change} no task is left at step {self.step}; take away less")
        return change

    def check_place(self, workdir: Path, *, extends: bool) -> None:
        """Raises ValueError for a folder of or around the run, and for a fork that has no step to make."""
        own, other = self.folder.resolve(), workdir.resolve()
        if own == other or own in other.parents or other in own.parents:
            raise ValueError(f"{workdir} and {self.folder} lie in each other; name a folder elsewhere by --workdir")
        if self.step >= self.settings["steps"] and not extends:
            raise ValueError(f"step {self.step} is the run's last; name an earlier --at, or a larger --config.steps")

    def describe_first(self, change: Change) -> str:
        """Says up to which step the fork equals this run, as far as this run has come."""
        last_step = self.metrics[-1]["step"] if self.metrics else 0
        if change.kind in ("signal", "validation"):
            return self._describe_evolution(change, last_step)
        episodes, name = Episodes(self.folder / "episodes"), self.folder
        gone_ids = {task.id for task in self.pool if change.covers(task, self.pool)}
        for step in range(self.step + 1, last_step + 1):
            if not episodes.path(step).exists():
                return f"up to step {step - 1} the fork equals {name}; which tasks step {step} drew is no longer stored"
            if any(find_task_id(episode) in gone_ids for episode in episodes.read(step)):
                return f"up to step {step - 1} the fork equals {name}; step {step} is the first that drew what is gone"
        return f"up to step {last_step} the fork equals {name}: no step since {self.step} drew what is gone"

    def _describe_evolution(self, change: Change, last_step: int) -> str:
        """`describe_first` for a change that steps notice only after an evolution."""
        raises = [row["step"] for row in self.metrics if row.get("signals", {}).get(change.name, change.name == "")]
        first_step = next((step for step in raises if step > self.host["evolved"]), last_step + 1)
        for step in (find_evolution_step(row) for row in self.metrics if "evolution" in row):
            if step > self.step and step >= first_step:
                return (
                    f"up to step {step} the fork draws and learns as {self.folder}; its evolution is the first change"
                )
        return f"up to step {last_step} the fork equals {self.folder}: no evolution since {self.step} used it"


def read_parent(folder: Path, step: int) -> Parent:
    """Reads a run to fork. Raises CheckpointError, ValueError or OSError, which say what to do."""
    settings, hosts = read_run_settings(folder), folder.glob("checkpoints/*/host.json")
    steps = sorted(int(path.parent.name) for path in hosts if is_number(path.parent.name))
    if step not in steps:
        fix = f"name one by --at: {', '.join(map(str, steps)) or 'none'}; a larger --config.checkpoints_kept keeps more"
        raise CheckpointError(f"{folder} keeps no checkpoint of step {step}; {fix}")
    path = folder / f"checkpoints/{step}/host.json"
    try:
        host = read_json(path)["host"]
        int(host["logs"]["tasks"][1]), int(host["logs"]["checksums"][0]), int(host["evolved"])
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}). Choose another checkpoint.") from error
    tasks = (read_task_record(record, line) for line, record in enumerate(Log(folder / "tasks.jsonl").read(), 1))
    return Parent(folder, step, settings, host, TaskPool.of(tasks), tuple(Log(folder / "metrics.jsonl").read()))


def make_fork(parent: Parent, change: Change | None, folder: Path, seed: int | None = None) -> None:
    """Makes the fork, unless `folder` holds it already. Raises FileExistsError if it holds anything else."""
    entry = {"parent": str(parent.folder.resolve()), "step": parent.step, "without": str(change or "")}
    old_record = read_fork_record(parent.folder)
    record = {"forks": [*old_record["forks"], entry], "seed": old_record["seed"] if seed is None else seed}
    if read_fork_record(folder) == add_checksum(record):
        return
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        fix = f"choose another --workdir, or go on with what it holds: python -m experiments.run --workdir={folder}"
        raise FileExistsError(f"{folder} is there already and not this fork; {fix}")
    from cojax.storage.copies import copy_run  # imported here: it loads JAX, and a wrong flag need not wait for it

    config = read_stored_config(parent.folder / "config.json")
    settings = {**config["config"], "workdir": str(folder)}
    settings |= {"validate": False} if change == Change("validation") else {}
    new_config = {**config, "config": settings, **history(config, {**config, "config": settings}, parent.step)}
    copy_run(parent.folder, parent.step, folder, {"config.json": new_config, FORK_FILE: record})


def fork_once(parent: Parent, change: Change, workdir: Path, run_flags: Sequence[str]) -> None:
    """Makes a fork, goes on with it to its end, and compares it with its parent."""
    make_fork(parent, change, workdir)
    CONSOLE.print(f"{workdir}: without {change} from step {parent.step} on; {parent.describe_first(change)}")
    finish(["run", f"--workdir={workdir}", *run_flags], show=True)
    if (parent.folder / "final.json").exists():
        finish(["compare", str(parent.folder), str(workdir), f"--out={workdir / 'compare.html'}"], show=True)
    else:
        CONSOLE.print(f"once {parent.folder} has ended, compare them: cojax compare {parent.folder} {workdir}")


def fork_repeatedly(
    parent: Parent, change: Change, workdir: Path, controls: Path, count: int, run_flags: Sequence[str]
) -> None:
    """Makes `count` pairs of forks and compares each pair: a control that loses nothing, and a fork without the change.

    Both of a pair sample by one seed of their own, so neither shares the parent's luck. Writes repeats.json.
    """
    if (workdir / "config.json").exists():
        raise FileExistsError(f"{workdir} holds a run; name a new folder for the repeats by --workdir")
    old_seed = (parent.settings["seed"], read_fork(parent.folder).seed)
    seeds = [int(content_hash(["repeat", *old_seed, number]), 16) % 2**31 for number in range(1, count + 1)]
    pairs = [(controls / f"{parent.step}-{number}", workdir / str(number)) for number in range(1, count + 1)]
    # All at once: the parent may go on, and keeps a checkpoint only for a while.
    for folders, seed in zip(pairs, seeds, strict=True):
        for folder, pair_change in zip(folders, (None, change), strict=True):
            make_fork(parent, pair_change, folder, seed)
    for folder in itertools.chain(*pairs):
        CONSOLE.print(f"{folder}:")
        finish(["run", f"--workdir={folder}", *run_flags], show=True)
    repeats = []
    for folders, seed in zip(pairs, seeds, strict=True):
        finals = [read_ended_run(folder).final for folder in folders]
        if (difference := paired_difference(*map(read_scores, finals))) is None:
            raise ValueError(f"{folders[1]} has fewer than 2 evaluation tasks: there is nothing to compare")
        repeats.append({"seed": seed, "control": finals[0]["success"], "fork": finals[1]["success"], **difference})
    mean, _, half_width = compute_student([repeat["mean"] for repeat in repeats])
    low, high = mean - half_width, mean + half_width
    facts = {"parent": parent.folder.resolve().name, "step": parent.step, "without": str(change)}
    write_json(workdir / "repeats.json", {**facts, "mean": mean, "low": low, "high": high, "repeats": repeats})
    points = f"{100 * mean:+.1f} points, 95 % interval over {count} repeats {100 * low:+.1f} to {100 * high:+.1f}"
    CONSOLE.print(f"without {change} minus with it: {points}")
