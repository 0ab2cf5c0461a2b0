"""A run directory from somebody else, with attacks planted in it, read by each command that reads one.

    python -m campaign.foreign FOLDER SEED ID …    one JSON line a fault: [[count, id, what is wrong], …]

A command ends in time, with a report or one line of what is wrong; it writes to no file elsewhere, deletes what it made
alone, and runs no code of the directory. Each command runs in a fork of this process, which has loaded their imports.
"""

import contextlib
import importlib
import json
import os
import runpy
import shutil
import signal
import stat
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from campaign import foreign_attacks, leaks, resumption
from campaign.cases import Violation, draw
from cojax.host.processes import end_all
from cojax.storage.run_files import DERIVED_NAMES, FOLDER_NAMES

# Seconds that a command may take, and megabytes that it may hold: the largest file that is read has 256 MB.
_DEADLINE, _PEAK = 120.0, 3_000.0
# What the commands import, themselves not: their flags can be defined once.
_LOADED = ("cojax.report", "cojax.run.assemble", "cojax.run.preflight", "cojax.evaluation.evaluate", "scipy.stats")
_COMMANDS: dict[str, Callable[[Path, Path], tuple[str, ...]]] = {
    "report": lambda run, whole: ("experiments.report", str(run)),
    "report of a task": lambda run, whole: ("experiments.report", str(run), "--task=0"),
    "compare": lambda run, whole: ("experiments.compare", str(run), str(whole)),
    "run": lambda run, whole: ("experiments.run", f"--workdir={run}"),
    "evaluate": lambda run, whole: (
        "experiments.evaluate", f"--config=experiments/continued.py:{run}", f"--checkpoint={run}"
    ),
}  # fmt: skip


def inject(ids: Sequence[str], seed: int, folder: Path, done: Callable[[], None]) -> list[Violation]:
    """All faults, in one process with its forks."""
    return resumption.judged(["campaign.foreign", str(folder / "foreign"), str(seed)], ids, done)


def attack(id: str, seed: int, folder: Path, sound: Path) -> list[tuple[str, str, str]]:
    """Plants attacks in a copy of the sound run, has a command read it, and returns what is wrong."""
    rng = draw(seed, id)
    place = foreign_attacks.Place(folder / id / "run", folder / id / "elsewhere", folder / id / "here")
    shutil.copytree(sound, place.run)
    for path in (place.elsewhere, place.here):
        path.mkdir()
    what = [rng.choice(foreign_attacks.ATTACKS)(place, rng) for _ in range(rng.choice((1, 1, 2, 3)))]
    name = rng.choice(list(_COMMANDS))
    before = {root: _listing(root) for root in (place.run, place.elsewhere, sound)}
    said = folder / id / "said"
    status, megabytes = _ended(_started(_COMMANDS[name](place.run, sound), place.here, said))
    words = said.read_text(errors="replace").splitlines()
    errors = [line for line in words if line.startswith("error: ")]
    found = []
    if status is None:
        found.append(("leaked", f"no end within {_DEADLINE:.0f} s"))
    elif megabytes > _PEAK:
        found.append(("leaked", f"it held {megabytes:.0f} MB"))
    elif any("Traceback" in line for line in words) or (status and (errors != words[-1:] or not errors)):
        found.append(("lost", f"status {status}, and not one line: {' | '.join(words[-3:])[-300:]}"))
    if place.marker.exists():
        found.append(("forged", "code of the directory ran"))
    for root, earlier in before.items():
        changed = {path for path, _ in earlier.items() ^ _listing(root).items()}
        if wrong := sorted(str(path) for path in changed if root != place.run or not _may_change(path, place)):
            found.append(("lost", f"{os.path.relpath(wrong[0], folder / id)} is changed, made or deleted"))
    shutil.rmtree(folder / id)
    return [(count, id, f"{name} of a directory where {', '.join(what)}: {reason}"[:600]) for count, reason in found]


def _may_change(path: Path, place: foreign_attacks.Place) -> bool:
    """Whether a command may write there: what is derived, and what names it may give to files of its own."""
    parts = path.relative_to(place.run).parts
    mine = (
        parts[:1] == () or parts[0] in (*DERIVED_NAMES, "config.json", ".lock", "evaluations") or path.suffix == ".tmp"
    )
    return path not in place.planted and (mine or (len(parts) == 1 and parts[0] in FOLDER_NAMES))


def _listing(root: Path) -> dict[Path, tuple[Any, ...]]:
    """All that is there, without following a link, and how it would show that it was written to."""
    stats = ((path, path.lstat()) for path in (root, *sorted(root.rglob("*"))))
    return {
        path: (about.st_mode, about.st_ino, not stat.S_ISDIR(about.st_mode) and (about.st_size, about.st_mtime_ns))
        for path, about in stats
    }


def _started(command: tuple[str, ...], here: Path, said: Path) -> int:
    """The process id of a fork that runs the command in the folder `here`, and writes what it says to `said`."""
    if pid := os.fork():
        return pid
    status = 1
    try:
        os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT, 0o600), 1)
        os.dup2(1, 2)
        sys.stdout = sys.stderr = os.fdopen(1, "w", closefd=False)
        os.chdir(here)
        sys.argv = list(command)
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        end_all(0.0)
        os._exit(status)


def _ended(pid: int) -> tuple[int | None, float]:
    """The exit status, None of one that did not end in time, and the most megabytes it held."""
    until = time.monotonic() + _DEADLINE
    while True:
        ended, status, used = os.wait4(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), used.ru_maxrss / 1_024
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            os.wait4(pid, 0)
            return None, 0.0
        time.sleep(0.01)


def judge(folder: Path, seed: int, ids: Sequence[str]) -> Iterator[list[tuple[str, str, str]]]:
    """What is wrong with each fault."""
    for module in _LOADED:
        importlib.import_module(module)

    sound = folder / "sound"
    if pid := os.fork():  # what makes the run has threads, and a process that forks should have none
        os.waitpid(pid, 0)
    else:
        try:
            foreign_attacks.whole(sound)
        finally:
            os._exit(int(not (sound / "summary.json").exists()))
    for id in ids:
        yield attack(id, seed, folder, sound)


if __name__ == "__main__":
    with leaks.ending_descendants():
        for found in judge(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]):
            print(json.dumps(found), flush=True)
