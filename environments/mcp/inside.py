"""The environment in its worker: every episode has its own server in its own folder, or its own session."""

import asyncio
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cojax.types import Action, Evaluation, Message, Observation, Task
from ..tools.environment import parse_text
from ..tools.toolset import find_error
from ..worker.served import Episodes, PlainEpisode
from .connection import Address, Connection, Process, import_late_modules
from .snapshot import take_snapshot

# The most characters of an answer.
_MAX_ANSWER_CHARS = 200_000


def make(
    errors: str,
    ignore: Sequence[str] = (),
    command: Sequence[str] = (),
    variables: Mapping[str, str] = MappingProxyType({}),
    folders: str = "",
    address: Mapping[str, Any] | None = None,
) -> Episodes:
    """A source of episodes, and of nothing else: tasks, wording and verdicts are made outside of the worker."""
    if address:
        asyncio.run(import_late_modules())
    error_pattern = re.compile(errors) if errors else None

    def start(task: Task) -> PlainEpisode:
        world_folder = Path(tempfile.gettempdir()).absolute() / "world"
        if address:
            return _make_episode(Address(**address), world_folder, None, error_pattern, ignore)
        argv = [word.replace("{folder}", str(world_folder)) for word in command]
        transport = Process(argv, world_folder, _make_variables(argv[0], world_folder.with_name("home"), variables))
        folder = task.setup.get("folder")
        return _make_episode(transport, world_folder, Path(folders) / folder if folder else None, error_pattern, ignore)

    return Episodes("mcp", start)


def _make_episode(
    transport: Process | Address,
    world_folder: Path,
    start_folder: Path | None,
    errors: re.Pattern[str] | None,
    ignore: Sequence[str],
) -> PlainEpisode:
    """A server: a process of its own in the folder `world_folder` of this process's scratch files, or one at an
    address.

    The folder is a copy of `start_folder`. What the server tells at first is the message, as JSON; an answer that
    matches `errors` is an error, whatever the server says. The server, or the session, ends with this process.

    Raises RuntimeError if the server does not start, and OverflowError for a start folder that cannot be compared.
    """
    world_folder.with_name("home").mkdir()
    if start_folder:
        shutil.copytree(start_folder, world_folder, symlinks=True)
    else:
        world_folder.mkdir()
    take_snapshot(world_folder, ignore)
    connection = Connection(transport)
    connection.open()
    facts = {"reads": connection.reads, "resources": connection.has_resources, "instructions": connection.instructions}

    def step(action: Action) -> Observation:
        """Makes the action's one call. `done` means that the server has ended."""
        (call,) = action.calls
        try:
            reply_text, is_success = connection.call(call.name, call.arguments)
        except EOFError as error:
            return Observation((Message("tool", str(error)),), ok=False, done=True)
        is_error = errors is not None and (errors.match(reply_text[:1_000]) or find_error(parse_text(reply_text)))
        excess = len(reply_text) - _MAX_ANSWER_CHARS
        reply_text = reply_text if excess <= 0 else f"{reply_text[:_MAX_ANSWER_CHARS]}\n[{excess} characters cut]"
        return Observation((Message("tool", reply_text),), ok=is_success and not is_error)

    def state() -> Mapping[str, Any]:
        """The folder as JSON, or the fact that it has become too large."""
        try:
            return take_snapshot(world_folder, ignore)
        except OverflowError as error:
            return {"too_large": str(error)}

    return PlainEpisode(
        step,
        reset=lambda: (Message("system", json.dumps(facts)),),
        tools=lambda: connection.tools,
        state=dict if isinstance(transport, Address) else state,
        # 1.0 if the server can be used again, because it offers the tools that it offered at first.
        evaluate=lambda: Evaluation(float(connection.still_offers_tools())),
    )


def _make_variables(program_path: str, home_folder: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """All of a server's environment. It takes nothing from this process's, which may hold a user's credentials."""
    search_path = os.pathsep.join((os.path.dirname(program_path), "/usr/local/bin", "/usr/bin", "/bin"))
    folder_variables = {"PATH": search_path, "HOME": str(home_folder), "TMPDIR": str(home_folder)}
    return {**folder_variables, "LANG": "C.UTF-8", "TZ": "UTC", "PYTHONHASHSEED": "0", **variables}
