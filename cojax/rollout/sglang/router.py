"""sglang-router: the servers behind one, and one started here."""

from __future__ import annotations

import shlex
import signal
from urllib.parse import quote

from cojax.durable import own_file
from cojax.rollout.sglang.connections import Connections, ServerFailed
from cojax.rollout.sglang.guarded import GuardedProcess
from cojax.rollout.sglang.process import LaunchSettings, free_port

_QUICK = 10.0  # seconds
# It sends all requests of one key to one server, new keys to the server with the fewest, and notices a server that is
# gone within seconds. Its own settings wait a minute.
_FLAGS = (
    "--policy", "manual", "--assignment-mode", "min_group", "--health-check-interval-secs", "2",
    "--health-check-timeout-secs", "30", "--health-failure-threshold", "2", "--health-success-threshold", "1",
    "--worker-startup-check-interval", "1", "--log-level", "warn",
)  # fmt: skip


class Router:
    """The router at `url`, asked and told which servers are behind it."""

    def __init__(self, url: str, connections: Connections) -> None:
        self.url, self._connections = url, connections

    async def servers(self) -> list[str]:
        """The addresses of the servers behind it. Raises RequestFailed or RequestRefused."""
        return [url for url, _ in await self._workers()]

    async def _workers(self) -> list[tuple[str, str]]:
        """(address, id) of each server behind it."""
        answer = await self._connections.call("GET", self.url, "workers", None, _QUICK, {})
        try:
            return [(str(worker["url"]).rstrip("/"), str(worker["id"])) for worker in answer["workers"]]
        except (KeyError, TypeError) as error:
            raise ServerFailed(f"{self.url}/workers answered without {error}; expected sglang-router 0.3.2") from error

    async def add(self, server: str) -> None:
        """Puts the server at this address behind it. Raises RequestFailed or RequestRefused."""
        await self._connections.call("POST", self.url, "workers", {"url": server}, _QUICK, {})

    async def remove(self, server: str) -> None:
        """Takes the server at this address from it, if it is there. Raises RequestFailed or RequestRefused."""
        for url, number in await self._workers():
            if url == server:
                path = f"workers/{quote(number, safe='')}"
                await self._connections.call("DELETE", self.url, path, None, _QUICK, {})


class RouterProcess:
    """A router on `port`, started by the interpreter of `launch`, without servers behind it yet."""

    def __init__(self, launch: LaunchSettings, port: int) -> None:
        self.port, self._launch, self._guarded = port, launch, GuardedProcess()
        self.log = launch.logs / "router.log"

    @property
    def running(self) -> bool:
        return self._guarded.running

    def start(self) -> None:
        """Starts it without waiting for it. Raises OSError if port or log cannot be opened."""
        self._guarded.end(signal.SIGUSR1)
        launch = self._launch
        command = [
            launch.python, "-m", "sglang_router.launch_router", "--host", launch.host,
            "--port", str(free_port(launch.host, self.port)), "--prometheus-port", str(free_port("127.0.0.1")),
            "--prometheus-host", "127.0.0.1", *_FLAGS,
        ]  # fmt: skip
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "ab", opener=own_file) as log:
            log.write(f"\n=== {shlex.join(command)}\n".encode())
            log.flush()
            self._guarded.start(command, log, launch.environment())

    def stop(self) -> None:
        """Ends it, and returns when it is gone. May be called twice."""
        self._guarded.end(signal.SIGTERM)
