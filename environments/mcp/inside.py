"""The environment in its worker: every episode has a folder and a server of its own."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cojax.types import Action, Evaluation, Message, Observation, Task, Triplet
from environments.mcp.connection import Connection, Reply, ServerEnded
from environments.mcp.snapshot import snapshot

# The most characters of an answer.
_ANSWER = 200_000


class Servers:
    """A source of episodes, and of nothing else: tasks, wording and verdicts are made outside of the worker."""

    name = "mcp"

    def __init__(
        self, command: Sequence[str], variables: Mapping[str, str], folders: str, errors: str, ignore: Sequence[str]
    ):
        self.command, self.variables, self.ignore = tuple(command), dict(variables), tuple(ignore)
        self.folders = Path(folders) if folders else None
        self.errors = re.compile(errors) if errors else None

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return ()

    def tasks(self, split: str, count: int, seed: int = 0) -> tuple[Task, ...]:
        return ()

    def start(self, task: Task) -> ServerEpisode:
        return ServerEpisode(self, task.setup)

    def phrase(self, steps: Sequence[Triplet]) -> str | None:
        return None


make = Servers


class ServerEpisode:
    """The server of one episode in the folder `world` of this process's scratch files."""

    def __init__(self, servers: Servers, setup: Mapping[str, Any]) -> None:
        self._servers, self._setup = servers, setup
        self._folder = Path(tempfile.gettempdir()).absolute() / "world"
        home = self._folder.with_name("home")
        command = [word.replace("{folder}", str(self._folder)) for word in servers.command]
        self._server = Connection(command, self._folder, _variables(command[0], home, servers.variables))

    def reset(self) -> tuple[Message, ...]:
        """Copies the start folder, starts the server, and makes the setup's calls.

        Raises RuntimeError where the server does not start, or one of these calls fails.
        """
        self._folder.with_name("home").mkdir()
        if name := self._setup.get("folder"):
            shutil.copytree((self._servers.folders or Path()) / name, self._folder, symlinks=True)
        else:
            self._folder.mkdir()
        self._server.open()
        for call in self._setup.get("calls", ()):
            text, ok = self._answer(self._server.call(call["name"], call.get("arguments", {})))
            if not ok:
                raise RuntimeError(f"the call of {call['name']!r} in the setup failed: {text:.500}")
        return ()

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return self._server.tools

    def step(self, action: Action) -> Observation:
        """Makes the action's one call. `done` means that the server has ended."""
        (call,) = action.calls
        try:
            text, ok = self._answer(self._server.call(call.name, call.arguments))
            return Observation((Message("tool", text),), ok=ok)
        except ServerEnded as ended:
            return Observation((Message("tool", str(ended)),), ok=False, done=True)

    def state(self) -> Mapping[str, Any]:
        return snapshot(self._folder, self._servers.ignore)

    def affordances(self) -> tuple[Action, ...]:
        return ()

    def evaluate(self) -> Evaluation:
        return Evaluation(0.0)

    def close(self) -> None:
        """Nothing: the server ends with this process."""

    def _answer(self, reply: Reply) -> tuple[str, bool]:
        """A reply's text, and whether the call worked: a server may tell an error as a success."""
        lied = self._servers.errors is not None and self._servers.errors.match(reply.text[:1_000])
        cut = len(reply.text) - _ANSWER
        text = reply.text if cut <= 0 else f"{reply.text[:_ANSWER]}\n[{cut} characters cut]"
        return text, reply.ok and not lied


def _variables(program: str, home: Path, own: Mapping[str, str]) -> dict[str, str]:
    """All that a server's environment holds: nothing of this process's, where a user's credentials may stand."""
    path = os.pathsep.join((os.path.dirname(program), "/usr/local/bin", "/usr/bin", "/bin"))
    known = {
        "PATH": path,
        "HOME": str(home),
        "TMPDIR": str(home),
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONHASHSEED": "0",
    }
    return {**known, **own}
