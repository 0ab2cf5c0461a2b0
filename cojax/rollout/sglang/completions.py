"""Completions of many conversations from a fleet of servers: retries, deadlines, and a check of their weights."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import threading
import uuid
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

import tenacity

from cojax.environment import EngineError
from cojax.policy.moe import RouteShape
from cojax.rollout.engine import BusyTime, Completion, Sampling
from cojax.rollout.sglang.client import RequestFailed, RequestRefused, RoutesRequest, ServerFailed, ServerReply
from cojax.rollout.sglang.fleet import Fleet
from cojax.rollout.sglang.server import Server

_T = TypeVar("_T")


class LoopThread:
    """Runs coroutines for other threads until `close`. From then on all callers, also waiting ones, get EngineError.

    `closed` is the message of that error.
    """

    def __init__(self, name: str, closed: str) -> None:
        self._entry = threading.Lock()  # no call enters the event loop once `_down` is set
        self._down, self._closed = "", closed
        self._calls: set[asyncio.Task[Any]] = set()
        self._detached: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def raise_if_closed(self) -> None:
        """Raises EngineError if the loop is closed."""
        if self._down:
            raise EngineError(self._down)

    def call(self, coroutine: Coroutine[Any, Any, _T], cancelled: str = "") -> _T:
        """The coroutine's result. Raises EngineError if the loop is closed, or, with the message `cancelled`, if the
        coroutine is cancelled."""
        with self._entry:
            if self._down:
                coroutine.close()
                raise EngineError(self._down)
            future = asyncio.run_coroutine_threadsafe(self._tracked(coroutine), self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise EngineError(self._down or cancelled) from None

    def call_soon(self, function: Callable[[str], None], argument: str) -> None:
        """Calls the function on the loop without waiting for it; does nothing once the loop is closed."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, argument)

    def run_detached(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Runs a coroutine that nothing but `close` waits for. Must be called on the loop."""
        task = self._loop.create_task(coroutine)
        self._detached.add(task)
        task.add_done_callback(self._detached.discard)

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Cancels all calls, runs `last`, and ends loop and thread. Returns False if it was closed before."""
        with self._entry:
            if self._down:
                return False
            self._down = self._closed
        asyncio.run_coroutine_threadsafe(self._cancel_and_run(last), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        return True

    async def _tracked(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        try:
            return await coroutine
        finally:
            self._calls.discard(task)

    async def _cancel_and_run(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        # These are all calls: every call that entered before has registered itself on the loop by now.
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await asyncio.gather(*self._detached, return_exceptions=True)
        await last()


@dataclasses.dataclass
class SampledCounts:
    """Counts of completions, of their prompts' tokens, and of the prompt tokens found in a prefix cache."""

    completions: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0


@dataclasses.dataclass(eq=False)
class Completions:
    """Asks servers for completions; only on the event loop of `loop`.

    `versions` maps every label that this run has given to weights to its version. The tokens of a completion are below
    `vocabulary`. A completion takes at most `deadline` seconds and `attempts` requests. If weights change during a
    completion, it is kept with `mixed`, and sampled again without. A router gets a key for each session, made from
    `key_prefix`; "" sends none. `shape` is the shape of the routes to ask for, None to ask for none.
    """

    fleet: Fleet
    loop: LoopThread
    versions: Mapping[str, int]
    vocabulary: int
    deadline: float
    attempts: int
    mixed: bool
    key_prefix: str
    shape: RouteShape | None
    served: SampledCounts = dataclasses.field(default_factory=SampledCounts)
    busy: BusyTime = dataclasses.field(default_factory=BusyTime)
    _tasks: dict[str, asyncio.Task[Any]] = dataclasses.field(default_factory=dict)
    # Session → tokens whose routes an earlier completion reported.
    _routes_known: dict[str, int] = dataclasses.field(default_factory=dict)

    async def generate(self, tokens: list[int], sampling: Sampling, room: int, session: str, seed: int) -> Completion:
        """At most `room` tokens that continue `tokens`. Raises EngineError, or ValueError for a session in use."""
        if session in self._tasks:
            raise ValueError(f"session {session!r} is still generating; one call at a time")
        task = asyncio.current_task()
        assert task is not None
        self._tasks[session] = task
        tries = tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(self.attempts),
            wait=tenacity.wait_random_exponential(multiplier=0.2, max=10.0),
            retry=tenacity.retry_if_exception_type(RequestFailed),
            reraise=True,
        )
        try:
            with self.busy:
                async with asyncio.timeout(self.deadline):
                    return await tries(self._attempt, tokens, sampling, room, session, seed)
        except TimeoutError as error:
            faults = self.fleet.faults()
            raise EngineError(
                f"no completion within {self.deadline:g} s" + (f"; servers left out: {faults}" if faults else "")
            ) from error
        except RequestFailed as error:
            raise EngineError(f"no completion in {self.attempts} attempts, the last: {error}") from error
        except RequestRefused as error:
            raise EngineError(str(error)) from error
        finally:
            del self._tasks[session]

    def forget(self, session: str) -> None:
        """Ends the session, if known, and cancels its call."""
        if session in self._tasks:
            self._tasks[session].cancel()
        self._routes_known.pop(session, None)
        self.fleet.forget(session)

    async def _attempt(self, tokens: list[int], sampling: Sampling, room: int, session: str, seed: int) -> Completion:
        """One request to one server. Raises RequestFailed if another may succeed."""
        server = await self.fleet.route(session)
        assert self.fleet.target is not None
        label, rid = self.fleet.target.label, uuid.uuid4().hex
        key = hashlib.sha256(f"{self.key_prefix}-{session}".encode()).hexdigest()[:32] if self.key_prefix else ""
        routes = None if self.shape is None else RoutesRequest(self.shape, self._routes_known.get(session, 0))
        request = asyncio.create_task(
            server.client.generate(tokens, sampling, room, self.vocabulary, rid, seed, key, routes)
        )
        server.requests.add(request)
        try:
            reply = await request
            server.replies += 1
            self.served.completions += 1
            self.served.prompt_tokens += len(tokens)
            self.served.cached_tokens += min(max(0, reply.cached), len(tokens))
            completion = self._completion(reply, server, label, sampling)
            if routes is not None:
                self._routes_known[session] = len(tokens) + len(reply.tokens) - 1
            return completion
        except ServerFailed as error:
            self.fleet.suspect(server, str(error))
            raise
        except asyncio.CancelledError:
            request.cancel()
            self.loop.run_detached(self.fleet.abort(server, rid))
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise RequestFailed(f"a server was left out: {server.fault or self.fleet.faults()}") from None
        finally:
            server.requests.discard(request)

    def _completion(self, reply: ServerReply, server: Server, label: str, sampling: Sampling) -> Completion:
        """The completion in a reply. Raises RequestFailed if it was not sampled from the weights asked for, `label`."""
        assert self.fleet.target is not None
        labels = [name for name, _ in reply.spans]
        if unknown := [name for name in labels if name not in self.versions]:
            fault = f"sampled from weights {unknown[0]!r}, which are not of this run"
            self.fleet.suspect(server, f"it {fault}")
            raise RequestFailed(f"{server.name} {fault}")
        # Even a mixed one must end with current weights: a router may choose a server that is left out.
        stale = labels[-1] not in (label, self.fleet.target.label)
        if stale or (len(labels) > 1 and not self.mixed):
            raise RequestFailed(f"{server.name} sampled from weights {' and '.join(labels)}, asked for {label}")
        spans: list[tuple[int, int]] = []
        for name, count in reply.spans:
            version = self.versions[name]
            if spans and spans[-1][0] == version:
                spans[-1] = version, spans[-1][1] + count
            else:
                spans.append((version, count))
        stopped = reply.stopped or reply.tokens[-1] in sampling.stop_tokens
        return Completion(
            reply.tokens,
            reply.logprobs,
            spans[-1][0],
            "stop" if stopped else "length",
            tuple(spans) if len(spans) > 1 else (),
            reply.routes,
        )
