"""The folders in which episodes of the public servers start: small, different, and the same wherever they are made."""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import sqlite3
import subprocess
from pathlib import Path

# Folders of each server.
COUNT = 24
_FRUITS = ("apple", "cherry", "date", "fig", "grape", "lemon", "mango", "olive", "peach", "plum", "quince", "rhubarb")
_CITIES = ("Bergen", "Cork", "Delft", "Essen", "Ghent", "Leeds", "Lyon", "Malmo", "Porto", "Turin")
_DAY = "2026-01-01T00:00:00+0000"
# The person and the time of every commit, as settings of a server's environment.
GIT = (
    "GIT_AUTHOR_NAME=Ada GIT_AUTHOR_EMAIL=ada@example.org GIT_COMMITTER_NAME=Ada GIT_COMMITTER_EMAIL=ada@example.org "
    f"GIT_AUTHOR_DATE={_DAY} GIT_COMMITTER_DATE={_DAY} GIT_CONFIG_NOSYSTEM=1"
)


def name(number: int) -> str:
    """The name of the folder of that number."""
    return f"start-{number:02d}"


def database(folder: Path, number: int) -> None:
    """A database shop.db of stock and orders."""
    rng = random.Random(f"database {number}")
    fruits = rng.sample(_FRUITS, 4)
    with contextlib.closing(sqlite3.connect(folder / "shop.db")) as shop, shop:
        shop.execute("CREATE TABLE stock (id INTEGER PRIMARY KEY, name TEXT, amount INTEGER)")
        shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, name TEXT, city TEXT, amount INTEGER)")
        shop.executemany(
            "INSERT INTO stock VALUES (?, ?, ?)",
            [(row + 1, fruit, rng.randint(5, 90)) for row, fruit in enumerate(fruits)],
        )
        shop.executemany(
            "INSERT INTO orders VALUES (?, ?, ?, ?)",
            [(row + 1, rng.choice(fruits), rng.choice(_CITIES), rng.randint(1, 9)) for row in range(3)],
        )


def repository(folder: Path, number: int) -> None:
    """A git repository of two commits and two branches, with changes that are not staged."""
    rng = random.Random(f"repository {number}")
    one, two, three = (f"{fruit}.txt" for fruit in rng.sample(_FRUITS, 3))
    _git(folder, "init", "--quiet", "--initial-branch=main", "--template=")
    for file in (one, two):
        (folder / file).write_text(f"{rng.choice(_CITIES)}\n")
        _git(folder, "add", file)
        _git(folder, "commit", "--quiet", f"--message=Add {file}")
    _git(folder, "branch", rng.choice(_CITIES).lower())
    for file in (one, three):
        (folder / file).write_text(f"{rng.choice(_CITIES)} {rng.randint(1, 99)}\n")


def notes(folder: Path, number: int) -> None:
    """Four notes of one line each."""
    rng = random.Random(f"notes {number}")
    for fruit in rng.sample(_FRUITS, 4):
        (folder / f"{fruit}.txt").write_text(f"{rng.choice(_CITIES)} {rng.randint(1, 99)}\n")


def _git(folder: Path, *arguments: str) -> None:
    own = dict(word.split("=", 1) for word in shlex.split(GIT))
    subprocess.run(["git", *arguments], cwd=folder, env={**os.environ, **own}, check=True, capture_output=True)
