"""An episode's server as environments/tools acts on it: calls, state, and the tools that it must offer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from cojax.environment import EnvironmentFailure, LimitExceeded
from cojax.types import Action, Call, Task
from environments.tools.toolset import Refused
from environments.worker import IsolatedEnvironment
from environments.worker.isolated import IsolatedEpisode

NAME = "mcp"
# The mark, in a worker's documentation of a tool, that the server declares it to change nothing.
READS = "reads"

Documents = tuple[Mapping[str, Any], ...]
Caller = Callable[[str, Mapping[str, Any]], str]
Reader = Callable[[Mapping[str, Any], Caller], Any]


def files(state: Mapping[str, Any], call: Caller) -> Any:
    """The state of a world whose user gives no reader: the snapshot of its folder."""
    return state


class ServerWorld:
    """A world behind a server. The verdict on it is made here, away from the server."""

    def __init__(self, episode: IsolatedEpisode, read: Reader) -> None:
        self._episode, self._read = episode, read

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """What the server answers. Raises Refused for an error, and LimitExceeded where the server has ended."""
        seen = self._episode.step(Action(calls=(Call(name, arguments),)))
        if seen.done:
            raise LimitExceeded(seen.text)
        if not seen.ok:
            raise Refused(seen.text)
        return seen.text

    def state(self) -> Any:
        return self._read(self._episode.state(), self.call)

    def close(self) -> None:
        """Ends the server and every process of its episode."""
        self._episode.close()


@dataclasses.dataclass(frozen=True)
class Opener:
    """setup → a world. Raises EnvironmentFailure where the server does not start, or offers other tools."""

    worker: IsolatedEnvironment
    documents: Documents
    read: Reader

    def __call__(self, setup: Mapping[str, Any]) -> ServerWorld:
        episode = self.worker.start(Task(NAME, "", setup))
        try:
            episode.reset()
            offered, _ = _told(episode.tools())
            if offered != self.documents:
                raise EnvironmentFailure(_difference(self.documents, offered))
        except BaseException:
            episode.close()
            raise
        return ServerWorld(episode, self.read)


def listing(worker: IsolatedEnvironment, task: Task) -> tuple[Documents, tuple[str, ...]]:
    """The documentation of a server's tools, and the names of those that it declares to change nothing.

    The server that tells them is the one of an episode of `task`. Raises EnvironmentFailure where it does not start.
    """
    episode = worker.start(task)
    try:
        episode.reset()
        return _told(episode.tools())
    finally:
        episode.close()


def _told(tools: Documents) -> tuple[Documents, tuple[str, ...]]:
    reading = tuple(tool["function"]["name"] for tool in tools if tool.get(READS))
    return tuple({name: part for name, part in tool.items() if name != READS} for tool in tools), reading


def _difference(expected: Documents, offered: Documents) -> str:
    """What a list of tools has that the other has not, in words."""
    before, now = ({tool["function"]["name"] for tool in tools} for tools in (expected, offered))
    said = [f"no longer {', '.join(sorted(before - now))}"] if before - now else []
    said += [f"now {', '.join(sorted(now - before))}"] if now - before else []
    return (
        f"the server offers {' and '.join(said) or 'the same tools with other documentation, or in another order'}; "
        "expected the tools that it offered when the environment was made"
    )
