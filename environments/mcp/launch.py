"""Settings → the worker that calls servers: confined for those of a command, with a network for one at an address."""

import os
import re
import shlex
import shutil
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ..worker import Bounds, IsolatedEnvironment, isolate
from ..worker.venv import interpreter
from .data import RECIPE
from .world import NAME

_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WORKER_MODULE = f"{__package__}.inside"


def make_confined(
    command: str, folders: Path | None, variables: str, visible: str, errors: str, ignore: str, bounds: Bounds
) -> IsolatedEnvironment:
    """The worker of servers that a command starts, which see no files but those that it names.

    Raises ValueError for a command that starts nothing, and InstallError if the SDK is not installed.
    """
    argv = split_command(command)
    paths = dict.fromkeys([*list_files(argv), *filter(None, visible.split(":")), *([str(folders)] if folders else [])])
    return isolate(
        _WORKER_MODULE,
        python=interpreter(NAME, RECIPE),
        bounds=bounds,
        visible=tuple(paths),
        runs_policy_code=True,  # some servers do, and nobody knows which
        command=argv,
        variables=read_variables(variables),
        folders=str(folders) if folders else "",
        errors=errors,
        ignore=[pattern for pattern in ignore.split(",") if pattern],
    )


def make_unconfined(url: str, headers: str, errors: str, bounds: Bounds) -> IsolatedEnvironment:
    """The worker of sessions with the server at `url`. Raises as `make_confined`."""
    address = {"name": url, "url": read_address(url), "headers": read_headers(headers)}
    return isolate(
        _WORKER_MODULE, python=interpreter(NAME, RECIPE), bounds=bounds, enclosed=False, address=address, errors=errors
    )


def read_address(url: str) -> str:
    """The address itself, or the value of the variable that $NAME stands for. Raises ValueError."""
    address = url
    if url.startswith("$"):
        if url[1:] not in os.environ:
            raise ValueError(f"url names the variable {url[1:]!r}, which is not set here; set it")
        address = os.environ[url[1:]]
    url_parts = urllib.parse.urlsplit(address)
    if url_parts.scheme not in ("http", "https") or not url_parts.hostname:
        raise ValueError(f"url is {url!r}; expected http://HOST/PATH, https://HOST/PATH, or $NAME of a variable")
    if address is url and (url_parts.username is not None or url_parts.password is not None or url_parts.query):
        raise ValueError(
            "url holds a user or a query, which may be secret and would be stored in config.json; set a variable to "
            "the whole address and give url='$NAME'"
        )
    return address


def read_headers(headers_setting: str) -> Mapping[str, str]:
    """The headers of `HEADER=NAME …`, each with the value of the variable NAME. Raises ValueError."""
    headers = {}
    for assignment in shlex.split(headers_setting):
        header, _, variable_name = assignment.partition("=")
        if not header or not _VARIABLE_NAME.fullmatch(variable_name):
            raise ValueError(f"headers holds {header!r:.100} without a variable; expected HEADER=NAME of a variable")
        if variable_name not in os.environ:
            raise ValueError(f"headers names a variable for {header!r} which is not set here; set it")
        headers[header] = os.environ[variable_name]
    return headers


def split_command(command: str) -> list[str]:
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
        raise ValueError(f"command names {words[0]!r}, which is not a program on PATH; name its file")
    return [os.path.abspath(program), *(os.path.abspath(word) if os.path.isfile(word) else word for word in words[1:])]


def list_files(words: Sequence[str]) -> tuple[str, ...]:
    """The files and folders that a command reads: its program's, its virtual environment's, and those it names.

    For a file among the arguments that is its folder, because a program reads what lies beside it.
    """
    paths = [word for word in words[1:] if os.path.isabs(word) and os.path.exists(word) and word != "/"]
    folders = (os.path.dirname(word) if os.path.isfile(word) else word for word in paths)
    return tuple(dict.fromkeys((*_list_program_folders(words[0]), *folders)))


def read_variables(variables_setting: str) -> Mapping[str, str]:
    """The variables of `NAME=VALUE NAME …`. A bare name has the value of this process's environment.

    Raises ValueError for an invalid name, and for one that has no value here.
    """
    variables = {}
    for assignment in shlex.split(variables_setting):
        name, separator, value = assignment.partition("=")
        if not _VARIABLE_NAME.fullmatch(name):
            raise ValueError(f"variables names {name!r}; expected NAME=VALUE, or NAME for one that is set here")
        if not separator and name not in os.environ:
            raise ValueError(f"variables names {name!r}, which is not set here; set it, or give {name}=VALUE")
        variables[name] = value if separator else os.environ[name]
    return variables


def _list_program_folders(program_path: str) -> Iterator[str]:
    for path in dict.fromkeys((program_path, os.path.realpath(program_path))):
        program_folder = Path(path).parent
        install_folder = program_folder.parent if program_folder.name == "bin" else program_folder
        if str(install_folder) == "/":
            continue  # /bin: the system's files are visible
        yield str(install_folder)
        config_file = install_folder / "pyvenv.cfg"
        if config_file.is_file():
            lines = (line.partition("=") for line in config_file.read_text().splitlines())
            homes = [value.strip() for key, _, value in lines if key.strip() == "home"]
            yield from (str(Path(home).parent) for home in homes if str(Path(home).parent) != "/")
