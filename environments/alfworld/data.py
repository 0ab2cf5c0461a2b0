"""ALFWorld's games: how to get them, and the list of them. Standard library only.

    $COJAX_CACHE/alfworld/tiny-…/games      games that the official `alfworld-generate` makes of our own problems
    $COJAX_CACHE/alfworld/official/games    a link to the official games, $ALFWORLD_DATA/json_2.1.1

Each has the folders train, valid_seen and valid_unseen. The list of its games lies beside it, and is written last.
"""

import functools
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..worker.venv import InstallError, cache, home, lock, run_module, write_whole

# The first is the default of an installation.
ROOTS = ("tiny", "official")
SPLITS = ("train", "valid_seen", "valid_unseen")
_LIST_FILE, _GAMES_FOLDER = "games.json", "games"
# Commands with which the benchmark's expert only looks or waits.
_IDLE_COMMANDS = frozenset(("look", "inventory", "help"))
_TASK_TEXT_PATTERN = re.compile(r"Your task is to: (.*?)\.\"")
# Seconds in which all games must be generated.
_MAKE_S = 3_600


def find_root(root_name: str) -> Path:
    """The root of that name. Raises InstallError, which says what to do, if it is missing or incomplete."""
    root = _root_folder(root_name)
    if not _is_complete(root):
        raise InstallError(f"ALFWorld's {root_name} games are not in {root / _GAMES_FOLDER}. {_advise(root_name)}")
    return root


def find_games_folder(root: Path) -> Path:
    """The folder of a root's games, with links resolved."""
    return (root / _GAMES_FOLDER).resolve()


def read_game_list(root: Path) -> list[dict[str, Any]]:
    """The solvable games of a root, in the order of their folders.

    Each has its folder `game`, its `split`, its `task` in words, and `walkthrough`, commands that win; the last is
    empty if the game has none.
    """
    return json.loads((root / _LIST_FILE).read_text())


def provide(root_name: str, python_path: str, say: Callable[[str], None]) -> None:
    """Makes that root, or reports that it exists. `python_path` is the interpreter with the wheels.

    Raises InstallError, which says what to do.
    """
    root = _root_folder(root_name)
    with lock(root, f"ALFWorld's {root_name} games", say):
        root.mkdir(exist_ok=True)
        if _is_complete(root) and (root_name == "tiny" or find_games_folder(root) == _official_folder(root)):
            say(f"alfworld: {root_name} games already in {find_games_folder(root)}")
            return
        if root_name == "tiny":
            _generate_games(python_path, root, say)
        else:
            _link_official_games(root)
        _write_game_list(root)
    say(f"alfworld: {len(read_game_list(root))} {root_name} games ready in {find_games_folder(root)}")


def _generate_games(python_path: str, root: Path, say: Callable[[str], None]) -> None:
    """Generates games from our own problems, and moves them into place when all are complete."""
    say(f"alfworld: alfworld-generate makes games in {root}")
    for leftover in ("problems", "making", _GAMES_FOLDER):
        shutil.rmtree(root / leftover, ignore_errors=True)
    arguments = [str(root / "problems"), str(root / "making")]
    # The package makes the folder of that name when it is imported.
    run_variables = {"PYTHONHASHSEED": "0", "ALFWORLD_DATA": str(root / "making")}
    run_module(python_path, f"{__package__}.tiny", arguments, "alfworld-generate fails", _MAKE_S, **run_variables)
    (root / "making").rename(root / _GAMES_FOLDER)
    shutil.rmtree(root / "problems")


def _link_official_games(root: Path) -> None:
    """Links to the official games on this machine. Raises InstallError if there are none."""
    data_folder = _official_folder(root)
    if missing_splits := [split for split in SPLITS if not (data_folder / split).is_dir()]:
        raise InstallError(
            f"ALFWorld's official games are not in {data_folder}: no folder {missing_splits[0]}. {_advise('official')}"
        )
    (root / _LIST_FILE).unlink(missing_ok=True)
    link_path = root / f"{_GAMES_FOLDER}.part"
    link_path.unlink(missing_ok=True)
    link_path.symlink_to(data_folder)
    link_path.replace(root / _GAMES_FOLDER)


def _write_game_list(root: Path) -> None:
    game_entries = list(_list_playable_games(find_games_folder(root)))
    if missing_splits := [split for split in SPLITS if not any(entry["split"] == split for entry in game_entries)]:
        raise InstallError(f"{find_games_folder(root)} has no solvable game in {', '.join(missing_splits)}")
    write_whole(root / _LIST_FILE, json.dumps(game_entries))


def _list_playable_games(games_folder: Path) -> Iterator[dict[str, Any]]:
    """The games that the official loader takes: solvable ones whose names have no slice and no movable receptacle.

    Raises InstallError for a game that names no task.
    """
    for split in SPLITS:
        for game_file in sorted((games_folder / split).glob("**/game.tw-pddl")):
            game_name, game_record = str(game_file.parent.relative_to(games_folder)), json.loads(game_file.read_text())
            if "movable" in game_name or "Sliced" in game_name or not game_record.get("solvable"):
                continue
            if (match := _TASK_TEXT_PATTERN.search(game_record["grammar"])) is None:
                raise InstallError(f"{game_file} names no task")
            walkthrough = [command for command in game_record.get("walkthrough") or () if command not in _IDLE_COMMANDS]
            yield {"game": game_name, "split": split, "task": match[1], "walkthrough": walkthrough}


def _root_folder(root_name: str) -> Path:
    return cache() / "alfworld" / (f"tiny-{_hash_sources()}" if root_name == "tiny" else root_name)


def _is_complete(root: Path) -> bool:
    return (root / _LIST_FILE).exists() and find_games_folder(root).is_dir()


def _official_folder(root: Path) -> Path:
    """Returns the folder of the official games: below ALFWORLD_DATA or, if that is not set, where they were before, or
    in the package's own folder."""
    data_folder = os.environ.get("ALFWORLD_DATA")
    if not data_folder and find_games_folder(root).is_dir():
        return find_games_folder(root)
    return (Path(data_folder or "~/.cache/alfworld").expanduser() / "json_2.1.1").resolve()


@functools.cache
def _hash_sources() -> str:
    """A hash of everything that our own games depend on."""
    return hashlib.sha256((Path(__file__).parent / "tiny.py").read_bytes()).hexdigest()[:8]


def _advise(root_name: str) -> str:
    install = "cojax install alfworld"
    if root_name == "tiny":
        return f"Run: {install} --data=tiny"
    return (
        f"Ways forward:\n  {install} --data=tiny   generates games here, without a network\n"
        f"  ALFWORLD_DATA=FOLDER {install} --data=official   takes the games that you have in FOLDER/json_2.1.1; "
        f"{home('alfworld') / 'bin' / 'alfworld-download'} --data-dir FOLDER downloads them"
    )
