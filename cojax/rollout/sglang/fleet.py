"""Several SGLang servers as one: gives them weights, and gives each conversation a server with the current weights.

Everything here runs on one event loop. A server gets requests only while it is known to serve the current weights. A
server that dies, hangs or comes back with other weights is left out until it has the current ones (supervisor.py).
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from cojax.environment import EngineError
from cojax.rollout.sglang.client import (
    Connections,
    ReleasedMemory,
    ReleasedMemoryFile,
    RequestFailed,
    RequestRefused,
    Router,
    ServerClient,
)
from cojax.rollout.sglang.process import ServerProcess
from cojax.rollout.sglang.server import LabelledWeights, Server
from cojax.rollout.sglang.supervisor import FleetSettings, Supervisor

_LOG = logging.getLogger(__name__)
_DISCOVERY_POLL = 2.0  # seconds between two looks at what is behind a router


class Fleet:
    """The servers at `urls`, or those of `processes`; one of the two is empty.

    With a `router`, an address in front of all servers, the router chooses the server of each conversation. Where both
    are empty, the servers are those behind the router at any time: they come and go. The file
    `released` says which of the servers at `urls` have released memory, possibly for a trainer that was killed.
    """

    def __init__(
        self,
        connections: Connections,
        urls: Sequence[str],
        processes: Sequence[ServerProcess],
        settings: FleetSettings,
        *,
        router: str = "",
        released: ReleasedMemoryFile | None = None,
    ) -> None:
        self._connections, self._released = connections, released
        self._discovers = Router(router, connections) if router and not urls and not processes else None
        self.servers = [self._attached(url) for url in urls]
        restarts = settings.limits.restarts
        self.servers += [Server(ServerClient("", connections), process, restarts) for process in processes]
        # Represents whichever server the router chooses; its health is not checked.
        self._router = Server(ServerClient(router, connections), None, 0, "up") if router else None
        self._assigned: dict[str, Server] = {}  # session → its server
        self.supervisor = Supervisor(self.cancel, settings)
        self._watches: dict[Server, asyncio.Task[None]] = {}
        self._discovery: asyncio.Task[None] | None = None

    @property
    def target(self) -> LabelledWeights | None:
        """The weights that servers should serve."""
        return self.supervisor.target

    # --- requests ---

    async def route(self, session: str) -> Server:
        """The session's server, whose cache holds its prefix; for a new session, the one with fewest conversations.

        Waits while weights change and while no server is up. Raises EngineError once none can come up any more.
        """
        changed = self.supervisor.changed
        async with changed:
            await changed.wait_for(lambda: not self.supervisor.syncing and (self._up() or self.all_lost))
            if self.all_lost:
                raise EngineError(f"no SGLang server is left: {self.faults()}")
            return self._find(session)

    def _find(self, session: str) -> Server:
        """The session's server if it is up, otherwise the server with the fewest conversations among those up.

        At least one server must be up.
        """
        if self._router is not None:
            return self._router
        server = self._assigned.get(session)
        if server is None or not server.up:
            self.forget(session)
            up = (server for server in self.servers if server.up)
            server = min(up, key=lambda server: (server.sessions, len(server.requests)))
            server.sessions += 1
            self._assigned[session] = server
        return server

    def forget(self, session: str) -> None:
        """Ends the session's assignment to a server, if it has one."""
        server = self._assigned.pop(session, None)
        if server is not None:
            server.sessions -= 1

    def suspect(self, server: Server, fault: str) -> None:
        """Marks the server as down and has its health checked now; it gets no new request before.

        Behind a router the fault may be any server's, so all are checked.
        """
        if server is self._router:
            for each in self.servers:
                each.check_now.set()
            return
        if server.up:
            server.state, server.fault = "down", fault
        server.check_now.set()

    def cancel(self, server: Server, hung: bool) -> None:
        """Cancels the requests of a server that is left out, so that they can be sent to another.

        A router itself repeats the requests of a dead server. For a server that hangs (`hung`), it does not say which
        requests it has, so all requests through the router are cancelled.
        """
        others: Iterable[asyncio.Task[object]] = self._router.requests if self._router is not None and hung else ()
        for request in [*server.requests, *others]:
            request.cancel()

    async def abort(self, server: Server, rid: str) -> None:
        """Ends a request whose answer is no longer wanted; behind a router, on whichever server it runs."""
        servers = self.servers if server is self._router else [server]
        aborts = (each.client.abort(rid) for each in servers if each.client.url)
        await asyncio.gather(*aborts, return_exceptions=True)

    def faults(self) -> str:
        """What is wrong with each server that is not up."""
        return "; ".join(f"{server.name}: {server.fault}" for server in self.servers if not server.up)

    def reading(self) -> list[Path]:
        """Folders that servers are loading weights from."""
        return [server.reading for server in self.servers if server.reading is not None]

    @property
    def serving(self) -> bool:
        """Whether a server is up, and so serves the target, and the fleet is not resting."""
        return bool(self._up()) and not self.supervisor.resting

    def _up(self) -> list[Server]:
        return [server for server in self.servers if server.up]

    @property
    def all_lost(self) -> bool:
        """Whether no server can come up any more."""
        return bool(self.servers) and all(server.state == "lost" for server in self.servers)

    # --- weights ---

    async def sync(self, target: LabelledWeights) -> None:
        """Has the servers load `target`, and returns when each serves it or is left out.

        New requests wait meanwhile. A server that is recovering loads the target before it is up; this waits for it
        only if no other server is up. If nothing answers yet at one of `urls`, this waits as long as a start may take.
        Raises EngineError if no server has loaded the target.
        """
        supervisor = self.supervisor
        supervisor.target, supervisor.syncing, supervisor.resting = target, True, False
        if self._discovers is not None:
            await self._discover_some(self._discovers)
        for server in self.servers:
            self._watch(server)
        recoveries = {server: server.recoveries + (server.state == "recovering") for server in self.servers}
        try:
            down = [server for server in self.servers if server.state == "down"]
            await self._update(target, [s for s in self.servers if s.state in ("new", "up", "resting")])
            if not self._up():
                await self._update(target, [server for server in down if server.state == "down"])
            with contextlib.suppress(TimeoutError):
                await self._wait_for_one(recoveries)
        finally:
            async with supervisor.changed:
                supervisor.syncing = False
                supervisor.changed.notify_all()
        if not self._up():
            absent, limit = any(server.absent for server in self.servers), supervisor.limits.startup
            waited = f"start them first; waited sglang.startup_deadline={limit:g} s" if absent else ""
            reasons = "; ".join(filter(None, (self.faults(), waited)))
            raise EngineError(f"no SGLang server took the weights in {target.folder}: {reasons}")

    def _attached(self, url: str) -> Server:
        return Server(ServerClient(url, self._connections), None, 0, released=ReleasedMemory(url, self._released))

    def _watch(self, server: Server) -> None:
        if server not in self._watches:
            self._watches[server] = asyncio.create_task(self.supervisor.watch(server))

    async def _discover_some(self, router: Router) -> None:
        """Finds the servers behind the router; from then on, again and again.

        Waits for the first as long as a start may take, then raises EngineError.
        """
        limit, fault = self.supervisor.limits.startup, "it names none"
        until = asyncio.get_running_loop().time() + limit
        while True:
            try:
                await self._discover(router)
            except (RequestFailed, RequestRefused) as error:
                fault = str(error)
            if self.servers:
                break
            if asyncio.get_running_loop().time() > until:
                raise EngineError(
                    f"no SGLang server is behind the router {router.url}: {fault}; waited sglang.startup_deadline="
                    f"{limit:g} s. Start some there: python -m experiments.serve --router={router.url}"
                )
            await asyncio.sleep(_DISCOVERY_POLL)
        self._discovery = self._discovery or asyncio.create_task(self._discover_always(router))

    async def _discover_always(self, router: Router) -> None:
        while True:
            await asyncio.sleep(min(_DISCOVERY_POLL, self.supervisor.limits.probe_every))
            with contextlib.suppress(RequestFailed, RequestRefused):  # a router that is gone takes no server with it
                await self._discover(router)

    async def _discover(self, router: Router) -> None:
        """Lets servers join that are behind the router by now, and leaves those that are not. Raises RequestFailed."""
        found, known = await router.servers(), {server.client.url: server for server in self.servers}
        for url in found:
            if url not in known:
                self.servers.append(server := self._attached(url))
                if self._watches:  # it is brought to the current weights by its watch, between two syncs
                    _LOG.warning("%s joins", url)
                    server.state, server.fault = "down", "it has just joined"
                    self._watch(server)
                    server.check_now.set()
        for url, server in known.items():
            if url not in found:
                _LOG.warning("%s leaves", url)
                self.servers.remove(server)
                if watch := self._watches.pop(server, None):
                    watch.cancel()
        async with self.supervisor.changed:
            self.supervisor.changed.notify_all()

    async def _update(self, target: LabelledWeights, servers: Sequence[Server]) -> None:
        """Brings all these servers to the target at once, or leaves them out."""
        known = [server.state != "new" for server in servers]
        for server in servers:  # set for all before the first update, so that no watch starts one too
            server.state, server.fault = "updating", "takes new weights"
        await asyncio.gather(*map(self.supervisor.update, servers, [target] * len(servers), known))

    async def _wait_for_one(self, recoveries: Mapping[Server, int]) -> None:
        """Waits until a server is up, or until none can come up.

        Servers at `urls` get `limits.startup` seconds, then TimeoutError is raised. Launched servers have deadlines of
        their own.
        """
        attached = all(server.process is None for server in self.servers)
        limit, changed = self.supervisor.limits.startup if attached else None, self.supervisor.changed
        async with asyncio.timeout(limit), changed:
            await changed.wait_for(
                lambda: self._up() or not any(self._may_come_up(s, recoveries) for s in self.servers)
            )

    def _may_come_up(self, server: Server, recoveries: Mapping[Server, int]) -> bool:
        """Whether to go on waiting for a server that is not up.

        A launched server may come up until it is lost. A server at `urls` may come up while nothing answers there, as
        somebody may start it, and while it has ended fewer than `recoveries` recoveries.
        """
        if server.process is not None:
            return server.state != "lost"
        return server.absent or server.recoveries < recoveries.get(server, 1)

    async def rest(self) -> None:
        """Has every server release its memory until the next sync, including servers that come up before it."""
        self.supervisor.resting = True
        await asyncio.gather(*(self.supervisor.rest(server) for server in self.servers if server.up))

    def set_target(self, target: LabelledWeights) -> None:
        """Has every server load `target` when it can, without waiting for any."""
        self.supervisor.target = target
        for server in self.servers:
            server.check_now.set()

    async def close(self) -> None:
        """Stops watching, has resting servers take their memory again, and ends launched servers for good."""
        tasks = [*self._watches.values(), *([self._discovery] if self._discovery else ())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        resting = (server for server in self.servers if server.released and server.process is None)
        await asyncio.gather(*(server.wake() for server in resting), return_exceptions=True)
        stops = (asyncio.to_thread(server.process.stop) for server in self.servers if server.process)
        await asyncio.gather(*stops)
