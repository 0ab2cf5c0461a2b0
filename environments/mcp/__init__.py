"""Any MCP server as an environment: its tools, on a folder that every episode has for itself; see docs/mcp.md.

command.py      a command as text → its words, and the files that it reads
connection.py   in a worker: starts a server and calls its tools, by the official SDK
snapshot.py     in a worker: a folder → JSON
inside.py       in a worker: one server an episode
world.py        an episode's server, as environments/tools acts on it
servers.py      ONE table of public servers that this is proved with
starts.py       the folders in which their episodes start
sql.py          statements worth trying on the tables of a database
data.py         installs the public servers
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cojax.environment import EnvironmentFailure, Traits
from cojax.types import Task
from environments import function
from environments.mcp.command import files_of, variables_of, words_of
from environments.mcp.servers import RECIPE, SERVERS
from environments.mcp.world import NAME, Opener, files, listing
from environments.tools import ToolEnvironment
from environments.worker import Bounds, isolate
from environments.worker.venv import interpreter

__all__ = ["CASES", "RECIPE", "make"]

# What `environments.check mcp` checks by itself: label → settings.
CASES = {name: {"server": name} for name in SERVERS}
# An error that a server returns as a success.
_ERRORS = r"(?i)\s*(\w+ )?error\b"
# Deadlines of one call that a verdict may take: it opens a second server and makes the solution's calls.
_VERDICT = 6
# Processes and threads of an episode: servers with thread pools have dozens.
_PROCESSES = 128


def make(
    *,
    command: str = "",
    server: str = "sqlite",
    folders: str = "",
    setups: str = "",
    state: str = "",
    errors: str = _ERRORS,
    ignore: str = "*.pyc,*.log,*-journal,*-wal,*-shm",
    affordances: str = "",
    lookups: str = "",
    variables: str = "",
    visible: str = "",
    instructions: str = "",
    deadline: float = 30.0,
    memory: float = 2.0,
    concurrency: int = 8,
) -> ToolEnvironment:
    """The environment `mcp`: the server that `command` starts, or without one a public `server` of the table.

    Raises ValueError for settings that make no environment, InstallError where `python -m environments.install mcp` was
    not run, and EnvironmentFailure where the server does not start. docs/mcp.md describes the settings.
    """
    if not command:
        if server not in SERVERS:
            raise ValueError(f"server {server!r} not found; available: {', '.join(SERVERS)}; or give a `command`")
        known = SERVERS[server]
        command, folders = known.started(), folders or str(known.folder)
        setups, affordances, variables = setups or known.setups, affordances or known.affordances, known.variables
    words = words_of(command)
    try:
        re.compile(errors)
    except re.error as error:
        raise ValueError(f"errors is {errors!r}, which is no regular expression: {error}") from error
    starts = Path(folders).expanduser().absolute() if folders else None
    worker = isolate(
        "environments.mcp.inside",
        python=interpreter(NAME, RECIPE),
        bounds=Bounds(deadline=deadline, memory=int(memory * 2**30), processes=_PROCESSES),
        visible=tuple(
            dict.fromkeys([*files_of(words), *filter(None, visible.split(":")), *([str(starts)] if starts else [])])
        ),
        command=words,
        variables=variables_of(variables),
        folders=str(starts) if starts else "",
        errors=errors,
        ignore=[pattern for pattern in ignore.split(",") if pattern],
    )
    try:
        begun = _setups(setups, starts)
        documents, declared = listing(worker, Task(NAME, "", begun[0]))
        return ToolEnvironment(
            NAME,
            tools=documents,
            open=Opener(worker, documents, function("state", state) if state else files),
            setups=begun,
            affordances=function("affordances", affordances) if affordances else None,
            lookups=lookups.split(",") if lookups else declared or None,
            instructions=instructions,
            traits=Traits(concurrency=concurrency, deadline=_VERDICT * deadline, worded_alike=True),
        )
    except (ValueError, EnvironmentFailure):
        worker.close()
        raise


def _setups(given: str, starts: Path | None) -> list[Mapping[str, Any]]:
    """The setups of a file, or else one for each start folder, or else an empty one. Raises ValueError."""
    names = sorted(path.name for path in starts.iterdir() if path.is_dir()) if starts and starts.is_dir() else []
    if starts and not names:
        raise ValueError(f"{starts} holds no folders; expected one folder for each start of an episode")
    if not given:
        return [{"folder": name} for name in names] or [{}]
    try:
        found = json.loads(given if given.lstrip().startswith("[") else Path(given).expanduser().read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"setups is {given!r:.200}, which cannot be read as JSON: {error}") from error
    if not (isinstance(found, list) and found and all(isinstance(setup, dict) for setup in found)):
        raise ValueError(f"setups is {given!r:.200}; expected a list of objects, each with `folder`, `calls` or both")
    if unknown := [setup["folder"] for setup in found if setup.get("folder") not in (None, *names)]:
        raise ValueError(f"a setup names the folder {unknown[0]!r}; expected a folder in {starts or '`folders`'}")
    return found
