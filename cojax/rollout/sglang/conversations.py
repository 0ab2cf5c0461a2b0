"""Which SGLang server has which conversation, and where a request is that nobody waits for any more."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Iterable, Sequence

from cojax.rollout.sglang.server import Server
from cojax.rollout.sglang.server_client import Clients, ServerClient


class Conversations:
    """Servers of conversations, by session; for one event loop.

    Where there is a `router`, an address in front of all of them, it says who serves which conversation.
    """

    def __init__(self, servers: Sequence[Server], router: str, clients: Clients) -> None:
        self._servers = servers
        # Of no fleet and never looked at: it stands for whichever server the router chooses.
        self._router = Server(ServerClient(router, clients), None, 0, "up") if router else None
        self._homes: dict[str, Server] = {}

    def find(self, session: str) -> Server:
        """The session's server while it is up; else that of those up with the fewest conversations. One must be up."""
        if self._router is not None:
            return self._router
        home = self._homes.get(session)
        if home is None or not home.up:
            self.forget(session)
            up = (server for server in self._servers if server.up)
            home = min(up, key=lambda server: (server.sessions, len(server.requests)))
            home.sessions += 1
            self._homes[session] = home
        return home

    def forget(self, session: str) -> None:
        """The session has no home any more. Unknown is fine."""
        home = self._homes.pop(session, None)
        if home is not None:
            home.sessions -= 1

    def loads(self) -> dict[str, int]:
        """Conversations by server, for a look at the balance."""
        return dict(collections.Counter({server.name: server.sessions for server in self._servers}))

    def suspect(self, server: Server, fault: str) -> None:
        """Sends the server nothing new until it has been looked at, which happens at once.

        Behind a router it may have been any of them: all are looked at.
        """
        if server is self._router:
            for each in self._servers:
                each.alarm.set()
            return
        if server.up:
            server.state, server.fault = "down", fault
        server.alarm.set()

    def cancel(self, server: Server, hung: bool) -> None:
        """Gives up what runs on a server that is left out, so that it can be tried elsewhere."""
        # A router tries those of a dead one elsewhere by itself, but does not tell which are with one that hangs.
        others: Iterable[asyncio.Task[object]] = self._router.requests if self._router is not None and hung else ()
        for request in [*server.requests, *others]:
            request.cancel()

    async def abort(self, server: Server, rid: str) -> None:
        """Ends a request of this server, wherever it is, whose answer nobody waits for any more."""
        places = self._servers if server is self._router else [server]
        aborts = (place.endpoint.abort(rid) for place in places if place.endpoint.url)
        await asyncio.gather(*aborts, return_exceptions=True)
