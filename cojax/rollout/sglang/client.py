"""The HTTP calls to SGLang servers and their router: completions, health, weights, and the release of memory."""

import asyncio
import collections
import contextlib
import dataclasses
import json
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import numpy as np

from cojax.openai_api import UNCOMPRESSED, flatten, no_cookies, read_error
from cojax.policy.config import ModelConfig
from cojax.policy.moe import RouteShape
from cojax.rollout.engine import Sampling
from cojax.storage.files import read_json, write_json

MEMORY_FILE = "asleep.json"  # in sglang.folder
_LOG = logging.getLogger(__name__)
# Bytes of an answer, and characters of it that a message quotes.
MAX_ANSWER_BYTES, _QUOTE_LENGTH = 8 * 2**20, 500
_CONNECT_TIMEOUT_S = 10.0
# The server closes idle connections after 5 s. We close them earlier, so that no request meets a closed one.
_KEEP_ALIVE_S = 2.0
_T = TypeVar("_T")
# Deadlines in seconds: of calls that are fast on a healthy server, and of those that move memory.
_QUICK_TIMEOUT_S = 10.0
_SLOW_TIMEOUT_S = 120.0
_HEALTH_TIMEOUT_S = 40.0  # the server itself gives up after 20
# Bytes of a sampled token in an answer: its id twice, its log-prob and its text.
_BYTES_PER_TOKEN = 256
# The server's names for its kinds of memory.
_WEIGHTS_MEMORY, _OTHER_MEMORY = "weights", ("kv_cache", "cuda_graph")
# The policy `manual` of sglang-router sends requests of one key to one server; `cache_aware` reads the tokens instead.
_ROUTING_HEADER = "X-SMG-Routing-Key"
# Base64 of int32[tokens, layers, experts a token], row-major (sglang 0.5.23, managers/detokenizer_manager.py).
_WIRE_DTYPE = np.dtype("<i4")
# Log-probs that a sampled token can have: no float32 probability is below e^-104, and rounding makes none far above 1.
_MIN_LOGPROB, _MAX_LOGPROB = -200.0, 0.01
# Characters of a label of weights: far more than ours have.
_MAX_LABEL_LENGTH = 200


class RequestFailed(Exception):
    """A request brought no usable answer; another attempt may bring one."""


class ServerFailed(RequestFailed):
    """The server did not answer, or failed; its health must be checked before it gets another request."""


class RequestRefused(Exception):
    """The server understood the request and refused it; another attempt will not help."""


class Connections:
    """Open connections, each in its own HTTP client, for one event loop and any number of servers.

    One httpx client for all would search all its connections for each request. With hundreds of connections that costs
    more than the request.
    """

    def __init__(self) -> None:
        self._ssl_context = httpx.create_ssl_context()
        self._idle_clients: dict[str, list[httpx.AsyncClient]] = collections.defaultdict(list)

    async def call(
        self,
        method: str,
        server_url: str,
        url_path: str,
        body: Any = None,
        timeout_s: float | None = None,
        headers: Mapping[str, str] | None = None,
        max_bytes: int = MAX_ANSWER_BYTES,
    ) -> Any:
        """The JSON that `server_url`/`url_path` answers within `timeout_s` (None: no limit), None for an empty answer.

        Raises RequestFailed for no answer in time and for status 408, 429 and 503, RequestRefused for any other 4xx,
        ServerFailed for any other status, for invalid JSON, for more than `max_bytes` bytes and for a broken
        connection.
        """
        url, timeout = f"{server_url}/{url_path}", httpx.Timeout(timeout_s, connect=_CONNECT_TIMEOUT_S, pool=None)
        idle_clients = self._idle_clients[server_url]
        client = idle_clients.pop() if idle_clients else self._new_client()
        try:
            # The timeout of httpx bounds a single read; a slow answer may take any number of reads.
            async with (
                asyncio.timeout(timeout_s),
                client.stream(method, url, json=body, timeout=timeout, headers=headers) as response,
            ):
                content = await _read_content(response, max_bytes)
        except (httpx.ReadTimeout, TimeoutError) as error:
            raise RequestFailed(f"{url} did not answer within {timeout_s:g} s") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ServerFailed(f"{url}: {type(error).__name__} {error}".rstrip()) from error
        finally:
            idle_clients.append(client)
        status_code = response.status_code
        if response.is_success:
            try:
                return json.loads(content) if content.strip() else None
            except (ValueError, RecursionError) as error:
                excerpt = flatten(content[:_QUOTE_LENGTH].decode("utf-8", "replace"))
                raise ServerFailed(f"{url} answered with invalid JSON: {excerpt!r}") from error
        is_retryable, is_client_error = status_code in (408, 429, 503), 400 <= status_code < 500
        failure_type = RequestFailed if is_retryable else RequestRefused if is_client_error else ServerFailed
        raise failure_type(f"{url} answered {status_code}: {flatten(read_error(content)[:_QUOTE_LENGTH])}")

    def _new_client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            limits=httpx.Limits(keepalive_expiry=_KEEP_ALIVE_S),
            verify=self._ssl_context,
            trust_env=False,
            cookies=no_cookies(),
            headers=UNCOMPRESSED,
        )

    async def aclose(self) -> None:
        """Closes all connections; none may be in use."""
        await asyncio.gather(*(client.aclose() for clients in self._idle_clients.values() for client in clients))


async def _read_content(response: httpx.Response, max_bytes: int) -> bytes:
    """The bytes of an answer as they are sent. Raises ServerFailed for more than `max_bytes`."""
    content = bytearray()
    async for chunk in response.aiter_raw():
        content += chunk
        if len(content) > max_bytes:
            raise ServerFailed(f"{response.url} answered with more than {max_bytes:,} bytes")
    return bytes(content)


def find_route_shape(config: ModelConfig, wants_routes: bool, allow_mixed: bool) -> RouteShape | None:
    """The shape of the routes that completions report, None if they report none.

    Raises ValueError for a model with experts that SGLang cannot serve, and for settings that exclude routes.
    """
    if config.sparse and config.tie_word_embeddings:
        raise ValueError(
            "SGLang reads no tied embedding of a model with experts, and would sample from an empty head; give the "
            "model a head of its own (tie_word_embeddings false), or set engine.name=local"
        )
    if wants_routes and allow_mixed:
        raise ValueError(
            "a completion during which weights changed is fed again under the new ones, so the experts that sampled "
            "its tokens are not known. Unset sglang.mixed, or set learner.routes=own"
        )
    return RouteShape.of(config) if wants_routes else None


def read_routes(meta_info: Mapping[str, Any], shape: RouteShape, first_token: int, token_count: int) -> str:
    """The routes in a reply's `meta_info`, as `RouteShape.encode` writes them.

    The conversation has `token_count` tokens; the last was never fed and has no route. Raises KeyError, TypeError or
    ValueError for an answer that is not the routes of exactly the other tokens from `first_token` on.
    """
    routes_text = meta_info["routed_experts"]
    if not isinstance(routes_text, str):
        raise TypeError(f"routed_experts is {type(routes_text).__name__}; expected base64")
    routes = shape.decode(routes_text, _WIRE_DTYPE)
    if len(routes) != token_count - 1 - first_token:
        raise ValueError(f"routed_experts of {len(routes)} tokens; expected {token_count - 1 - first_token}")
    return shape.encode(routes)


@dataclasses.dataclass(frozen=True)
class ServerReply:
    """One sampled continuation.

    `spans` holds (label of the weights, number of tokens) for each stretch sampled by one version, oldest first.
    `cached_tokens` counts the prompt tokens that the server had in its prefix cache. `routes` are the experts asked
    for, as text.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    spans: tuple[tuple[str, int], ...]
    at_stop: bool
    cached_tokens: int = 0
    routes: str = ""


def read_reply(answer: Any, max_tokens: int, vocabulary_size: int, stop_tokens: Collection[int] = ()) -> ServerReply:
    """The completion of 1 to `max_tokens` tokens below `vocabulary_size` in a reply's JSON, without routes.

    One of `stop_tokens` may only be its last token.

    Raises KeyError, TypeError, ValueError, IndexError or OverflowError for a reply that is not a complete completion.
    """
    meta_info = answer["meta_info"]
    finish_reason = meta_info["finish_reason"]
    if finish_reason["type"] not in ("stop", "length"):
        raise ValueError(f"it ended by {finish_reason!r:.200}")
    logprob_pairs = meta_info["output_token_logprobs"]
    tokens, logprobs = tuple(int(pair[1]) for pair in logprob_pairs), tuple(float(pair[0]) for pair in logprob_pairs)
    if list(tokens) != answer["output_ids"]:
        raise ValueError(f"{len(answer['output_ids'])} tokens, but log-probs of {len(tokens)} or of others")
    if min(tokens, default=0) < 0 or max(tokens, default=0) >= vocabulary_size:
        raise ValueError(f"tokens span {min(tokens)}–{max(tokens)}; the vocabulary has 0–{vocabulary_size - 1}")
    if not 0 < len(tokens) <= max_tokens:
        raise ValueError(f"{len(tokens)} tokens, asked for 1 to {max_tokens}")
    if outliers := [logprob for logprob in logprobs if not _MIN_LOGPROB <= logprob <= _MAX_LOGPROB]:
        raise ValueError(f"a log-prob is {outliers[0]:g}, which no sampled token has")
    if not set(stop_tokens).isdisjoint(tokens[:-1]):
        raise ValueError("it goes on after a token that ends it")
    version_spans = meta_info["weight_versions"]
    spans = tuple((cut_label(span["version"]), int(span["end"]) - int(span["start"])) for span in version_spans)
    if sum(count for _, count in spans) != len(tokens) or min((count for _, count in spans), default=0) < 1:
        raise ValueError(f"versions of {sum(count for _, count in spans)} tokens, but there are {len(tokens)}")
    return ServerReply(tokens, logprobs, spans, finish_reason["type"] == "stop", int(meta_info.get("cached_tokens", 0)))


def cut_label(version: Any) -> str:
    """The label of weights that a server names, cut to a bounded length."""
    return str(version)[:_MAX_LABEL_LENGTH]


@dataclasses.dataclass(frozen=True)
class ServerClient:
    """The server, or the router, at `url`, called over connections that many servers share."""

    url: str
    connections: Connections

    async def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        room: int,
        vocabulary_size: int,
        rid: str,
        seed: int,
        routing_key: str = "",
        routes: tuple[RouteShape, int] | None = None,
    ) -> ServerReply:
        """Samples at most `room` tokens of 0 … `vocabulary_size` − 1. The caller bounds the time.

        A router whose policy is `manual` sends all requests with one `routing_key` to one server. `routes`, if not
        None, asks for the experts of all tokens from a number on; earlier completions reported those before. Log-probs
        are those of logits / temperature; at temperature 0 those at temperature 1. A server uses the seed only if it
        runs with --enable-deterministic-inference. Raises RequestFailed or RequestRefused.
        """
        max_bytes, options = MAX_ANSWER_BYTES + room * _BYTES_PER_TOKEN, dict[str, Any]()
        if routes is not None:
            shape, first_token = routes
            options = {"return_routed_experts": True, "routed_experts_start_len": first_token}
            # All of the conversation's routes, in base64.
            max_bytes += 4 * ((len(prompt) + room) * shape.layers * shape.top_k * _WIRE_DTYPE.itemsize // 3 + 1)
        params: dict[str, Any] = {"temperature": sampling.temperature, "max_new_tokens": room, "sampling_seed": seed}
        params["stop_token_ids"] = list(sampling.stop_tokens)
        body = {"rid": rid, "input_ids": list(prompt), "return_logprob": True, "sampling_params": params, **options}
        headers = {_ROUTING_HEADER: routing_key} if routing_key else None
        answer = await self._post("generate", body, None, headers=headers, max_bytes=max_bytes)
        try:
            reply = read_reply(answer, room, vocabulary_size, sampling.stop_tokens)
            if routes is None:
                return reply
            route_text = read_routes(answer["meta_info"], *routes, len(prompt) + len(reply.tokens))
            return dataclasses.replace(reply, routes=route_text)
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            raise RequestFailed(
                f"{self.url} answered with an invalid completion: {type(error).__name__}: {flatten(str(error))[:300]}"
            ) from error

    async def abort(self, request_id: str) -> None:
        """Ends the request of this id, because its answer is no longer wanted."""
        await self._post("abort_request", {"rid": request_id}, _QUICK_TIMEOUT_S)

    async def read_version(self) -> str:
        """The label of the weights it serves. Raises RequestFailed or RequestRefused while the server is not up."""
        return await self._get("model_info", lambda answer: cut_label(answer["weight_version"]))

    async def check_health(self) -> None:
        """Has the server generate a token. Raises RequestFailed if it does not, ServerFailed if it is gone."""
        await self.connections.call("GET", self.url, "health", timeout_s=_HEALTH_TIMEOUT_S)

    async def can_release_memory(self) -> bool:
        """Whether it can release memory, or runs on the CPU, where a request to release memory does nothing."""
        return await self._get("server_info", lambda info: bool(info["enable_memory_saver"]) or info["device"] == "cpu")

    async def reports_routes(self) -> bool:
        """Whether it can report which experts tokens went through."""
        return await self._get("server_info", lambda info: bool(info["enable_return_routed_experts"]))

    async def read_incarnation(self) -> str:
        """A text that identifies the server's process: how long its parts took to start. A restart changes it."""
        times = await self._get("server_info", lambda info: [part["startup_time"] for part in info["internal_states"]])
        return json.dumps(times)

    async def rest(self, memory: "ReleasedMemory") -> None:
        """Has the server release the memory of cache, weights and graphs; it answers no completion until it is woken.

        Running requests are put back in the queue first: a server that is not idle would crash. Raises RequestFailed or
        RequestRefused. Raises StorageError if the release cannot be recorded; then nothing is released.
        """
        async with memory.lock:
            memory.incarnation = await self.read_incarnation()
            await self._pause_generation()
            try:
                # Recorded before the request: the memory may be gone even if no answer comes.
                await memory.add((_WEIGHTS_MEMORY, *_OTHER_MEMORY))
            except BaseException:
                await asyncio.shield(self._continue_generation())
                raise
            await self._post("release_memory_occupation", {"tags": sorted(memory.kinds)}, _SLOW_TIMEOUT_S)

    async def wake(self, memory: "ReleasedMemory") -> None:
        """Ends a `rest`, if there is one, without new weights: their memory is allocated again, without their values.

        Raises RequestFailed or RequestRefused.
        """
        async with memory.lock:
            await self._forget_if_restarted(memory)
            if not memory:
                return
            for tag in sorted(memory.kinds):
                await self._post("resume_memory_occupation", {"tags": [tag]}, _SLOW_TIMEOUT_S)
                await memory.remove([tag])
            await self._post("continue_generation", {}, _QUICK_TIMEOUT_S)

    async def _forget_if_restarted(self, memory: "ReleasedMemory") -> None:
        """Forgets the record of a server that was restarted: it has all its memory, and a restore would crash it."""
        if memory and await self.read_incarnation() != memory.incarnation:
            await memory.remove(memory.kinds)

    async def update(self, folder: Path, label: str, memory: "ReleasedMemory") -> None:
        """Has the server load the weights in `folder`, which must have the same path there. The caller bounds the time.

        Running requests are put back in the queue. They continue with the new weights and a recomputed cache. Memory
        that it has released is allocated again: that of the weights before the update, the rest after it, so that the
        server never takes more than it needs while it shares the accelerator with the learner. Raises RequestFailed or
        RequestRefused.
        """
        async with memory.lock:
            await self._forget_if_restarted(memory)
            await self._load_weights(folder, label, memory)

    async def _load_weights(self, folder: Path, label: str, memory: "ReleasedMemory") -> None:
        await self._pause_generation()
        try:
            if _WEIGHTS_MEMORY in memory.kinds:
                await self._post("resume_memory_occupation", {"tags": [_WEIGHTS_MEMORY]}, _SLOW_TIMEOUT_S)
                await memory.remove([_WEIGHTS_MEMORY])
            body = {"model_path": str(folder), "weight_version": label, "flush_cache": True}
            await self._post("update_weights_from_disk", body, None)
            if memory:
                await self._post("resume_memory_occupation", {"tags": sorted(memory.kinds)}, _SLOW_TIMEOUT_S)
                await memory.remove(memory.kinds)
        except BaseException:
            # A server that stays paused answers no request. But one without its memory must stay paused.
            if not memory:
                await asyncio.shield(self._continue_generation())
            raise
        await asyncio.shield(self._post("continue_generation", {}, _QUICK_TIMEOUT_S))
        if (version := await self.read_version()) != label:
            raise ServerFailed(f"{self.url} serves weights {version!r} after an update to {label!r}")

    async def _pause_generation(self) -> None:
        """Puts the running requests back in the queue; they continue if this raises RequestFailed or RequestRefused."""
        try:
            await self._post("pause_generation", {"mode": "retract"}, _QUICK_TIMEOUT_S)
        except BaseException as error:
            # The server may have paused although no answer came, unless it was never reached.
            if not isinstance(error.__cause__, httpx.ConnectError | httpx.ConnectTimeout):
                await asyncio.shield(self._continue_generation())
            raise

    async def _continue_generation(self) -> None:
        """Ends a pause after a fault. A failure of this call is ignored, so that the first fault is reported."""
        with contextlib.suppress(RequestFailed, RequestRefused):
            await self._post("continue_generation", {}, _QUICK_TIMEOUT_S)

    # --- a router ---

    async def list_servers(self) -> dict[str, str]:
        """Address → id of each server behind the router. Raises RequestFailed or RequestRefused."""

        def read_workers(answer: Any) -> dict[str, str]:
            return {str(worker["url"]).rstrip("/"): str(worker["id"]) for worker in answer["workers"]}

        return await self._get("workers", read_workers, "sglang-router 0.3.2")

    async def add_server(self, server_url: str) -> None:
        """Puts the server at this address behind the router. Raises RequestFailed or RequestRefused."""
        await self._post("workers", {"url": server_url}, _QUICK_TIMEOUT_S)

    async def remove_server(self, server_url: str) -> None:
        """Takes the server at this address from the router, if it is there. Raises RequestFailed or RequestRefused."""
        if (worker_id := (await self.list_servers()).get(server_url)) is not None:
            url_path = f"workers/{quote(worker_id, safe='')}"
            await self.connections.call("DELETE", self.url, url_path, None, _QUICK_TIMEOUT_S)

    async def _get(self, url_path: str, parse: Callable[[Any], _T], package: str = "SGLang 0.5.23") -> _T:
        """The result of `parse` for the answer. Raises ServerFailed if the answer lacks a field."""
        answer = await self.connections.call("GET", self.url, url_path, timeout_s=_QUICK_TIMEOUT_S)
        try:
            return parse(answer)
        except (KeyError, TypeError) as error:
            raise ServerFailed(f"{self.url}/{url_path} answered without {error}; expected {package}") from error

    async def _post(self, url_path: str, body: dict[str, Any], timeout_s: float | None, **call_options: Any) -> Any:
        return await self.connections.call("POST", self.url, url_path, body, timeout_s, **call_options)


class ReleasedMemoryFile:
    """The record of all servers that have released memory, by URL. One trainer writes it, from any thread."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._entry_by_url: dict[str, tuple[str, list[str]]] = {}
        try:
            for url, (incarnation, kinds) in read_json(path).items():
                self._entry_by_url[url] = str(incarnation), list(map(str, kinds))
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, AttributeError) as error:
            _LOG.warning("%s cannot be read: %s. Restart the servers that still lack their memory", path, error)

    def find(self, url: str) -> tuple[str, list[str]]:
        """The `ServerClient.incarnation` that released memory at this address, and the kinds; both empty if none."""
        return self._entry_by_url.get(url, ("", []))

    def write(self, url: str, incarnation: str, kinds: Iterable[str]) -> None:
        """Records the kinds of memory that a server has released; no kinds remove its entry. Raises StorageError."""
        with self._lock:
            if kind_names := sorted(kinds):
                self._entry_by_url[url] = incarnation, kind_names
            else:
                self._entry_by_url.pop(url, None)
            write_json(self._path, self._entry_by_url)


@dataclasses.dataclass(eq=False)
class ReleasedMemory:
    """The `kinds` of memory that one server has released, and the `incarnation` of its process at that time.

    The file names a kind from before its release until it is restored. It must be correct: a server crashes if it is
    asked to restore memory that it has, or to load weights without memory for them.
    """

    url: str = ""
    file: ReleasedMemoryFile | None = None
    incarnation: str = ""
    kinds: set[str] = dataclasses.field(default_factory=set)
    lock: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)  # held by a rest, a wake or an update

    def __post_init__(self) -> None:
        if self.file is not None:
            self.incarnation, kinds = self.file.find(self.url)
            self.kinds.update(kinds)

    def __bool__(self) -> bool:
        return bool(self.kinds)

    async def add(self, kinds: Iterable[str]) -> None:
        """Records further kinds. Raises StorageError if that fails; then no memory may be released."""
        all_kinds = self.kinds.union(kinds)
        await self._record(all_kinds)
        self.kinds = all_kinds

    async def remove(self, kinds: Iterable[str]) -> None:
        """Records that these kinds are restored. Raises StorageError if that fails."""
        self.kinds = self.kinds.difference(kinds)
        await self._record(self.kinds)

    async def _record(self, kinds: set[str]) -> None:
        if self.file is not None:
            await asyncio.to_thread(self.file.write, self.url, self.incarnation, kinds)
