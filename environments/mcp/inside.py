"""The environment in its worker: every episode has a server of its own, in a folder of its own, or a session."""

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
from ..worker.served import Episodes
from .connection import Connection, ServerEnded
from .snapshot import TooLarge, snapshot
from .transports import Address, Process, rehearse

# The most characters of an answer.
_ANSWER = 200_000


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
    lies = re.compile(errors) if errors else None

    def start(task: Task) -> ServerEpisode:
        world = Path(tempfile.gettempdir()).absolute() / "world"
        way: Process | Address
        if address:
            way = Address(**address)
        else:
            words = [word.replace("{folder}", str(world)) for word in command]
            way = Process(words, world, _variables(words[0], world.with_name("home"), variables))
        begun = Path(folders) / name if (name := task.setup.get("folder")) else None
        return ServerEpisode(way, world, begun, lies, ignore)

    return Episodes("mcp", start)


class ServerEpisode:
    """A server: a process of its own in the folder `world` of this process's scratch files, or one at an address.

    The folder is a copy of `begun`. An answer that matches `lies` is an error, whatever the server says.
    """

    def __init__(
        self,
        way: Process | Address,
        world: Path,
        begun: Path | None,
        lies: re.Pattern[str] | None,
        ignore: Sequence[str],
    ) -> None:
        self._folder, self._begun, self._lies, self._ignore = world, begun, lies, ignore
        self._elsewhere, self._server = isinstance(way, Address), Connection(way)

    def reset(self) -> tuple[Message, ...]:
        """Copies the start folder and starts the server, or a session; what the server tells, as JSON.

        Raises RuntimeError where the server does not start, and TooLarge for a start folder that cannot be compared.
        """
        self._folder.with_name("home").mkdir()
        if self._begun:
            shutil.copytree(self._begun, self._folder, symlinks=True)
        else:
            self._folder.mkdir()
        snapshot(self._folder, self._ignore)
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
        lied = self._lies is not None and self._lies.match(text[:1_000])
        cut = len(text) - _ANSWER
        text = text if cut <= 0 else f"{text[:_ANSWER]}\n[{cut} characters cut]"
        return Observation((Message("tool", text),), ok=ok and not lied)

    def state(self) -> Mapping[str, Any]:
        """The folder as JSON; of one that has become too large, that it has."""
        if self._elsewhere:
            return {}
        try:
            return snapshot(self._folder, self._ignore)
        except TooLarge as error:
            return {"too_large": str(error)}

    def affordances(self) -> tuple[Action, ...]:
        return ()

    def evaluate(self) -> Evaluation:
        """1.0 where the server can be used again, as it offers the tools that it offered at first."""
        return Evaluation(float(self._server.offers_the_same()))

    def close(self) -> None:
        """Nothing: the server, or the session, ends with this process."""


def _variables(program: str, home: Path, own: Mapping[str, str]) -> dict[str, str]:
    """All that a server's environment holds: nothing of this process's, where a user's credentials may stand."""
    path = os.pathsep.join((os.path.dirname(program), "/usr/local/bin", "/usr/bin", "/bin"))
    folders = {"PATH": path, "HOME": str(home), "TMPDIR": str(home)}
    return {**folders, "LANG": "C.UTF-8", "TZ": "UTC", "PYTHONHASHSEED": "0", **own}
