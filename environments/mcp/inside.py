"""The environment in its worker: every episode has a server of its own, in a folder of its own, or a session."""

import asyncio
import dataclasses
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cojax.types import Action, Evaluation, Message, Observation
from ..worker.served import Episodes
from .connection import Connection, ServerEnded
from .snapshot import TooLarge, snapshot
from .transports import Address, Process, rehearse

# The most characters of an answer.
_ANSWER = 200_000


@dataclasses.dataclass(frozen=True)
class Servers:
    """How the server of an episode is had: by a command, or at an address."""

    errors: re.Pattern[str] | None
    ignore: Sequence[str]
    command: Sequence[str]
    variables: Mapping[str, str]
    folders: str
    address: Mapping[str, Any] | None


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
        asyncio.run(rehearse())
    servers = Servers(re.compile(errors) if errors else None, ignore, command, variables, folders, address)
    return Episodes("mcp", lambda task: ServerEpisode(servers, task.setup))


class ServerEpisode:
    """A server: a process of its own in the folder `world` of this process's scratch files, or one at an address."""

    def __init__(self, servers: Servers, setup: Mapping[str, Any]) -> None:
        self._servers, self._setup = servers, setup
        self._folder = Path(tempfile.gettempdir()).absolute() / "world"
        self._home = self._folder.with_name("home")
        self._server = Connection(Address(**servers.address) if servers.address else self._process())

    def reset(self) -> tuple[Message, ...]:
        """Copies the start folder and starts the server, or a session; what the server tells, as JSON.

        Raises RuntimeError where the server does not start, and TooLarge for a start folder that cannot be compared.
        """
        self._home.mkdir()
        if name := self._setup.get("folder"):
            shutil.copytree(Path(self._servers.folders) / name, self._folder, symlinks=True)
        else:
            self._folder.mkdir()
        snapshot(self._folder, self._servers.ignore)
        server = self._server
        server.open()
        told = {"reads": server.reads, "resources": server.has_resources, "instructions": server.instructions}
        return (Message("system", json.dumps(told)),)

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return self._server.tools

    def step(self, action: Action) -> Observation:
        """Makes the action's one call. `done` means that the server has ended."""
        (call,) = action.calls
        try:
            text, ok = self._server.call(call.name, call.arguments)
        except ServerEnded as ended:
            return Observation((Message("tool", str(ended)),), ok=False, done=True)
        # A server may tell an error as a success.
        lied = self._servers.errors is not None and self._servers.errors.match(text[:1_000])
        cut = len(text) - _ANSWER
        text = text if cut <= 0 else f"{text[:_ANSWER]}\n[{cut} characters cut]"
        return Observation((Message("tool", text),), ok=ok and not lied)

    def state(self) -> Mapping[str, Any]:
        """The folder as JSON; of one that has become too large, that it has."""
        if self._servers.address:
            return {}
        try:
            return snapshot(self._folder, self._servers.ignore)
        except TooLarge as error:
            return {"too_large": str(error)}

    def affordances(self) -> tuple[Action, ...]:
        return ()

    def evaluate(self) -> Evaluation:
        """1.0 where the server can be used again, as it offers the tools that it offered at first."""
        return Evaluation(float(self._server.offers_the_same()))

    def close(self) -> None:
        """Nothing: the server, or the session, ends with this process."""

    def _process(self) -> Process:
        command = [word.replace("{folder}", str(self._folder)) for word in self._servers.command]
        return Process(command, self._folder, _variables(command[0], self._home, self._servers.variables))


def _variables(program: str, home: Path, own: Mapping[str, str]) -> dict[str, str]:
    """All that a server's environment holds: nothing of this process's, where a user's credentials may stand."""
    path = os.pathsep.join((os.path.dirname(program), "/usr/local/bin", "/usr/bin", "/bin"))
    folders = {"PATH": path, "HOME": str(home), "TMPDIR": str(home)}
    return {**folders, "LANG": "C.UTF-8", "TZ": "UTC", "PYTHONHASHSEED": "0", **own}
