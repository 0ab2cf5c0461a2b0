"""ALFWorld's games: how they are had, and the list of them. Standard library only.

    $COJAX_CACHE/alfworld/official/json_2.1.1   the official games, downloaded, or copied there by hand
    $COJAX_CACHE/alfworld/tiny-…/json_2.1.1     games that the official `alfworld-generate` makes of our own problems

Each has the folders train, valid_seen and valid_unseen. A root is complete when its list games.json is there.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from environments.worker.venv import InstallError, cache, locked

# The first is the default of an installation.
ROOTS = ("official", "tiny")
SPLITS = ("train", "valid_seen", "valid_unseen")
_LIST = "games.json"
_TASK = re.compile(r"Your task is to: (.*?)\.\"")
# Seconds for the server's first answer, for the whole download, and for generating.
_PATIENCE, _DOWNLOAD, _GENERATE = 15, 3_600, 3_600
_PROBE = """
import urllib.request
urllib.request.urlopen(urllib.request.Request("https://github.com/alfworld/alfworld", method="HEAD"), timeout=5)
"""
# The official script chooses among wordings by chance, and its expert sometimes a command; it asks nothing where it
# writes into another folder than it reads.
_RUN = """
import random, runpy, sys
random.seed(0)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclasses.dataclass(frozen=True)
class Listed:
    """A solvable game: its folder, its split, its task in words, and commands that win it."""

    game: str
    split: str
    task: str
    walkthrough: tuple[str, ...]


def chosen(name: str) -> str:
    """The root of that name; for "installed" the first that is there, else the first."""
    if name != "installed":
        return name
    return next((root for root in ROOTS if (_root(root) / _LIST).exists()), ROOTS[0])


def games(name: str) -> Path:
    """The folder of the games. Raises InstallError, which says what to do, where they are not there."""
    root = _root(name)
    if not (root / _LIST).exists():
        raise InstallError(f"ALFWorld's {name} games are not in {root}. {_ways(name)}")
    return root / "json_2.1.1"


def listed(name: str) -> list[Listed]:
    """The games, in the order of their folders. Raises InstallError as `games` does."""
    found = json.loads((games(name).parent / _LIST).read_text())
    return [Listed(**{**one, "walkthrough": tuple(one["walkthrough"])}) for one in found]


def provide(name: str, python: str, say: Callable[[str], None]) -> None:
    """Makes that root, or reports that it exists. `python` is the interpreter with the wheels.

    Existing data is never overwritten. Raises InstallError, which says what to do.
    """
    root = _root(name)
    try:
        root.mkdir(parents=True, exist_ok=True)
        with locked(root.with_suffix(".lock"), say):
            if (root / _LIST).exists():
                say(f"alfworld: {name} games already in {root}")
                return
            if name == "tiny":
                _generate(Path(python), root, say)
            elif not (root / "json_2.1.1").exists():
                _download(Path(python), root, say)
            _write_list(root)
    except OSError as error:
        raise InstallError(f"cannot write ALFWorld's {name} games to {root}: {error}") from error
    say(f"alfworld: {len(listed(name))} {name} games ready in {root}")


def _generate(python: Path, root: Path, say: Callable[[str], None]) -> None:
    """Writes our problems, and has the official script make games of them, in their place when all are made."""
    for left in ("problems", "making"):
        shutil.rmtree(root / left, ignore_errors=True)
    say(f"alfworld: alfworld-generate makes games in {root}")
    _run([str(python), "-m", "environments.alfworld.tiny", str(root / "problems")], _GENERATE, "cannot write problems")
    package = next(python.parents[1].glob("lib/python3*/site-packages/alfworld/data"))
    script = [str(python.with_name("alfworld-generate")), "--data_path", str(root / "problems")]
    script += ["--save_path", str(root / "making"), "--domain", str(package / "alfred.pddl")]
    # Without an end the script leaves out the last game.
    script += ["--grammar", str(package / "alfred.twl2"), "--end", "1000000"]
    _run([str(python), "-c", _RUN, *script], _GENERATE, "alfworld-generate fails", {"PYTHONHASHSEED": "0"})
    (root / "making").rename(root / "json_2.1.1")
    shutil.rmtree(root / "problems")


def _download(python: Path, root: Path, say: Callable[[str], None]) -> None:
    """Downloads with the package's own script."""
    say(f"alfworld: alfworld-download into {root}")
    try:
        _run([str(python), "-c", _PROBE], _PATIENCE, "its server cannot be reached")
        script = [str(python.with_name("alfworld-download")), "--data-dir", str(root)]
        _run([str(python), *script], _DOWNLOAD, "the download broke off")
    except InstallError as error:
        raise InstallError(f"ALFWorld's official games cannot be had: {error}\n{_ways('official')}") from error


def _write_list(root: Path) -> None:
    """Lists the games that are solvable, as the official loader takes them."""
    folder, found = root / "json_2.1.1", list[dict[str, Any]]()
    for split in SPLITS:
        for file in sorted((folder / split).glob("**/game.tw-pddl")):
            game = file.parent.relative_to(folder)
            told = json.loads(file.read_text())
            if "movable" in str(game) or "Sliced" in str(game) or not told.get("solvable"):
                continue
            if (task := _TASK.search(told["grammar"])) is None:
                raise InstallError(f"{file} names no task")
            walkthrough = told.get("walkthrough") or []
            found.append({"game": str(game), "split": split, "task": task[1], "walkthrough": walkthrough})
    if missing := [split for split in SPLITS if not any(one["split"] == split for one in found)]:
        raise InstallError(f"{folder} has no solvable game in {', '.join(missing)}; remove it and install again")
    part = root / f"{_LIST}.part"
    part.write_text(json.dumps(found))
    part.replace(root / _LIST)


def _root(name: str) -> Path:
    return cache() / "alfworld" / (name if name == "official" else f"tiny-{_version()}")


@functools.cache
def _version() -> str:
    """What our own problems depend on."""
    return hashlib.sha256((Path(__file__).parent / "tiny.py").read_bytes()).hexdigest()[:8]


def _ways(name: str) -> str:
    install = "python -m environments.install alfworld"
    if name == "tiny":
        return f"Run: {install} --data=tiny"
    return (
        f"Ways forward:\n  {install} --data=tiny   generates games here, without a network\n"
        f"  {install}   downloads the official games, where there is a network, or lists what you put at "
        f"{_root(name) / 'json_2.1.1'}"
    )


def _run(command: list[str], deadline: float, complaint: str, more: dict[str, str] | None = None) -> None:
    own = {"PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONDONTWRITEBYTECODE": "1", **(more or {})}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=deadline, env={**os.environ, **own})
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallError(f"{complaint}: {error}") from error
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise InstallError(f"{complaint}: {lines[-1][:500] if lines else f'exit status {done.returncode}'}")
