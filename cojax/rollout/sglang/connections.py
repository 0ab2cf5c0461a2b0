"""HTTP connections to SGLang servers, kept open between calls, and the three ways in which a call can fail."""

from __future__ import annotations

import asyncio
import collections
from typing import Any

import httpx

_CONNECT_SECONDS = 10.0
# The server closes idle connections after 5 s. We close them earlier, so that no request meets a closed one.
_KEEP_ALIVE = 2.0


class RequestFailed(Exception):
    """A request had no usable answer; another attempt may have one."""


class ServerFailed(RequestFailed):
    """The server did not answer, or failed: its health must be checked before it gets another request."""


class RequestRefused(Exception):
    """The server understood the request and refused it; another attempt will not help."""


class Connections:
    """Open connections, each in its own HTTP client, for one event loop and any number of servers.

    One httpx client for all would search all its connections for each request. With hundreds of connections that costs
    more than the request.
    """

    def __init__(self) -> None:
        self._context = httpx.create_ssl_context()
        self._idle: dict[str, list[httpx.AsyncClient]] = collections.defaultdict(list)

    async def call(
        self, method: str, origin: str, path: str, body: Any, seconds: float | None, headers: dict[str, str]
    ) -> Any:
        """The JSON that `origin`/`path` answers within `seconds` (None: no limit), None for an empty answer.

        Raises RequestFailed for no answer in time and for status 408, 429 and 503, RequestRefused for any other 4xx,
        ServerFailed for any other status, for invalid JSON and for a broken connection.
        """
        url, timeout = f"{origin}/{path}", httpx.Timeout(seconds, connect=_CONNECT_SECONDS, pool=None)
        idle, limits = self._idle[origin], httpx.Limits(keepalive_expiry=_KEEP_ALIVE)
        client = idle.pop() if idle else httpx.AsyncClient(limits=limits, verify=self._context, trust_env=False)
        try:
            # The timeout of httpx bounds a single read; a slow answer may take any number of reads.
            async with asyncio.timeout(seconds):
                response = await client.request(method, url, json=body, timeout=timeout, headers=headers)
        except (httpx.ReadTimeout, TimeoutError) as error:
            raise RequestFailed(f"{url} did not answer within {seconds:g} s") from error
        except httpx.HTTPError as error:
            raise ServerFailed(f"{url}: {type(error).__name__} {error}".rstrip()) from error
        finally:
            idle.append(client)
        status = response.status_code
        if response.is_success:
            try:
                return response.json() if response.content.strip() else None
            except (ValueError, RecursionError) as error:
                raise ServerFailed(f"{url} answered what is no JSON: {response.text[:200]!r}") from error
        retry, refused = status in (408, 429, 503), 400 <= status < 500
        failure = RequestFailed if retry else RequestRefused if refused else ServerFailed
        raise failure(f"{url} answered {status}: {_reason(response)}")

    async def aclose(self) -> None:
        """Closes all connections; none may be in use."""
        await asyncio.gather(*(client.aclose() for idle in self._idle.values() for client in idle))


def _reason(response: httpx.Response) -> str:
    """The server's own error message, shortened to fit into ours."""
    try:
        body = response.json()
        body = body.get("error", body)
        return str(body.get("message", body))[:500]
    except (ValueError, AttributeError, RecursionError):
        return response.text[:500]
