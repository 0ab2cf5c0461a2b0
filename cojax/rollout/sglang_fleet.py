"""Several SGLang servers as one: who serves which conversation, which weights they hold, and their return to health.

Everything here runs on one event loop. A server gets requests only while it is known to serve the current weights; one
that dies, hangs or comes back with other weights is left out until it has them. Each has a watch of its own, so that
no server waits for another.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from cojax.environment import EngineError
from cojax.rollout.sglang_endpoint import Clients, Endpoint, Lost, Refused, Unreachable
from cojax.rollout.sglang_process import ServerProcess

_LOG = logging.getLogger(__name__)
_STARTING_LOOK = 0.5  # seconds between two looks at a server that starts
# Looks in a row without a sign of life until a server counts as hanging: one under heavy load may miss one.
_MISSES = 3

# new: has had no weights yet; up: serves the current ones; taking: a sync gives it new ones; down: left out, its watch
# looks after it; returning: its watch brings it back; lost: ours, and not to be started again.
State = Literal["new", "up", "taking", "down", "returning", "lost"]


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

    endpoint: Endpoint
    process: ServerProcess | None
    restarts: int
    state: State = "new"
    fault: str = "not started"
    sessions: int = 0
    replies: int = 0  # since the last look: it lives
    misses: int = 0  # looks in a row without a sign of life
    reading: Path | None = None  # a folder that must not go meanwhile
    requests: set[asyncio.Task[Any]] = dataclasses.field(default_factory=set)
    alarm: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        return f"server {self.process.index}" if self.process else self.endpoint.url

    @property
    def up(self) -> bool:
        return self.state == "up"

    @property
    def coming(self) -> bool:
        """Whether its watch will bring it up, or give up, by itself."""
        return self.state == "returning" or (self.process is not None and self.state != "lost")


class Fleet:
    """The servers at `urls`, or those of `processes`; one of the two is empty."""

    def __init__(
        self,
        clients: Clients,
        urls: Sequence[str],
        processes: Sequence[ServerProcess],
        patience: Patience,
    ) -> None:
        self.servers = [Server(Endpoint(url, clients), None, 0) for url in urls]
        self.servers += [Server(Endpoint("", clients), process, patience.restarts) for process in processes]
        self.target: Target | None = None
        self._patience = patience
        self._homes: dict[str, Server] = {}
        self._syncing = False
        self._changed = asyncio.Condition()
        self._watches: list[asyncio.Task[None]] = []

    # --- requests ---

    async def route(self, session: str) -> Server:
        """The session's server, where its prefix is cached; for a new one that with the fewest conversations.

        Waits while weights change and while none is up. Raises EngineError once none can come up any more.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: not self._syncing and (self._up() or self._all_lost()))
            if self._all_lost():
                raise EngineError(f"no SGLang server is left: {self.faults()}")
            home = self._homes.get(session)
            if home is None or not home.up:
                self.forget(session)
                home = min(self._up(), key=lambda server: (server.sessions, len(server.requests)))
                home.sessions += 1
                self._homes[session] = home
            return home

    def forget(self, session: str) -> None:
        """The session has no home any more. Unknown is fine."""
        home = self._homes.pop(session, None)
        if home is not None:
            home.sessions -= 1

    def suspect(self, server: Server, fault: str) -> None:
        """Sends the server nothing new until it has been looked at, which happens at once."""
        if server.up:
            server.state, server.fault = "down", fault
        server.alarm.set()

    def faults(self) -> str:
        """What is wrong with each server that is not up."""
        return "; ".join(f"{server.name}: {server.fault}" for server in self.servers if not server.up)

    def loads(self) -> dict[str, int]:
        """Conversations by server, for a look at the balance."""
        return dict(collections.Counter({server.name: server.sessions for server in self.servers}))

    def reading(self) -> list[Path]:
        """Folders that servers are reading or starting on."""
        return [server.reading for server in self.servers if server.reading is not None]

    @property
    def serving(self) -> bool:
        """Whether a server is up, which it is on the target alone."""
        return bool(self._up())

    def _up(self) -> list[Server]:
        return [server for server in self.servers if server.up]

    def _all_lost(self) -> bool:
        return all(server.state == "lost" for server in self.servers)

    # --- weights ---

    async def sync(self, target: Target) -> None:
        """Has the servers take `target`, and returns when each has acknowledged it or is left out.

        New requests wait meanwhile. A server that its watch is bringing back takes the target before it is up, and is
        waited for only where no other is up. Raises EngineError when no server has taken it.
        """
        self.target, self._syncing = target, True
        self._watches = self._watches or [asyncio.create_task(self._watch(server)) for server in self.servers]
        try:
            await self._all_take(target, "new", "up")
            if not self._up():
                await self._all_take(target, "down")
            async with self._changed:
                await self._changed.wait_for(lambda: self._up() or not any(server.coming for server in self.servers))
        finally:
            async with self._changed:
                self._syncing = False
                self._changed.notify_all()
        if not self._up():
            raise EngineError(f"no SGLang server took the weights in {target.folder}: {self.faults()}")

    async def _all_take(self, target: Target, *states: State) -> None:
        await asyncio.gather(*(self._take(server, target) for server in self.servers if server.state in states))

    async def _take(self, server: Server, target: Target) -> None:
        """Brings one server to the target; a fault leaves it out. One of ours that hangs is ended for its watch."""
        if server.process is not None and server.state == "new":
            await self._return(server)
            return
        server.state, server.fault = "taking", "takes new weights"
        try:
            await self._push(server, target)
            if self.target is target:
                await self._set(server, "up")
            else:  # whoever asked for this did not wait, and asked for something else
                await self._set(server, "down", "another sync began")
                server.alarm.set()
        except (Lost, Refused, TimeoutError) as error:
            fault = self._fault(error)
            _LOG.warning("%s did not take weights: %s", server.name, fault)
            if server.process is not None and not isinstance(error, Refused):
                await asyncio.to_thread(server.process.kill)
            await self._set(server, "down", fault)
            server.alarm.set()

    async def _push(self, server: Server, target: Target) -> None:
        server.reading = target.folder
        try:
            async with asyncio.timeout(self._patience.sync):
                await server.endpoint.update(target.folder, target.label)
            server.reading = None
        except (Lost, Refused):  # but after a timeout it may be reading still
            server.reading = None
            raise

    def _fault(self, error: Exception) -> str:
        if isinstance(error, Refused):
            return f"{error}. The folder must be there for the server under the same path"
        return str(error) or f"did not take new weights within {self._patience.sync:g} s (sglang.sync_deadline)"

    async def _return(self, server: Server) -> None:
        """Brings a server back on the weights that are current by then; one of ours, while its budget lasts, anew."""
        process = server.process
        await self._set(server, "returning", server.fault)
        while server.state == "returning":
            target = self.target
            assert target is not None
            try:
                if process is not None and not process.running:
                    await self._start(server, process, target)
                    server.reading = None
                else:
                    await self._push(server, target)
                # Nothing runs in between: a sync either finds it up, or has set the target that it takes next.
                if server.state == "returning" and self.target is target:
                    server.misses = 0
                    await self._set(server, "up")
            except (Lost, Refused, OSError) as error:  # TimeoutError is an OSError
                fault = self._fault(error)
                if process is None:
                    await self._set(server, "down", fault)
                    return
                _LOG.warning("%s did not come up: %s", server.name, fault)
                server.fault = fault
                await asyncio.to_thread(process.kill)
                server.reading = None

    async def _start(self, server: Server, process: ServerProcess, target: Target) -> None:
        """Starts one of ours on the target and waits until it serves it; a start after the first takes a restart."""
        if process.starts:
            if not server.restarts:
                fault = f"it was restarted {self._patience.restarts} times (sglang.restarts); {server.fault}"
                _LOG.error("%s is given up: %s", server.name, fault)
                await self._set(server, "lost", fault)
                return
            server.restarts -= 1
            _LOG.warning("%s is started again, %d more times at most", server.name, server.restarts)
        server.reading = target.folder
        await asyncio.to_thread(process.start, target.folder, target.label)
        server.endpoint = dataclasses.replace(server.endpoint, url=process.url)
        try:
            async with asyncio.timeout(self._patience.startup):
                await self._ready(server, process, target)
        except TimeoutError:
            raise Lost(
                f"not ready within {self._patience.startup:g} s (sglang.startup_deadline); see {process.log}"
            ) from None

    async def _ready(self, server: Server, process: ServerProcess, target: Target) -> None:
        while True:
            if not process.running:
                raise Lost(f"it ended while starting; {process.log} ends:\n{process.tail()}")
            try:
                await server.endpoint.healthy()
                if (found := await server.endpoint.version()) == target.label:
                    _LOG.info("%s is ready at %s", server.name, process.url)
                    return
                server.fault = f"port {process.port} serves weights {found!r}: it is another server's"
            except (Lost, Refused) as error:
                server.fault = str(error)
            await asyncio.sleep(_STARTING_LOOK)

    # --- health ---

    async def _watch(self, server: Server) -> None:
        """Looks at the server now and then, and at once on an alarm."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(server.alarm.wait(), self._patience.probe_every)
            server.alarm.clear()
            try:
                if server.state in ("up", "down"):
                    await self._look(server)
            except Exception:
                _LOG.exception("the look at %s failed", server.name)

    async def _look(self, server: Server) -> None:
        """Leaves a sick server out, and heals one that is: with the current weights before it gets requests.

        One that is gone is seen to at once, one that merely gives no sign of life after `_MISSES` looks.
        """
        state, target, process = server.state, self.target, server.process
        assert target is not None
        fault, found = None, ""
        try:
            if process is not None and not process.running:
                raise Unreachable(f"it has ended; {process.log} ends:\n{process.tail()}")
            if not (server.up and server.replies):
                await server.endpoint.healthy()
            found = await server.endpoint.version()
        except (Lost, Refused) as error:
            fault = error
        if (server.state, self.target) != (state, target):
            server.alarm.set()  # a sync or a fault came in between: what was seen is old
            return
        if fault is None:
            server.replies = server.misses = 0
            if found != target.label:
                await self._set(server, "down", f"it serves weights {found!r}")
                await self._return(server)
            elif state == "down":
                _LOG.warning("%s is back", server.name)
                await self._set(server, "up")
            return
        server.misses += 1
        if isinstance(fault, Lost) and not isinstance(fault, Unreachable) and server.misses < _MISSES:
            asyncio.get_running_loop().call_later(min(1.0, self._patience.probe_every), server.alarm.set)
            return
        if str(fault) != server.fault:
            _LOG.warning("%s is left out: %s", server.name, fault)
        await self._set(server, "down", str(fault))
        if process is not None:
            await asyncio.to_thread(process.kill)
            await self._return(server)

    async def _set(self, server: Server, state: State, fault: str = "") -> None:
        """Notes the state. What runs on a server that is left out is given up, so that it can be tried elsewhere."""
        server.state, server.fault = state, fault
        if state in ("down", "lost"):
            for request in server.requests:
                request.cancel()
        async with self._changed:
            self._changed.notify_all()

    async def close(self) -> None:
        """Stops watching, and ends the servers that are ours for good."""
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        stops = (asyncio.to_thread(server.process.stop) for server in self.servers if server.process)
        await asyncio.gather(*stops)
