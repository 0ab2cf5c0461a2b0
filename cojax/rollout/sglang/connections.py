"""HTTP connections to SGLang servers, kept open between calls, and the three ways in which a call can fail."""

from __future__ import annotations

import asyncio
import collections
import json
from typing import Any

import httpx

from cojax.openai_api.plain_http import NOT_PACKED, no_cookies, one_line

# Bytes of an answer, and characters of it that a message quotes.
MOST, _QUOTED = 8 * 2**20, 500
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
        self,
        method: str,
        origin: str,
        path: str,
        body: Any,
        seconds: float | None,
        headers: dict[str, str],
        most: int = MOST,
    ) -> Any:
        """The JSON that `origin`/`path` answers within `seconds` (None: no limit), None for an empty answer.

        Raises RequestFailed for no answer in time and for status 408, 429 and 503, RequestRefused for any other 4xx,
        ServerFailed for any other status, for invalid JSON, for more than `most` bytes and for a broken connection.
        """
        url, timeout = f"{origin}/{path}", httpx.Timeout(seconds, connect=_CONNECT_SECONDS, pool=None)
        idle = self._idle[origin]
        client = idle.pop() if idle else self._client()
        try:
            # The timeout of httpx bounds a single read; a slow answer may take any number of reads.
            async with (
                asyncio.timeout(seconds),
                client.stream(method, url, json=body, timeout=timeout, headers=headers) as response,
            ):
                content = await _content(response, most)
        except (httpx.ReadTimeout, TimeoutError) as error:
            raise RequestFailed(f"{url} did not answer within {seconds:g} s") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ServerFailed(f"{url}: {type(error).__name__} {error}".rstrip()) from error
        finally:
            idle.append(client)
        status = response.status_code
        if response.is_success:
            try:
                return json.loads(content) if content.strip() else None
            except (ValueError, RecursionError) as error:
                raise ServerFailed(f"{url} answered what is no JSON: {_quoted(content)!r}") from error
        retry, refused = status in (408, 429, 503), 400 <= status < 500
        failure = RequestFailed if retry else RequestRefused if refused else ServerFailed
        raise failure(f"{url} answered {status}: {_reason(content)}")

    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            limits=httpx.Limits(keepalive_expiry=_KEEP_ALIVE),
            verify=self._context,
            trust_env=False,
            cookies=no_cookies(),
            headers=NOT_PACKED,
        )

    async def aclose(self) -> None:
        """Closes all connections; none may be in use."""
        await asyncio.gather(*(client.aclose() for idle in self._idle.values() for client in idle))


async def _content(response: httpx.Response, most: int) -> bytes:
    """The bytes of an answer as they are sent. Raises ServerFailed for more than `most`."""
    content = bytearray()
    async for piece in response.aiter_raw():
        content += piece
        if len(content) > most:
            raise ServerFailed(f"{response.url} answered with more than {most:,} bytes")
    return bytes(content)


def _reason(content: bytes) -> str:
    """The server's own error message, shortened to fit into ours."""
    try:
        body = json.loads(content)
        body = body.get("error", body)
        return one_line(str(body.get("message", body))[:_QUOTED])
    except (ValueError, AttributeError, RecursionError):
        return _quoted(content)


def _quoted(content: bytes) -> str:
    return one_line(content[:_QUOTED].decode("utf-8", "replace"))
