"""Keeps the servers of a rollout host behind an sglang-router, one started here or one elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time

from cojax.rollout.sglang.connections import Connections, RequestFailed, RequestRefused
from cojax.rollout.sglang.fleet import Fleet
from cojax.rollout.sglang.process import LaunchSettings
from cojax.rollout.sglang.router import Router, RouterProcess
from cojax.rollout.sglang.server import Server

_LOG = logging.getLogger("cojax.serve")
_POLL = 1.0  # seconds
_PATIENCE = 30.0  # seconds for a router to take a server that it was given


class RoutedFleet:
    """Puts each server of `fleet` behind the router once it is up, and takes it away at the end.

    `router` is a port, on which a router is started here and kept running, or the address of one.
    """

    def __init__(self, router: str, launch: LaunchSettings, fleet: Fleet, connections: Connections) -> None:
        self._process = RouterProcess(launch, int(router)) if router.isdigit() else None
        # Where others reach this host.
        self._host = socket.gethostname() if launch.host in ("0.0.0.0", "::") else launch.host
        url = f"http://{'127.0.0.1' if launch.host == '0.0.0.0' else launch.host}:{router}"
        self._router = Router(url if self._process else router.rstrip("/"), connections)
        self._fleet = fleet
        self._given: dict[str, float] = {}  # address → when the router was given it

    async def keep(self) -> None:
        """Does so until it is cancelled."""
        fault = ""
        while True:
            try:
                if self._process is not None and not self._process.running:
                    _LOG.info("a router starts on port %d; its log is %s", self._process.port, self._process.log)
                    await asyncio.to_thread(self._process.start)
                    self._given.clear()
                await self._update()
                fault = ""
            except (RequestFailed, RequestRefused, OSError) as error:
                # One that starts does not answer for a while.
                if str(error) != fault and not (self._process and not self._given):
                    _LOG.warning("the router: %s", error)
                fault = str(error)
            await asyncio.sleep(_POLL)

    async def _update(self) -> None:
        present, now = await self._router.servers(), time.monotonic()
        for server in self._fleet.servers:
            url = self._address(server)
            if server.up and url not in present and now - self._given.get(url, -_PATIENCE) >= _PATIENCE:
                await self._router.add(url)
                self._given[url] = now
                _LOG.info("%s is behind the router %s", url, self._router.url)
            if server.state == "lost" and url in present:
                await self._router.remove(url)

    def _address(self, server: Server) -> str:
        assert server.process is not None
        return f"http://{self._host}:{server.process.port}"

    async def close(self) -> None:
        """Takes the servers away, so that no request is sent to them any more; ends a router that was started here."""
        if self._process is not None:
            await asyncio.to_thread(self._process.stop)
            return
        for server in self._fleet.servers:
            with contextlib.suppress(RequestFailed, RequestRefused):
                await self._router.remove(self._address(server))
