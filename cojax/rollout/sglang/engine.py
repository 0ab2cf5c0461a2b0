"""The engine that samples on SGLang servers: token ids in, token ids and log-probs out, weights through a folder.

One thread runs an event loop with open HTTP connections; `generate` may be called from hundreds of other threads. Every
reply names the weights that sampled it. A completion from other weights than requested is discarded and sampled again.
Trainer and servers share a folder of weights: the trainer writes versions, servers find the newest.
"""

import asyncio
import collections
import concurrent.futures
import contextlib
import errno
import fcntl
import hashlib
import itertools
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import tenacity

from cojax.durable import own_file
from cojax.environment import EngineError
from cojax.policy.config import DamagedFile, ModelConfig
from cojax.rollout import export
from cojax.rollout.engine import BusyTime, Completion, Sampling, Weights, check_length, checked_prompt
from cojax.rollout.sglang import client
from cojax.rollout.sglang.client import RequestFailed, RequestRefused, ServerFailed
from cojax.rollout.sglang.fleet import Fleet
from cojax.rollout.sglang.server import LabelledWeights, LaunchSettings, Server, ServerProcess
from cojax.settings.tree import SGLangSettings
from cojax.storage.files import explain, is_number

_LOG = logging.getLogger(__name__)
_SETTINGS = SGLangSettings()
# Errors of file systems without locks.
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
_ATTEMPTS = 5  # to read a folder whose versions vanish meanwhile
_PAUSE = 0.05  # seconds before the next attempt
_SETTLE_SECONDS = 5.0  # seconds after which another host's files should be seen here


class WeightsFolder:
    """The versions in `folder`/weights/, one subfolder each, locked for this process until `close`.

    Raises OSError if the folder cannot be written, ValueError if another process has locked it.
    """

    def __init__(self, folder: Path) -> None:
        self._versions, lock = folder.absolute() / "weights", folder.absolute() / "weights.lock"
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            self._lock = own_file(lock, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise explain(error, lock) from error
        try:
            # The kernel releases the lock when this process dies.
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise ValueError(
                f"another run keeps its weights in {self._versions}; the two would replace each other's. "
                "Stop it, or choose another --config.sglang.folder"
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise explain(error, lock) from error
            _LOG.warning("%s cannot be locked: make sure that no other run uses this folder", lock)

    def write(
        self, weights: Weights, config: ModelConfig, dtype: str, label: str, together: bool = False
    ) -> LabelledWeights:
        """Writes the subfolder of the version, `together` by `Weights.save`.

        Raises what `write_weights` and `write_item` raise.
        """
        folder = self._versions / str(weights.version)
        if together and weights.save is not None:
            export.write_item(folder, config, weights.save, dtype, label)
        else:
            export.write_weights(folder, config, weights.arrays(), dtype, label=label)
        return LabelledWeights(folder, label)

    def prune(self, keep: Iterable[Path]) -> None:
        """Removes all versions except those to keep."""
        export.prune_weights(self._versions, keep)

    def close(self) -> None:
        """Releases the lock. May be called twice."""
        if self._lock >= 0:
            # Closing alone is not enough: a forked child may hold a copy.
            with contextlib.suppress(OSError):
                fcntl.flock(self._lock, fcntl.LOCK_UN)
            os.close(self._lock)
            self._lock = -1


def newest_version(folder: Path, current: LabelledWeights | None = None) -> LabelledWeights | None:
    """The version written last to `folder`/weights/, with the label that its trainer gave it; None for no version.

    Its files are checked, unless it is the `current` one. If a version is removed while it is read, its successor is
    returned. Raises DamagedFile for a version that is damaged or not whole.
    """
    missing: list[tuple[Path, int]] = []
    for _ in range(_ATTEMPTS):
        try:
            versions = [path for path in (folder.absolute() / "weights").iterdir() if is_number(path.name)]
            times = {path: path.stat().st_mtime_ns for path in versions}
        except FileNotFoundError:
            continue
        if not times:
            return None
        # By time, not by number: a run that is resumed from an old step writes lower numbers.
        newest = max(times, key=lambda path: (times[path], int(path.name)))
        try:
            label = export.read_label(newest)
            if LabelledWeights(newest, label) == current:
                return current
            (export.check_item if export.is_item(newest) else export.check_weights)(newest)
            # It may have been replaced between reading the label and checking the files.
            if export.read_label(newest) == label:
                return LabelledWeights(newest, label)
        except FileNotFoundError as error:
            missing.append((newest, times[newest]))
            # A version that is being removed would have changed meanwhile.
            stable = time.time() - times[newest] / 1e9 > _SETTLE_SECONDS
            if stable and missing == [missing[0]] * _ATTEMPTS:
                raise DamagedFile(f"{newest} is not whole: {error}") from error
            time.sleep(_PAUSE)
    return None


_T = TypeVar("_T")


class LoopThread:
    """Runs coroutines for other threads until `close`. From then on all callers, even waiting ones, get EngineError."""

    def __init__(self) -> None:
        self._entry = threading.Lock()  # no call enters the event loop once `_down` is set
        self._down = ""  # why it is closed
        self._calls: set[asyncio.Task[Any]] = set()
        self._detached_tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="SGLangEngine", daemon=True)
        self._thread.start()

    def raise_if_closed(self) -> None:
        """Raises EngineError if the loop is closed."""
        if self._down:
            raise EngineError(self._down)

    def call(self, coroutine: Coroutine[Any, Any, _T], reason: str = "") -> _T:
        """Returns the coroutine's result.

        Raises EngineError if the loop is closed, or, with the message `reason`, if the coroutine is cancelled.
        """
        with self._entry:
            if self._down:
                coroutine.close()
                raise EngineError(self._down)
            future = asyncio.run_coroutine_threadsafe(self._track(coroutine), self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise EngineError(self._down or reason) from None

    def call_soon(self, function: Callable[[str], None], argument: str) -> None:
        """Calls the function on the loop without waiting for it; does nothing once the loop is closed."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, argument)

    def run_detached(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Runs a coroutine that nothing but `close` waits for. Must be called on the loop."""
        task = self._loop.create_task(coroutine)
        self._detached_tasks.add(task)
        task.add_done_callback(self._detached_tasks.discard)

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Cancels all calls, runs `last`, and ends loop and thread. Returns False if it was closed before."""
        with self._entry:
            if self._down:
                return False
            self._down = "the engine was closed"
        asyncio.run_coroutine_threadsafe(self._cancel_and_run(last), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        return True

    async def _track(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        try:
            return await coroutine
        finally:
            self._calls.discard(task)

    async def _cancel_and_run(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        # These are all calls: every earlier call has registered itself on the loop by now.
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await asyncio.gather(*self._detached_tasks, return_exceptions=True)
        await last()


class SGLangEngine:
    """Samples from the policy of shape `config` on SGLang servers: those at `urls`, or `servers` that `launch` starts.

    `settings` are those of the section `sglang`. With its `router`, an address in front of `urls`, completion requests
    go to the router; all other requests go to the servers. Without `urls` the servers are those behind the router at
    any time. Weights are written as its `dtype` ("": the parameters' own) to `folder`/weights/VERSION/, a path that
    every server must see. With `follow`, servers watch that folder and load new weights by themselves (`python -m
    experiments.serve`); otherwise they are sent a request to load them. With `sync` "orbax", all processes of the
    trainer write a version together, each its part, if the weights have a `save`. If weights change during a
    completion, `mixed` keeps it with its spans; otherwise it is sampled again.

    A conversation has at most `max_length` tokens. One `generate` takes at most `deadline` seconds and `attempts`
    requests, to any servers. With `routes`, completions report which experts tokens went through. `busy_seconds` is the
    wall time with at least one completion running, `served` counts completions, their `prompt_tokens` and, of these,
    the `cached_tokens` that a prefix cache had, `fleet` are the servers.

    At temperature 0 the most likely token is chosen, and log-probabilities are those at temperature 1. `seed` decides
    the random numbers only if servers run with --enable-deterministic-inference.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        folder: Path,
        max_length: int,
        urls: Sequence[str] = (),
        launch: LaunchSettings | None = None,
        settings: SGLangSettings = _SETTINGS,
        deadline: float = 600.0,
        attempts: int = 6,
        routes: bool = False,
    ) -> None:
        if bool(urls or settings.router) == (launch is not None):
            raise ValueError("give urls of running servers, or a router, or launch, which says how to start some")
        _check_following(settings)
        check_length(max_length, config.max_position_embeddings)
        shape = client.route_shape(config, routes, settings.mixed)
        self._config, self._length, self._settings, self.tells_routes = config, max_length, settings, shape is not None
        self._run = uuid.uuid4().hex[:8]  # part of every label, so that labels of two runs on one server differ
        self._versions: dict[str, int] = {}  # label → version
        self._folders: list[Path] = []
        self._loaded: tuple[int, str] | None = None  # version and fingerprint of the last loaded weights
        self._loading = threading.Lock()
        self._store = WeightsFolder(folder)
        self._connections = client.Connections()
        # Its state belongs to the event loop: other threads may read it, not change it.
        self.fleet = Fleet(
            self._connections,
            [url.rstrip("/") for url in urls],
            [ServerProcess(launch, index) for index in range(settings.servers)] if launch else [],
            settings,
            memory_file=client.ReleasedMemoryFile(folder / client.RELEASED_MEMORY),
            routes=routes,
        )
        self._loop = LoopThread()
        self._deadline, self._attempts, self._shape = deadline, attempts, shape
        self._key_prefix = self._run if settings.router else ""
        self._busy, self.served = BusyTime(), collections.Counter[str]()
        # On the event loop: session → its call, and the tokens whose routes an earlier completion reported.
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._routes_known: dict[str, int] = {}

    @property
    def busy_seconds(self) -> float:
        return self._busy.seconds

    def load(self, weights: Weights) -> None:
        """Writes `weights` to disk, has the servers load them, and returns once every server that is up serves them.

        New completions wait meanwhile; running ones continue with the new weights. A server that fails to load them
        gets no request until it has loaded them. Weights with the version and fingerprint of the last load are not
        loaded again. Raises ValueError for arrays that do not fit or are not finite and for a damaged folder, OSError
        if writing fails or a folder is missing, EngineError if no server loads them.
        """
        with self._loading:
            self._loop.raise_if_closed()
            identity = (weights.version, weights.fingerprint()) if weights.fingerprint is not None else None
            target = self.fleet.target
            if target is None or identity is None or identity != self._loaded:
                self._loaded = None
                target = self._write(weights)
            elif self.fleet.serving:
                return
            self._loop.call(self.fleet.sync(target))
            self._loaded = identity
            # Kept: the previous version, for a server that was left out, and folders that servers are still reading.
            self._folders = [*self._folders, target.folder][-2:]
            self._store.prune([*self._folders, *self.fleet.reading()])

    def _write(self, weights: Weights) -> LabelledWeights:
        """Writes the weights to disk under a unique label."""
        label = f"{self._run}-{len(self._versions)}-{weights.version}"
        # Registered before the folder exists: a following server may sample from it immediately.
        self._versions[label] = weights.version
        together = self._settings.sync == "orbax" and weights.save is not None
        if together or weights.path is None or self._settings.follow:
            return self._store.write(weights, self._config, self._settings.dtype, label, together)
        folder = Path(weights.path()).absolute()
        export.check_weights(folder)
        return LabelledWeights(folder, label)

    def generate(self, prompt: Sequence[int], sampling: Sampling, *, session: str, seed: tuple[int, ...]) -> Completion:
        """Continues `prompt`, the whole conversation so far.

        Raises OutOfContext if the prompt leaves no room for a token, ValueError for a wrong argument, EngineError if no
        server completes it in time or the session is released.
        """
        # A token outside the vocabulary would crash a server.
        tokens = checked_prompt(prompt, self._config.vocab_size, self._length)
        self._loop.raise_if_closed()
        if self.fleet.target is None:
            raise EngineError("the engine has no weights; call load first")
        room = min(sampling.max_tokens, self._length - len(tokens))
        digest = hashlib.sha256(repr(tuple(int(value) for value in seed)).encode()).digest()
        number = int.from_bytes(digest[:8], "little") >> 1
        call = self._complete(tokens, sampling, room, session, number)
        return self._loop.call(call, f"session {session!r} was released while generating")

    def release(self, session: str) -> None:
        """Forgets the session, if known. A running call of the session raises EngineError."""
        self._loop.call_soon(self._forget, session)

    def rest(self) -> None:
        """With `release_memory`, has the servers release the memory of weights and cache until the next `load`."""
        with self._loading:
            self._loop.raise_if_closed()
            if self._settings.release_memory and self.fleet.target is not None:
                self._loop.call(self.fleet.rest())

    def close(self) -> None:
        """Ends the servers that this engine started; waiting callers get EngineError. May be called twice."""
        if self._loop.close(self._close):
            self._store.close()

    async def _close(self) -> None:
        await self.fleet.close()
        await self._connections.aclose()

    # --- on the event loop ---

    async def _complete(self, tokens: list[int], sampling: Sampling, room: int, session: str, seed: int) -> Completion:
        """At most `room` tokens that continue `tokens`. Raises EngineError, or ValueError for a session in use."""
        if session in self._tasks:
            raise ValueError(f"session {session!r} is still generating; one call at a time")
        task = asyncio.current_task()
        assert task is not None
        self._tasks[session] = task
        retrying = tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(self._attempts),
            wait=tenacity.wait_random_exponential(multiplier=0.2, max=10.0),
            retry=tenacity.retry_if_exception_type(RequestFailed),
            reraise=True,
        )
        try:
            with self._busy:
                async with asyncio.timeout(self._deadline):
                    return await retrying(self._attempt, tokens, sampling, room, session, seed)
        except TimeoutError as error:
            faults = self.fleet.faults()
            raise EngineError(
                f"no completion within {self._deadline:g} s" + (f"; servers left out: {faults}" if faults else "")
            ) from error
        except RequestFailed as error:
            raise EngineError(f"no completion in {self._attempts} attempts, the last: {error}") from error
        except RequestRefused as error:
            raise EngineError(str(error)) from error
        finally:
            del self._tasks[session]

    def _forget(self, session: str) -> None:
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
        key = hashlib.sha256(f"{self._key_prefix}-{session}".encode()).hexdigest()[:32] if self._key_prefix else ""
        routes = None if self._shape is None else (self._shape, self._routes_known.get(session, 0))
        request = asyncio.create_task(
            server.client.generate(tokens, sampling, room, self._config.vocab_size, rid, seed, key, routes)
        )
        server.requests.add(request)
        try:
            reply = await request
            server.replies += 1
            hits = min(max(0, reply.cached_tokens), len(tokens))
            self.served.update(completions=1, prompt_tokens=len(tokens), cached_tokens=hits)
            completion = self._completion(reply, server, label, sampling)
            if routes is not None:
                self._routes_known[session] = len(tokens) + len(reply.tokens) - 1
            return completion
        except ServerFailed as error:
            self.fleet.suspect(server, str(error))
            raise
        except asyncio.CancelledError:
            request.cancel()
            self._loop.run_detached(self.fleet.abort(server, rid))
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise RequestFailed(f"a server was left out: {server.fault or self.fleet.faults()}") from None
        finally:
            server.requests.discard(request)

    def _completion(self, reply: client.ServerReply, server: Server, label: str, sampling: Sampling) -> Completion:
        """The completion in a reply. Raises RequestFailed if it was not sampled from the weights asked for, `label`."""
        assert self.fleet.target is not None
        labels = [name for name, _ in reply.spans]
        if unknown := [name for name in labels if name not in self._versions]:
            fault = f"sampled from weights {unknown[0]!r}, which are not of this run"
            self.fleet.suspect(server, f"it {fault}")
            raise RequestFailed(f"{server.name} {fault}")
        # Even a mixed completion must end with current weights: a router may choose a server that is left out.
        stale = labels[-1] not in (label, self.fleet.target.label)
        if stale or (len(labels) > 1 and not self._settings.mixed):
            raise RequestFailed(f"{server.name} sampled from weights {' and '.join(labels)}, asked for {label}")
        by_version = itertools.groupby(reply.spans, key=lambda span: self._versions[span[0]])
        spans = [(version, sum(count for _, count in spans)) for version, spans in by_version]
        at_stop = reply.at_stop or reply.tokens[-1] in sampling.stop_tokens
        reason: Literal["stop", "length"] = "stop" if at_stop else "length"
        several = tuple(spans) if len(spans) > 1 else ()
        return Completion(reply.tokens, reply.logprobs, spans[-1][0], reason, several, reply.routes)


def _check_following(settings: SGLangSettings) -> None:
    if settings.follow and settings.release_memory:
        raise ValueError(
            "servers that follow take weights at any time; they cannot give their memory back. Unset sglang.follow "
            "or sglang.release_memory"
        )
    if settings.sync == "orbax" and not settings.follow:
        raise ValueError(
            "what all processes save together is restored on the rollout host by `python -m experiments.serve`; "
            "set sglang.follow=True here and there, or sglang.sync=folder"
        )
