"""The public MCP servers of servers.toml, with which the environment is proved.

Each is installed in its own virtual environment. The folders in which their episodes start are small and different, and
do not depend on where they are made.
"""

import contextlib
import dataclasses
import json
import os
import random
import shlex
import shutil
import sqlite3
import subprocess
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..worker.venv import InstallError, Recipe, cache, install, interpreter

# The environment's own packages, in which the SDK's client runs. Servers of older versions understand it.
RECIPE = Recipe(requirements=("mcp==2.3.0",), proof="from mcp import Client", pythons=((3, 11), (3, 12), (3, 13)))

# Folders of each server.
START_COUNT = 24
_FRUITS = ("apple", "cherry", "date", "fig", "grape", "lemon", "mango", "olive", "peach", "plum", "quince", "rhubarb")
_CITIES = ("Bergen", "Cork", "Delft", "Essen", "Ghent", "Leeds", "Lyon", "Malmo", "Porto", "Turin")


@dataclasses.dataclass(frozen=True)
class Server:
    """A public server.

    `recipe` is its virtual environment, and `fill` makes the folder of number n in which an episode starts.
    Comments in servers.toml explain the rest.
    """

    name: str
    recipe: Recipe
    command: str
    fill: Callable[[Path, int], None]
    state: str = ""
    affordances: str = ""
    variables: str = ""
    known: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def home(self) -> str:
        """The name of its virtual environment."""
        return f"mcp-{self.name}"

    @property
    def folder(self) -> Path:
        """The folder of the folders in which episodes start."""
        return cache() / "environments" / f"{self.home}-starts"

    @property
    def setups(self) -> str:
        """The setups, as JSON."""
        return json.dumps([{"folder": name_start(start_number), **self.known} for start_number in range(START_COUNT)])

    def start_command(self) -> str:
        """The command that starts it. Raises InstallError if it is not installed."""
        return str(Path(interpreter(self.home, self.recipe)).with_name(self.command))


def name_start(start_number: int) -> str:
    """The name of the folder of that number."""
    return f"start-{start_number:02d}"


def fill_database(start_folder: Path, start_number: int) -> None:
    """A database shop.db of stock and orders."""
    rng = random.Random(f"database {start_number}")
    fruits = rng.sample(_FRUITS, 4)
    with contextlib.closing(sqlite3.connect(start_folder / "shop.db")) as connection, connection:
        connection.execute("CREATE TABLE stock (id INTEGER PRIMARY KEY, name TEXT, amount INTEGER)")
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, name TEXT, city TEXT, amount INTEGER)")
        connection.executemany(
            "INSERT INTO stock VALUES (?, ?, ?)",
            [(row_index + 1, fruit, rng.randint(5, 90)) for row_index, fruit in enumerate(fruits)],
        )
        connection.executemany(
            "INSERT INTO orders VALUES (?, ?, ?, ?)",
            [(row_index + 1, rng.choice(fruits), rng.choice(_CITIES), rng.randint(1, 9)) for row_index in range(3)],
        )


def fill_git(start_folder: Path, start_number: int) -> None:
    """A git repository of two commits and two branches, with changes that are not staged."""
    rng = random.Random(f"repository {start_number}")
    first_file_name, second_file_name, third_file_name = (f"{fruit}.txt" for fruit in rng.sample(_FRUITS, 3))
    _run_git(start_folder, "init", "--quiet", "--initial-branch=main", "--template=")
    for file_name in (first_file_name, second_file_name):
        (start_folder / file_name).write_text(f"{rng.choice(_CITIES)}\n")
        _run_git(start_folder, "add", file_name)
        _run_git(start_folder, "commit", "--quiet", f"--message=Add {file_name}")
    _run_git(start_folder, "branch", rng.choice(_CITIES).lower())
    for file_name in (first_file_name, third_file_name):
        (start_folder / file_name).write_text(f"{rng.choice(_CITIES)} {rng.randint(1, 99)}\n")


def notes(start_folder: Path, start_number: int) -> None:
    """Four notes of one line each."""
    rng = random.Random(f"notes {start_number}")
    for fruit in rng.sample(_FRUITS, 4):
        (start_folder / f"{fruit}.txt").write_text(f"{rng.choice(_CITIES)} {rng.randint(1, 99)}\n")


def _run_git(folder: Path, *arguments: str) -> None:
    variables = dict(word.split("=", 1) for word in shlex.split(SERVERS["git"].variables))
    subprocess.run(["git", *arguments], cwd=folder, env={**os.environ, **variables}, check=True, capture_output=True)


def _make_server(name: str, module: str, requirements: list[str], **fields: Any) -> Server:
    recipe = Recipe(tuple(requirements), proof=f"import {module}", pythons=RECIPE.pythons)
    if "affordances" in fields:
        fields["affordances"] = f"{__package__}.{fields['affordances']}"
    return Server(name, recipe, fill={"sqlite": fill_database, "git": fill_git, "filesystem": notes}[name], **fields)


_TABLE_TEXT = Path(__file__).with_name("servers.toml").read_text(encoding="utf-8")
SERVERS = {name: _make_server(name, **fields) for name, fields in tomllib.loads(_TABLE_TEXT).items()}

ALL_SERVERS, NO_SERVER = "all", "none"
# What --data can be: all servers, one of them, or none, for a server of your own.
ROOTS = (ALL_SERVERS, *SERVERS, NO_SERVER)


def provide(choice: str, python_path: str, say: Callable[[str], None]) -> None:
    """Installs the servers that `choice` names. Raises InstallError."""
    for server in SERVERS.values() if choice == ALL_SERVERS else [SERVERS[choice]] if choice in SERVERS else []:
        install(server.home, server.recipe, None, say)
        _make_start_folders(server)


def _make_start_folders(server: Server) -> None:
    """Makes the start folders anew: a folder is complete once it has its name."""
    part_folder = server.folder.with_name(f"{server.folder.name}.part")
    for folder in (part_folder, server.folder):
        shutil.rmtree(folder, ignore_errors=True)
    try:
        for start_number in range(START_COUNT):
            start_folder = part_folder / name_start(start_number)
            start_folder.mkdir(parents=True)
            server.fill(start_folder, start_number)
        part_folder.rename(server.folder)
    except (OSError, subprocess.SubprocessError) as error:
        raise InstallError(f"the start folders of {server.name!r} cannot be made: {error}") from error
