"""In a worker: a server over streamable HTTP."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.mcpserver import MCPServer

from .process import MESSAGE

# Seconds in which a server must accept a connection. An answer has the deadline of its call.
_CONNECT = 30.0
# An address at which nobody answers.
_NOBODY = "http://127.0.0.1:9/"
# HTTP statuses.
_CREDENTIALS = (401, 403, 407)


def prepare() -> None:
    """Imports what requests and calls import late, as a child may not be allowed to read the packages."""
    asyncio.run(_rehearse())


async def _rehearse() -> None:
    server = MCPServer("rehearsal")

    async def count() -> int:
        return 1

    server.add_tool(count)
    async with httpx2.AsyncClient() as web, Client(server, mode="legacy") as client:
        await client.call_tool("count", {})
        with contextlib.suppress(httpx2.HTTPError):
            await web.get(_NOBODY, timeout=1.0)


class Address:
    """The server at `url`. `name` stands for the address in messages, as the address may be a secret.

    Redirects to another host are not followed, so that `headers` reach no other.
    """

    ended = ""

    def __init__(self, name: str, url: str, headers: Mapping[str, str]) -> None:
        self.name, self._url, self._headers = name, url, headers
        self._refused = 0

    def last_words(self) -> str:
        return self.refusal()

    def refusal(self) -> str:
        if self._refused in _CREDENTIALS:
            return f"HTTP status {self._refused}: it asks for credentials; name their variables in `headers`"
        return f"HTTP status {self._refused}" if self._refused else ""

    @contextlib.asynccontextmanager
    async def streams(self) -> AsyncIterator[Any]:
        """Opens a session; its messages, and a stream for those to the server."""
        timeout = httpx2.Timeout(_CONNECT, read=None)
        hooks = {"response": [self._note]}
        async with (
            httpx2.AsyncClient(headers=dict(self._headers), timeout=timeout, event_hooks=hooks) as client,
            streamable_http_client(self._url, http_client=client, max_sse_event_size=MESSAGE) as streams,
        ):
            yield streams

    async def _note(self, response: httpx2.Response) -> None:
        # That there is no stream of messages beside the calls is no refusal.
        if response.request.method == "POST":
            self._refused = response.status_code if response.status_code >= 400 else 0
