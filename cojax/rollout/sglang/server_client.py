"""The HTTP calls to one SGLang server: completions, health, weights, and the release of memory."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx

from cojax.openai_api.plain_http import one_line
from cojax.rollout.engine import Sampling
from cojax.rollout.sglang.connections import MOST, Connections, RequestFailed, RequestRefused, ServerFailed
from cojax.rollout.sglang.experts import RoutesRequest
from cojax.rollout.sglang.released_memory import ReleasedMemory
from cojax.rollout.sglang.replies import ServerReply, label_of, read_reply

_T = TypeVar("_T")
# Deadlines in seconds: of calls that are fast on a healthy server, and of those that move memory.
_QUICK = 10.0
_MEMORY = 120.0
_HEALTH = 40.0  # the server itself gives up after 20
# Bytes of a sampled token in an answer: its id twice, its log-prob and its text.
_TOKEN = 256
# The server's names for its kinds of memory.
_WEIGHTS, _OTHER_MEMORY = "weights", ("kv_cache", "cuda_graph")
# The policy `manual` of sglang-router sends requests of one key to one server; `cache_aware` reads the tokens instead.
_ROUTING_KEY = "X-SMG-Routing-Key"


@dataclasses.dataclass(frozen=True)
class ServerClient:
    """The server at `url`, called over connections that many servers share."""

    url: str
    connections: Connections

    async def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        room: int,
        vocabulary: int,
        rid: str,
        seed: int,
        key: str = "",
        routes: RoutesRequest | None = None,
    ) -> ServerReply:
        """Samples at most `room` tokens of 0 … `vocabulary` − 1. The caller bounds the time.

        A router whose policy is `manual` sends all requests with one `key` to one server. `routes` says for which
        tokens to report experts, None for none. Log-probs are those of logits / temperature; at temperature 0 those at
        temperature 1. A server uses the seed only if it runs with --enable-deterministic-inference. Raises
        RequestFailed or RequestRefused.
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
                **({} if routes is None else routes.body()),
            },
            None,
            {_ROUTING_KEY: key} if key else {},
            MOST + room * _TOKEN + (0 if routes is None else routes.bytes(len(prompt) + room)),
        )
        try:
            reply = read_reply(answer, room, vocabulary, sampling.stop_tokens)
            if routes is None:
                return reply
            return dataclasses.replace(reply, routes=routes.read(answer["meta_info"], len(prompt) + len(reply.tokens)))
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            raise RequestFailed(
                f"{self.url} answered what is no completion: {type(error).__name__}: {one_line(str(error))[:300]}"
            ) from error

    async def abort(self, rid: str) -> None:
        """Ends the request of this id, whose answer is no longer wanted."""
        await self._post("abort_request", {"rid": rid}, _QUICK)

    async def version(self) -> str:
        """The label of the weights it serves. Raises RequestFailed or RequestRefused while the server is not up."""
        return await self._read("model_info", lambda answer: label_of(answer["weight_version"]))

    async def check_health(self) -> None:
        """Has the server generate a token. Raises RequestFailed if it does not, ServerFailed if it is gone."""
        await self._get("health", _HEALTH)

    async def can_release_memory(self) -> bool:
        """Whether it can release memory, or runs on the CPU, where a request to release memory does nothing."""
        return await self._read("server_info", lambda i: bool(i["enable_memory_saver"]) or i["device"] == "cpu")

    async def reports_routes(self) -> bool:
        """Whether it can report which experts tokens went through."""
        return await self._read("server_info", lambda info: bool(info["enable_return_routed_experts"]))

    async def incarnation(self) -> str:
        """A text that identifies the server's process: how long its parts took to start. A restart changes it."""
        parts = await self._read("server_info", lambda info: [part["startup_time"] for part in info["internal_states"]])
        return json.dumps(parts)

    async def rest(self, released: ReleasedMemory) -> None:
        """Has it release the memory of cache, weights and graphs; it answers no completion until it is woken.

        Running requests are put back in the queue first: a server that is not idle would crash. Raises RequestFailed or
        RequestRefused. Raises StorageError if the release cannot be recorded; then nothing is released.
        """
        await self._pause()
        try:
            # Recorded before the request: the memory may be gone even if no answer comes.
            await released.add((_WEIGHTS, *_OTHER_MEMORY))
        except BaseException:
            await asyncio.shield(self._unpause())
            raise
        await self._post("release_memory_occupation", {"tags": sorted(released.kinds)}, _MEMORY)

    async def wake(self, released: ReleasedMemory) -> None:
        """Ends a `rest` without new weights: the memory of the weights is allocated again, but without their values."""
        for tag in sorted(released.kinds):
            await self._post("resume_memory_occupation", {"tags": [tag]}, _MEMORY)
            await released.remove([tag])
        await self._post("continue_generation", {}, _QUICK)

    async def update(self, folder: Path, label: str, released: ReleasedMemory) -> None:
        """Has it load the weights in `folder`, which must have the same path on the server. The caller bounds the time.

        Running requests are put back in the queue. They continue with the new weights and a recomputed cache. Memory in
        `released` is taken again: that of the weights before the update, the rest after it, so that the server never
        takes more than it needs while it shares the accelerator with the learner. Raises RequestFailed or
        RequestRefused.
        """
        await self._pause()
        try:
            if _WEIGHTS in released.kinds:
                await self._post("resume_memory_occupation", {"tags": [_WEIGHTS]}, _MEMORY)
                await released.remove([_WEIGHTS])
            await self._post(
                "update_weights_from_disk",
                {"model_path": str(folder), "weight_version": label, "flush_cache": True},
                None,
            )
            if released:
                await self._post("resume_memory_occupation", {"tags": sorted(released.kinds)}, _MEMORY)
                await released.remove(released.kinds)
        except BaseException:
            # A server that stays paused answers no request. But one without its memory must stay paused.
            if not released:
                await asyncio.shield(self._unpause())
            raise
        await asyncio.shield(self._post("continue_generation", {}, _QUICK))
        if (found := await self.version()) != label:
            raise ServerFailed(f"{self.url} serves weights {found!r} after an update to {label!r}")

    async def _pause(self) -> None:
        """Puts the running requests back in the queue; they continue if this raises RequestFailed or RequestRefused."""
        try:
            await self._post("pause_generation", {"mode": "retract"}, _QUICK)
        except BaseException as error:
            # The server may have paused although no answer came, unless it was never reached.
            if not isinstance(error.__cause__, httpx.ConnectError | httpx.ConnectTimeout):
                await asyncio.shield(self._unpause())
            raise

    async def _unpause(self) -> None:
        """Ends a pause after a fault. A failure of this call is ignored, so that the first fault is reported."""
        with contextlib.suppress(RequestFailed, RequestRefused):
            await self._post("continue_generation", {}, _QUICK)

    async def _read(self, path: str, read: Callable[[Any], _T]) -> _T:
        """The result of `read` for the answer. Raises ServerFailed if the answer lacks a field."""
        answer = await self._get(path, _QUICK)
        try:
            return read(answer)
        except (KeyError, TypeError) as error:
            raise ServerFailed(f"{self.url}/{path} answered without {error}; expected SGLang 0.5.23") from error

    async def _get(self, path: str, seconds: float) -> Any:
        return await self.connections.call("GET", self.url, path, None, seconds, {})

    async def _post(
        self,
        path: str,
        body: dict[str, Any],
        seconds: float | None,
        headers: dict[str, str] | None = None,
        most: int = MOST,
    ) -> Any:
        return await self.connections.call("POST", self.url, path, body, seconds, headers or {}, most)
