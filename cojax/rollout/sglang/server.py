"""One SGLang server: how it takes weights, and how one of ours is started."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from cojax.rollout.sglang.process import ServerProcess
from cojax.rollout.sglang.server_client import Lost, RequestRefused, ServerClient
from cojax.rollout.sglang.sleep import Asleep

_LOG = logging.getLogger(__name__)
_STARTING_LOOK = 0.5  # seconds between two looks at a server that starts
_TAKING_LOOK = 0.2  # seconds between two looks at a server that takes weights by itself

# new: has had no weights yet; up: serves the current ones; taking: a sync gives it new ones; down: left out, its watch
# looks after it; returning: its watch brings it back; resting: has given its memory back until the next sync; lost:
# ours, and not to be started again.
State = Literal["new", "up", "taking", "down", "returning", "resting", "lost"]


@dataclasses.dataclass(frozen=True)
class Target:
    """The weights to serve: a model folder, and the label under which servers report it."""

    folder: Path
    label: str


@dataclasses.dataclass(frozen=True)
class Patience:
    """Seconds: for a server to start, to take new weights, and between two looks at its health.

    `restarts` is how often each launched server may be started again.
    """

    startup: float = 600.0
    sync: float = 600.0
    probe_every: float = 10.0
    restarts: int = 5


@dataclasses.dataclass(eq=False)
class Server:
    """One server; `process` where it is ours to start and kill."""

    endpoint: ServerClient
    process: ServerProcess | None
    restarts: int
    state: State = "new"
    fault: str = "not started"
    gone: bool = False  # nobody was there when it was asked last: it may yet be started
    label: str = ""  # of the weights that it took last
    sessions: int = 0
    returns: int = 0  # that are over, up or not
    replies: int = 0  # since the last look: it lives
    misses: int = 0  # looks in a row without a sign of life
    silent: float = 0.0  # since when, on the monotonic clock; 0 for not
    refused: list[str] = dataclasses.field(default_factory=list)  # labels of weights, since it was up
    asleep: Asleep = dataclasses.field(default_factory=Asleep)
    turn: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)  # a rest and an update exclude each other
    reading: Path | None = None  # a folder that must not go meanwhile
    requests: set[asyncio.Task[Any]] = dataclasses.field(default_factory=set)
    alarm: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        return f"server {self.process.index}" if self.process else self.endpoint.url

    @property
    def up(self) -> bool:
        return self.state == "up"

    async def take(
        self, target: Target, deadline: float, current: Callable[[], bool], *, follow: bool, known: bool = True
    ) -> None:
        """Has it take the target; one to `follow` does so by itself, and is waited for while the target is `current`.

        Raises TimeoutError after `deadline` seconds, RequestRefused, and Lost; not Lost where it follows and is not
        `known` to have answered before.
        """
        self.reading = target.folder
        try:
            async with asyncio.timeout(deadline):
                if follow:
                    await self._taken(target, known, current)
                else:
                    await self._update(target)
        except (Lost, RequestRefused):  # but after a timeout it may be reading still
            self.reading = None
            raise
        self.reading = None
        self.label = target.label if current() or not follow else self.label

    async def rest(self) -> None:
        """Has it give its memory back until it takes weights, or `wake`. Raises what `ServerClient.rest` raises."""
        async with self.turn:
            self.asleep.born = await self.endpoint.born()
            await self.endpoint.rest(self.asleep)

    async def wake(self) -> None:
        """Has it take its memory again. Raises Lost or RequestRefused."""
        async with self.turn:
            if await self._asleep():
                await self.endpoint.wake(self.asleep)

    async def _asleep(self) -> Asleep:
        # One that was started again meanwhile has its memory, and would not survive being given it twice.
        if self.asleep and await self.endpoint.born() != self.asleep.born:
            await self.asleep.remove(self.asleep.kinds)
        return self.asleep

    async def _update(self, target: Target) -> None:
        try:
            async with self.turn:
                await self.endpoint.update(target.folder, target.label, await self._asleep())
        except RequestRefused as refusal:
            raise RequestRefused(f"{refusal}. The folder must be there for the server under the same path") from refusal

    async def _taken(self, target: Target, known: bool, current: Callable[[], bool]) -> None:
        while current():  # one that reads slowly may skip a version
            try:
                if await self.endpoint.version() == target.label:
                    return
            except Lost:
                if known:
                    raise
            await asyncio.sleep(_TAKING_LOOK)

    def may_start(self) -> bool:
        """Whether one of ours may be started; every start but the first takes one of its restarts."""
        assert self.process is not None
        if not self.process.starts:
            return True
        self.refused.clear()
        if not self.restarts:
            self.fault = f"it was restarted as often as sglang.restarts allows; {self.fault}"
            _LOG.error("%s is given up: %s", self.name, self.fault)
            return False
        self.restarts -= 1
        _LOG.warning("%s is started again, %d more times at most", self.name, self.restarts)
        return True

    async def start(self, target: Target, deadline: float, *, any_weights: bool) -> None:
        """Starts the process on the target and waits until it serves it, or `any_weights`.

        Raises Lost where it does not within `deadline` seconds, OSError where port or log cannot be had.
        """
        assert self.process is not None
        self.reading = target.folder
        try:
            await self.asleep.remove(self.asleep.kinds)
            await asyncio.to_thread(self.process.start, target.folder, target.label)
            self.endpoint = dataclasses.replace(self.endpoint, url=self.process.url)
            async with asyncio.timeout(deadline):
                await self._ready(self.process, target, any_weights)
        except TimeoutError:
            log = self.process.log
            raise Lost(f"not ready within {deadline:g} s (sglang.startup_deadline); see {log}") from None
        finally:
            self.reading = None
        self.label = target.label

    async def _ready(self, process: ServerProcess, target: Target, any_weights: bool) -> None:
        while True:
            if not process.running:
                raise Lost(f"it ended while starting; {process.log} ends:\n{process.tail()}")
            try:
                await self.endpoint.healthy()
                found = await self.endpoint.version()
                if found == target.label or any_weights:
                    _LOG.info("%s is ready at %s", self.name, process.url)
                    return
                self.fault = f"port {process.port} serves weights {found!r}: it is another server's"
            except (Lost, RequestRefused) as error:
                self.fault = str(error)
            await asyncio.sleep(_STARTING_LOOK)
