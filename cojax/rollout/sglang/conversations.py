"""Assigns conversations to SGLang servers, and cancels requests whose server is left out or that nobody waits for."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Iterable, Sequence

from cojax.rollout.sglang.connections import Connections
from cojax.rollout.sglang.server import Server
from cojax.rollout.sglang.server_client import ServerClient


class Conversations:
    """The server of each conversation, by session; for one event loop.

    With a `router`, an address in front of all servers, the router chooses the server instead.
    """

    def __init__(self, servers: Sequence[Server], router: str, connections: Connections) -> None:
        self._servers = servers
        # Represents whichever server the router chooses; its health is not checked.
        self._router = Server(ServerClient(router, connections), None, 0, "up") if router else None
        self._assigned: dict[str, Server] = {}

    def find(self, session: str) -> Server:
        """The session's server if it is up, otherwise the server with the fewest conversations among those up.

        At least one server must be up.
        """
        if self._router is not None:
            return self._router
        server = self._assigned.get(session)
        if server is None or not server.up:
            self.forget(session)
            up = (server for server in self._servers if server.up)
            server = min(up, key=lambda server: (server.sessions, len(server.requests)))
            server.sessions += 1
            self._assigned[session] = server
        return server

    def forget(self, session: str) -> None:
        """Ends the session's assignment to a server, if it has one."""
        server = self._assigned.pop(session, None)
        if server is not None:
            server.sessions -= 1

    def loads(self) -> dict[str, int]:
        """The number of conversations of each server, by the server's name."""
        return dict(collections.Counter({server.name: server.sessions for server in self._servers}))

    def suspect(self, server: Server, fault: str) -> None:
        """Marks the server as down and has its health checked now; it gets no new request before.

        Behind a router the fault may be any server's, so all are checked.
        """
        if server is self._router:
            for each in self._servers:
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
        servers = self._servers if server is self._router else [server]
        aborts = (each.client.abort(rid) for each in servers if each.client.url)
        await asyncio.gather(*aborts, return_exceptions=True)
