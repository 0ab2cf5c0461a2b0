"""One SGLang server over HTTP: what it is asked, and what its answers mean."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from cojax.rollout.engine import Sampling
from cojax.rollout.sglang.experts import Asked
from cojax.rollout.sglang.sleep import Asleep

# Deadlines in seconds of calls that do no work worth waiting for.
_QUICK = 10.0
_MEMORY = 120.0
_HEALTH = 40.0  # the server itself gives up after 20
# The server closes idle connections after 5 s; ours must be gone by then, or a request meets a closed one.
_KEEP_ALIVE = 2.0
# Kinds of memory as the server tells them apart.
_WEIGHTS, _OTHER_MEMORY = "weights", ("kv_cache", "cuda_graph")
# What sglang-router's policy `manual` goes by; `cache_aware` goes by the tokens themselves.
_ROUTING_KEY = "X-SMG-Routing-Key"


class Lost(Exception):
    """No completion came of a request; asked again, there may be one."""


class Unreachable(Lost):
    """The server did not answer, or broke: it needs a look before it is asked again."""


class RequestRefused(Exception):
    """The server understood and said no: asking again will not help."""


@dataclasses.dataclass(frozen=True)
class ServerReply:
    """One sampled continuation: `spans` are (label of the weights, tokens) of each stretch, oldest first; `cached` is
    how many tokens of the prompt the server had in its prefix cache, `routes` what it told of those asked for."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    spans: tuple[tuple[str, int], ...]
    stopped: bool
    cached: int = 0
    routes: str = ""


class Clients:
    """Connections that are kept and used again, each in a client of its own, for one event loop.

    The library's pool looks at all its connections for each request, which at hundreds costs more than the request.
    """

    def __init__(self) -> None:
        self._context = httpx.create_ssl_context()
        self._idle: dict[str, list[httpx.AsyncClient]] = collections.defaultdict(list)

    async def request(
        self, method: str, origin: str, path: str, body: Any, timeout: httpx.Timeout, headers: dict[str, str]
    ) -> httpx.Response:
        """Raises httpx.HTTPError."""
        idle = self._idle[origin]
        limits = httpx.Limits(keepalive_expiry=_KEEP_ALIVE)
        client = idle.pop() if idle else httpx.AsyncClient(limits=limits, verify=self._context, trust_env=False)
        try:
            return await client.request(method, f"{origin}/{path}", json=body, timeout=timeout, headers=headers)
        finally:
            idle.append(client)

    async def aclose(self) -> None:
        """Closes all connections; none may be in use."""
        await asyncio.gather(*(client.aclose() for idle in self._idle.values() for client in idle))


@dataclasses.dataclass(frozen=True)
class ServerClient:
    """The server at `url`, called through clients that many servers share."""

    url: str
    clients: Clients

    async def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        room: int,
        vocabulary: int,
        rid: str,
        seed: int,
        key: str = "",
        asked: Asked | None = None,
    ) -> ServerReply:
        """Samples at most `room` tokens of 0 … `vocabulary` − 1; the caller bounds the time. Raises Lost or
        RequestRefused.

        A router keeps requests of one `key` on one server, by the policies that look at it. `asked` are the routes to
        tell, None for none.
        Log-probs are those of logits / temperature, at temperature 0 those at temperature 1. The seed counts where the
        server runs with --enable-deterministic-inference; elsewhere it is ignored.
        """
        answer = await self._post(
            "generate",
            {
                "rid": rid,
                "input_ids": list(prompt),
                "return_logprob": True,
                "sampling_params": {
                    "temperature": sampling.temperature,
                    "max_new_tokens": room,
                    "stop_token_ids": list(sampling.stop_tokens),
                    "sampling_seed": seed,
                },
                **({} if asked is None else asked.request()),
            },
            None,
            {_ROUTING_KEY: key} if key else {},
        )
        try:
            reply = _read(answer, room, vocabulary)
            if asked is None:
                return reply
            return dataclasses.replace(reply, routes=asked.read(answer["meta_info"], len(prompt) + len(reply.tokens)))
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            raise Lost(f"{self.url} answered what is no completion: {type(error).__name__}: {error}") from error

    async def abort(self, rid: str) -> None:
        """Ends a request whose answer nobody waits for any more."""
        await self._post("abort_request", {"rid": rid}, _QUICK)

    async def version(self) -> str:
        """The label of the weights it serves; also says that it is up."""
        answer = await self._call("GET", "model_info", None, _QUICK)
        try:
            return str(answer["weight_version"])
        except (KeyError, TypeError) as error:
            raise Unreachable(f"{self.url} tells no weight_version; expected an SGLang server") from error

    async def healthy(self) -> None:
        """Raises Lost while it gives no sign of generating, Unreachable where it is gone."""
        await self._call("GET", "health", None, _HEALTH)

    async def saves_memory(self) -> bool:
        """Whether it can give memory back. A CPU server cannot, and takes the request for nothing."""
        answer = await self._call("GET", "server_info", None, _QUICK)
        try:
            return bool(answer["enable_memory_saver"]) or answer["device"] == "cpu"
        except (KeyError, TypeError) as error:
            raise Unreachable(f"{self.url} tells no enable_memory_saver; expected an SGLang server") from error

    async def tells_routes(self) -> bool:
        """Whether it can tell which experts tokens went through."""
        answer = await self._call("GET", "server_info", None, _QUICK)
        try:
            return bool(answer["enable_return_routed_experts"])
        except (KeyError, TypeError) as error:
            raise Unreachable(f"{self.url} tells no enable_return_routed_experts; expected SGLang 0.5.23") from error

    async def born(self) -> str:
        """What tells its process from one that was started in its place later: how long its parts took to start."""
        answer = await self._call("GET", "server_info", None, _QUICK)
        try:
            return json.dumps([state["startup_time"] for state in answer["internal_states"]])
        except (KeyError, TypeError) as error:
            raise Unreachable(f"{self.url} tells no startup_time; expected an SGLang server") from error

    async def rest(self, asleep: Asleep) -> None:
        """Has it give back the memory of cache, weights and graphs; it answers nothing until it is woken.

        Requests under way are put back in the queue first: a server that is not idle would not survive this. Raises
        Lost or RequestRefused, StorageError where it cannot be noted and so is not done.
        """
        await self._pause()
        try:
            await asleep.add((_WEIGHTS, *_OTHER_MEMORY))  # from here on, whatever comes of the request
        except BaseException:
            await asyncio.shield(self._unpause())
            raise
        await self._post("release_memory_occupation", {"tags": sorted(asleep.kinds)}, _MEMORY)

    async def wake(self, asleep: Asleep) -> None:
        """Ends a `rest` without an update; of the weights there is only room."""
        for tag in sorted(asleep.kinds):
            await self._post("resume_memory_occupation", {"tags": [tag]}, _MEMORY)
            await asleep.remove([tag])
        await self._post("continue_generation", {}, _QUICK)

    async def update(self, folder: Path, label: str, asleep: Asleep) -> None:
        """Has it load the weights in `folder`, a path that it must see as we do. The caller bounds the time.

        Requests under way are put back in the queue, and go on under the new weights with their cache made anew. The
        kinds of memory in `asleep` it has given back: room is made for the weights, and for the rest once they are
        there, so that both never lie beside the learner's more than needed.
        """
        await self._pause()
        try:
            if _WEIGHTS in asleep.kinds:
                await self._post("resume_memory_occupation", {"tags": [_WEIGHTS]}, _MEMORY)
                await asleep.remove([_WEIGHTS])
            await self._post(
                "update_weights_from_disk",
                {"model_path": str(folder), "weight_version": label, "flush_cache": True},
                None,
            )
            if asleep:
                await self._post("resume_memory_occupation", {"tags": sorted(asleep.kinds)}, _MEMORY)
                await asleep.remove(asleep.kinds)
        except BaseException:
            # A server left paused would answer nobody, and one without its memory must not go on.
            if not asleep:
                await asyncio.shield(self._unpause())
            raise
        await asyncio.shield(self._post("continue_generation", {}, _QUICK))
        if (found := await self.version()) != label:
            raise Unreachable(f"{self.url} serves weights {found!r} after an update to {label!r}")

    async def _pause(self) -> None:
        """Puts the requests under way back in the queue. Raises Lost or RequestRefused, after which they go on."""
        try:
            await self._post("pause_generation", {"mode": "retract"}, _QUICK)
        except BaseException as error:
            # Unanswered, it may have come about all the same; not so where nobody was there to hear it.
            if not isinstance(error.__cause__, httpx.ConnectError | httpx.ConnectTimeout):
                await asyncio.shield(self._unpause())
            raise

    async def _unpause(self) -> None:
        """Ends a pause after a fault, which counts for more than what comes of this; also if our time is up."""
        with contextlib.suppress(Lost, RequestRefused):
            await self._post("continue_generation", {}, _QUICK)

    async def _post(
        self, path: str, body: dict[str, Any], seconds: float | None, headers: dict[str, str] | None = None
    ) -> Any:
        return await self._call("POST", path, body, seconds, headers)

    async def _call(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None,
        seconds: float | None,
        headers: dict[str, str] | None = None,
    ) -> Any:
        timeout = httpx.Timeout(seconds, connect=_QUICK, pool=None)
        try:
            # httpx bounds each read, of which a slow answer may take any number.
            async with asyncio.timeout(seconds):
                response = await self.clients.request(method, self.url, path, body, timeout, headers or {})
        except (httpx.ReadTimeout, TimeoutError) as error:
            raise Lost(f"{self.url}/{path} did not answer within {seconds:g} s") from error
        except httpx.HTTPError as error:
            raise Unreachable(f"{self.url}/{path}: {type(error).__name__} {error}".rstrip()) from error
        if response.status_code in (408, 429, 503):
            raise Lost(f"{self.url}/{path} answered {response.status_code}: {_reason(response)}")
        if 400 <= response.status_code < 500:
            raise RequestRefused(f"{self.url}/{path} answered {response.status_code}: {_reason(response)}")
        if response.status_code != 200:
            raise Unreachable(f"{self.url}/{path} answered {response.status_code}: {_reason(response)}")
        try:
            return response.json() if response.content.strip() else None
        except (ValueError, RecursionError) as error:
            raise Unreachable(f"{self.url}/{path} answered what is no JSON: {response.text[:200]!r}") from error


def _read(answer: Any, room: int, vocabulary: int) -> ServerReply:
    """Raises KeyError, TypeError, ValueError, IndexError or OverflowError for what is no whole completion."""
    about = answer["meta_info"]
    finish = about["finish_reason"]
    if finish["type"] not in ("stop", "length"):
        raise ValueError(f"it ended by {finish}")
    pairs = about["output_token_logprobs"]
    tokens, logprobs = tuple(int(pair[1]) for pair in pairs), tuple(float(pair[0]) for pair in pairs)
    if list(tokens) != answer["output_ids"]:
        raise ValueError(f"{len(answer['output_ids'])} tokens, but log-probs of {len(tokens)} or of others")
    if min(tokens, default=0) < 0 or max(tokens, default=0) >= vocabulary:
        raise ValueError(f"tokens span {min(tokens)}–{max(tokens)}; the vocabulary has 0–{vocabulary - 1}")
    if not 0 < len(tokens) <= room:
        raise ValueError(f"{len(tokens)} tokens, asked for 1 to {room}")
    if not all(math.isfinite(logprob) for logprob in logprobs):
        raise ValueError("a log-prob is not finite")
    versions = about["weight_versions"]
    spans = tuple((str(span["version"]), int(span["end"]) - int(span["start"])) for span in versions)
    if sum(count for _, count in spans) != len(tokens) or min((count for _, count in spans), default=0) < 1:
        raise ValueError(f"versions of {sum(count for _, count in spans)} tokens, but there are {len(tokens)}")
    return ServerReply(tokens, logprobs, spans, finish["type"] == "stop", int(about.get("cached_tokens", 0)))


def _reason(response: httpx.Response) -> str:
    """The server's own words, cut to what fits a message."""
    try:
        body = response.json()
        body = body.get("error", body)
        return str(body.get("message", body))[:500]
    except (ValueError, AttributeError, RecursionError):
        return response.text[:500]
