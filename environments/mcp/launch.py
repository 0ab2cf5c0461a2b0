"""The workers in which servers are called: those of a command confined, the one at an address with a network."""

from __future__ import annotations

import os
import shlex
import urllib.parse
from collections.abc import Mapping
from pathlib import Path

from ..worker import Bounds, IsolatedEnvironment, isolate
from ..worker.venv import interpreter
from .command import NAMED, files_of, variables_of, words_of
from .servers import RECIPE
from .world import NAME

_MODULE = f"{__package__}.inside"
# Processes and threads of an episode: servers with thread pools have dozens. Values of a state, which has no more than
# snapshot.MOST characters.
_PROCESSES, _VALUES = 128, 1_100_000


def bounds(deadline: float, memory: float) -> Bounds:
    """The limits of an episode: seconds of a call, and GiB of address space of each process."""
    return Bounds(deadline=deadline, memory=int(memory * 2**30), processes=_PROCESSES, values=_VALUES)


def confined(
    command: str, folders: Path | None, variables: str, visible: str, errors: str, ignore: str, limits: Bounds
) -> IsolatedEnvironment:
    """The worker of servers that a command starts, which see no files but those that it names.

    Raises ValueError for a command that starts nothing, and InstallError where the SDK is not installed.
    """
    words = words_of(command)
    seen = dict.fromkeys([*files_of(words), *filter(None, visible.split(":")), *([str(folders)] if folders else [])])
    return isolate(
        _MODULE,
        python=interpreter(NAME, RECIPE),
        bounds=limits,
        visible=tuple(seen),
        runs_policy_code=True,  # some servers do, and nobody knows which
        command=words,
        variables=variables_of(variables),
        folders=str(folders) if folders else "",
        errors=errors,
        ignore=[pattern for pattern in ignore.split(",") if pattern],
    )


def unconfined(url: str, headers: str, errors: str, limits: Bounds) -> IsolatedEnvironment:
    """The worker of sessions with the server at `url`. Raises as `confined`."""
    address = {"name": url, "url": address_of(url), "headers": headers_of(headers)}
    return isolate(
        _MODULE, python=interpreter(NAME, RECIPE), bounds=limits, enclosed=False, address=address, errors=errors
    )


def address_of(url: str) -> str:
    """The address itself, or the value of the variable that $NAME stands for. Raises ValueError."""
    found = url
    if url.startswith("$"):
        if url[1:] not in os.environ:
            raise ValueError(f"url names the variable {url[1:]!r}, which is not set here; set it")
        found = os.environ[url[1:]]
    parts = urllib.parse.urlsplit(found)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"url is {url!r}; expected http://HOST/PATH, https://HOST/PATH, or $NAME of a variable")
    if found is url and (parts.username is not None or parts.password is not None or parts.query):
        raise ValueError(
            "url holds a user or a query, which may be secret and would be stored in config.json; set a variable to "
            "the whole address and give url='$NAME'"
        )
    return found


def headers_of(given: str) -> Mapping[str, str]:
    """The headers of `HEADER=NAME …`, each with the value of the variable NAME. Raises ValueError."""
    found = {}
    for word in shlex.split(given):
        header, _, name = word.partition("=")
        if not header or not NAMED.fullmatch(name):
            raise ValueError(f"headers holds {header!r:.100} without a variable; expected HEADER=NAME of a variable")
        if name not in os.environ:
            raise ValueError(f"headers names a variable for {header!r} which is not set here; set it")
        found[header] = os.environ[name]
    return found
