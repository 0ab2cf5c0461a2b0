"""A command as text: its words, the files that it reads, and the variables of its environment."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

NAMED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def words_of(command: str) -> list[str]:
    """The words of a command. The program and files of the current folder become absolute paths.

    Raises ValueError for a command that cannot be split, or a program that is not found.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ValueError(f"command is {command!r}: {error}; expected words as in a shell") from error
    if not words:
        raise ValueError("command is empty; expected the program that starts an MCP server, and its arguments")
    program = shutil.which(os.path.expanduser(words[0]))
    if program is None:
        raise ValueError(f"command names {words[0]!r}, which is no program on PATH; name its file")
    return [os.path.abspath(program), *(os.path.abspath(word) if os.path.isfile(word) else word for word in words[1:])]


def files_of(words: Sequence[str]) -> tuple[str, ...]:
    """The files and folders that a command reads: its program's, its virtual environment's, and those it names.

    Of a file that is an argument the folder is meant, as a program reads what lies beside it.
    """
    return tuple(dict.fromkeys((*_of_program(words[0]), *filter(None, map(_of_argument, words[1:])))))


def variables_of(given: str) -> Mapping[str, str]:
    """The variables of `NAME=VALUE NAME …`. A bare name has the value of this process's environment.

    Raises ValueError for a name that is none, or that has no value here.
    """
    found = {}
    for word in shlex.split(given):
        name, named, value = word.partition("=")
        if not NAMED.fullmatch(name):
            raise ValueError(f"variables names {name!r}; expected NAME=VALUE, or NAME for one that is set here")
        if not named and name not in os.environ:
            raise ValueError(f"variables names {name!r}, which is not set here; set it, or give {name}=VALUE")
        found[name] = value if named else os.environ[name]
    return found


def _of_program(program: str) -> Iterator[str]:
    for path in dict.fromkeys((program, os.path.realpath(program))):
        folder = Path(path).parent
        root = folder.parent if folder.name == "bin" else folder
        if str(root) == "/":
            continue  # /bin: the system's files are visible
        yield str(root)
        marks = root / "pyvenv.cfg"
        if marks.is_file():
            lines = (line.partition("=") for line in marks.read_text().splitlines())
            homes = [value.strip() for name, _, value in lines if name.strip() == "home"]
            yield from (str(Path(home).parent) for home in homes if str(Path(home).parent) != "/")


def _of_argument(word: str) -> str:
    if not os.path.isabs(word) or not os.path.exists(word) or word == "/":
        return ""
    return os.path.dirname(word) if os.path.isfile(word) else word
