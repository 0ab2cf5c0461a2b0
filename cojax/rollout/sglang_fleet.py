"""Several SGLang servers as one: who serves which conversation, which weights they hold, and their return to health.

Everything here runs on one event loop. A server gets requests only while it is known to serve the current weights; one
that dies, hangs or comes back with other weights is left out until it has them.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cojax.environment import EngineError
from cojax.rollout.sglang_endpoint import Clients, Endpoint, Lost, Refused, Unreachable
from cojax.rollout.sglang_process import ServerProcess

_LOG = logging.getLogger(__name__)
_STARTING_LOOK = 0.5  # seconds between two looks at a server that starts
# Looks in a row without a sign of life until a server counts as hanging: one under heavy load may miss one.
_MISSES = 3


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
    """One server: `up` while it serves the current weights; `process` where it is ours to start and kill."""

    endpoint: Endpoint
    process: ServerProcess | None
    restarts: int
    up: bool = False
    lost: bool = False  # ours, and not to be started again
    fault: str = "not started"
    sessions: int = 0
    replies: int = 0  # since the last look: it lives
    misses: int = 0  # looks in a row without a sign of life
    requests: set[asyncio.Task[Any]] = dataclasses.field(default_factory=set)
    lock: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)

    @property
    def name(self) -> str:
        return f"server {self.process.index}" if self.process else self.endpoint.url


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
        self._alarm = asyncio.Event()
        self._watcher: asyncio.Task[None] | None = None

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
        server.up, server.fault = False, fault
        self._alarm.set()

    def faults(self) -> str:
        """What is wrong with each server that is not up."""
        return "; ".join(f"{server.name}: {server.fault}" for server in self.servers if not server.up)

    def _up(self) -> list[Server]:
        return [server for server in self.servers if server.up]

    def _all_lost(self) -> bool:
        return all(server.lost for server in self.servers)

    # --- weights ---

    async def sync(self, target: Target) -> None:
        """Has every server take `target`, and returns when each has acknowledged it or is left out.

        New requests wait meanwhile. Raises EngineError when no server has taken it.
        """
        self.target = target
        self._syncing = True
        try:
            await asyncio.gather(*(self._bring(server, target) for server in self.servers))
        finally:
            async with self._changed:
                self._syncing = False
                self._changed.notify_all()
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._watch())
        if not self._up():
            raise EngineError(f"no SGLang server took the weights in {target.folder}: {self.faults()}")

    async def _bring(self, server: Server, target: Target) -> None:
        """Brings one server to the target; a fault leaves it out. One of ours that hangs or died is started again."""
        async with server.lock:
            await self._set(server, False, "takes new weights")
            process = server.process
            try:
                if process is None or process.running:
                    await self._push(server, target)
                    return
            except Refused as refusal:
                await self._set(
                    server, False, f"{refusal}. The folder must be there for the server under the same path"
                )
                _LOG.warning("%s refused weights: %s", server.name, refusal)
                return
            except (Lost, TimeoutError) as error:
                fault = str(error) or f"did not take new weights within {self._patience.sync:g} s (sync_deadline)"
                _LOG.warning("%s did not take weights: %s", server.name, fault)
                await self._set(server, False, fault)
            if process is not None:
                await self._start(server, target, first=not process.port)

    async def _push(self, server: Server, target: Target) -> None:
        async with asyncio.timeout(self._patience.sync):
            await server.endpoint.update(target.folder, target.label)
        await self._set(server, True)

    async def _start(self, server: Server, target: Target, first: bool = False) -> None:
        """Starts one of our own on the target's weights and waits until it serves them, while its budget lasts."""
        process = server.process
        assert process is not None
        while not server.up and not server.lost:
            await asyncio.to_thread(process.kill)
            if not first:
                if server.restarts == 0:
                    server.lost = True
                    fault = f"it was restarted {self._patience.restarts} times (sglang.restarts); {server.fault}"
                    await self._set(server, False, fault)
                    return
                server.restarts -= 1
                _LOG.warning("%s is started again, %d more times at most", server.name, server.restarts)
            first = False
            try:
                await asyncio.to_thread(process.start, target.folder, target.label)
                server.endpoint = dataclasses.replace(server.endpoint, url=process.url)
                async with asyncio.timeout(self._patience.startup):
                    await self._ready(server, process, target)
            except TimeoutError:
                fault = f"not ready within {self._patience.startup:g} s (sglang.startup_deadline); see {process.log}"
                await self._set(server, False, fault)
            except (Lost, OSError) as error:
                await self._set(server, False, str(error))

    async def _ready(self, server: Server, process: ServerProcess, target: Target) -> None:
        while True:
            if not process.running:
                raise Lost(f"it ended while starting; {process.log} ends:\n{process.tail()}")
            try:
                await server.endpoint.healthy()
                if (found := await server.endpoint.version()) != target.label:
                    raise Lost(f"port {process.port} serves weights {found!r}: it is another server's")
            except (Lost, Refused) as error:
                server.fault = str(error)
                await asyncio.sleep(_STARTING_LOOK)
                continue
            _LOG.info("%s is ready at %s", server.name, process.url)
            server.misses = 0
            await self._set(server, True)
            return

    # --- health ---

    async def _watch(self) -> None:
        """Looks at every server now and then, and at once on an alarm."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._alarm.wait(), self._patience.probe_every)
            self._alarm.clear()
            looks = await asyncio.gather(*(self._examine(server) for server in self.servers), return_exceptions=True)
            for server, error in zip(self.servers, looks, strict=True):
                if isinstance(error, Exception):
                    _LOG.error("the look at %s failed", server.name, exc_info=error)

    async def _examine(self, server: Server) -> None:
        """Leaves a sick server out, and heals one that is: with the current weights before it gets requests.

        One that is gone is seen to at once, one that merely gives no sign of life after `_MISSES` looks.
        """
        if server.lock.locked() or server.lost or self.target is None:
            return
        async with server.lock:
            target, process = self.target, server.process
            try:
                if process is not None and not process.running:
                    raise Unreachable(f"it has ended; {process.log} ends:\n{process.tail()}")
                was_up = server.up
                if not (was_up and server.replies):
                    await server.endpoint.healthy()
                server.replies = server.misses = 0
                if await server.endpoint.version() != target.label:
                    await self._set(server, False, "it serves other weights")
                    await self._push(server, target)
                if not was_up:
                    _LOG.warning("%s is back", server.name)
                await self._set(server, True)
            except (Lost, Refused, TimeoutError) as error:
                fault = str(error) or "it did not answer in time"
                if isinstance(error, Lost) and not isinstance(error, Unreachable):
                    server.misses += 1
                    if server.misses < _MISSES:
                        self._again()
                        return
                if fault != server.fault:
                    _LOG.warning("%s is left out: %s", server.name, fault)
                await self._set(server, False, fault)
                if process is not None:
                    await self._start(server, target)

    def _again(self) -> None:
        """Another look soon, without waiting for the next round."""
        asyncio.get_running_loop().call_later(min(1.0, self._patience.probe_every), self._alarm.set)

    async def _set(self, server: Server, up: bool, fault: str = "") -> None:
        """Notes the state. What runs on a server that is left out is given up, so that it can be tried elsewhere."""
        server.up, server.fault = up, fault
        if not up and not self._syncing:
            for request in server.requests:
                request.cancel()
        async with self._changed:
            self._changed.notify_all()

    async def close(self) -> None:
        """Stops watching, and ends the servers that are ours."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        stops = (asyncio.to_thread(server.process.stop) for server in self.servers if server.process)
        await asyncio.gather(*stops)

    def loads(self) -> dict[str, int]:
        """Conversations by server, for a look at the balance."""
        return dict(collections.Counter({server.name: server.sessions for server in self.servers}))
