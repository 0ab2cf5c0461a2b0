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

from cojax.durable import open_own_file
from cojax.environment import EngineError
from cojax.policy.config import DamagedFile, ModelConfig
from cojax.rollout import export
from cojax.rollout.engine import BusyTime, Completion, Sampling, Weights, check_length, check_prompt
from cojax.rollout.sglang import client
from cojax.rollout.sglang.client import RequestFailed, RequestRefused, ServerFailed
from cojax.rollout.sglang.fleet import Fleet
from cojax.rollout.sglang.server import LabelledWeights, LaunchSettings, Server, ServerProcess
from cojax.settings.tree import SGLangSettings
from cojax.storage.files import explain, is_number

_LOG = logging.getLogger(__name__)
_DEFAULT_SETTINGS = SGLangSettings()
# Errors of file systems without locks.
_NO_LOCK_ERRORS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
_READ_ATTEMPTS = 5  # to read a folder whose versions vanish meanwhile
_RETRY_S = 0.05  # seconds before the next attempt
_SETTLE_S = 5.0  # seconds after which another host's files should be seen here


class WeightsFolder:
    """The versions in `folder`/weights/, one subfolder each, locked for this process until `close`.

    Raises OSError if the folder cannot be written, ValueError if another process has locked it.
    """

    def __init__(self, folder: Path) -> None:
        self._versions_folder, lock_path = folder.absolute() / "weights", folder.absolute() / "weights.lock"
        try:
            lock_path.parent.mkdir(parents=True, exist_ok=True)
            self._lock_descriptor = open_own_file(lock_path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise explain(error, lock_path) from error
        try:
            # The kernel releases the lock when this process dies.
            fcntl.flock(self._lock_descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock_descriptor)
            raise ValueError(
                f"another run keeps its weights in {self._versions_folder}; the two would replace each other's. "
                "Stop it, or choose another --config.sglang.folder"
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCK_ERRORS:
                raise explain(error, lock_path) from error
            _LOG.warning("%s cannot be locked: make sure that no other run uses this folder", lock_path)

    def write(
        self, weights: Weights, config: ModelConfig, dtype: str, label: str, is_joint: bool = False
    ) -> LabelledWeights:
        """Writes the subfolder of the version; `is_joint` has all processes write it together, by `Weights.save`.

        Raises what `write_weights` and `write_item` raise.
        """
        folder = self._versions_folder / str(weights.version)
        if is_joint and weights.save is not None:
            export.write_item(folder, config, weights.save, dtype, label)
        else:
            export.write_weights(folder, config, weights.arrays(), dtype, label=label)
        return LabelledWeights(folder, label)

    def prune(self, kept_folders: Iterable[Path]) -> None:
        """Removes all versions except those to keep."""
        export.prune_weights(self._versions_folder, kept_folders)

    def close(self) -> None:
        """Releases the lock. May be called twice."""
        if self._lock_descriptor >= 0:
            # Closing alone is not enough: a forked child may hold a copy.
            with contextlib.suppress(OSError):
                fcntl.flock(self._lock_descriptor, fcntl.LOCK_UN)
            os.close(self._lock_descriptor)
            self._lock_descriptor = -1


def find_newest_version(folder: Path, current_weights: LabelledWeights | None = None) -> LabelledWeights | None:
    """The version written last to `folder`/weights/, with the label that its trainer gave it; None for no version.

    Its files are checked, unless it is the `current_weights` one. If a version is removed while it is read, its
    successor is returned. Raises DamagedFile for a version that is damaged or not whole.
    """
    missing_versions: list[tuple[Path, int]] = []
    for _ in range(_READ_ATTEMPTS):
        try:
            version_folders = [path for path in (folder.absolute() / "weights").iterdir() if is_number(path.name)]
            write_times = {path: path.stat().st_mtime_ns for path in version_folders}
        except FileNotFoundError:
            continue
        if not write_times:
            return None
        # By time, not by number: a run that is resumed from an old step writes lower numbers.
        newest_folder = max(write_times, key=lambda path: (write_times[path], int(path.name)))
        try:
            label = export.read_label(newest_folder)
            if LabelledWeights(newest_folder, label) == current_weights:
                return current_weights
            (export.check_item if export.is_item(newest_folder) else export.check_weights)(newest_folder)
            # It may have been replaced between reading the label and checking the files.
            if export.read_label(newest_folder) == label:
                return LabelledWeights(newest_folder, label)
        except FileNotFoundError as error:
            missing_versions.append((newest_folder, write_times[newest_folder]))
            # A version that is being removed would have changed meanwhile.
            is_stable = time.time() - write_times[newest_folder] / 1e9 > _SETTLE_S
            if is_stable and missing_versions == [missing_versions[0]] * _READ_ATTEMPTS:
                raise DamagedFile(f"{newest_folder} is not whole: {error}") from error
            time.sleep(_RETRY_S)
    return None


_T = TypeVar("_T")


class LoopThread:
    """Runs coroutines for other threads until `close`. From then on all callers, even waiting ones, get EngineError."""

    def __init__(self) -> None:
        self._entry_lock = threading.Lock()  # no call enters the event loop once `_close_reason` is set
        self._close_reason = ""  # why it is closed
        self._call_tasks: set[asyncio.Task[Any]] = set()
        self._detached_tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="SGLangEngine", daemon=True)
        self._thread.start()

    def raise_if_closed(self) -> None:
        """Raises EngineError if the loop is closed."""
        if self._close_reason:
            raise EngineError(self._close_reason)

    def call(self, coroutine: Coroutine[Any, Any, _T], stop_reason: str = "") -> _T:
        """Returns the coroutine's result.

        Raises EngineError if the loop is closed, or, with the message `stop_reason`, if the coroutine is cancelled.
        """
        with self._entry_lock:
            if self._close_reason:
                coroutine.close()
                raise EngineError(self._close_reason)
            future = asyncio.run_coroutine_threadsafe(self._track_call(coroutine), self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise EngineError(self._close_reason or stop_reason) from None

    def call_soon(self, function: Callable[[str], None], argument: str) -> None:
        """Calls the function on the loop without waiting for it; does nothing once the loop is closed."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, argument)

    def run_detached(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Runs a coroutine that nothing but `close` waits for. Must be called on the loop."""
        task = self._loop.create_task(coroutine)
        self._detached_tasks.add(task)
        task.add_done_callback(self._detached_tasks.discard)

    def close(self, close_resources: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Cancels all calls, runs `close_resources`, ends loop and thread. Returns False if it was closed before."""
        with self._entry_lock:
            if self._close_reason:
                return False
            self._close_reason = "the engine was closed"
        asyncio.run_coroutine_threadsafe(self._cancel_and_run(close_resources), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        return True

    async def _track_call(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        task = asyncio.current_task()
        assert task is not None
        self._call_tasks.add(task)
        try:
            return await coroutine
        finally:
            self._call_tasks.discard(task)

    async def _cancel_and_run(self, close_resources: Callable[[], Coroutine[Any, Any, None]]) -> None:
        # These are all calls: every earlier call has registered itself on the loop by now.
        call_tasks = list(self._call_tasks)
        for call_task in call_tasks:
            call_task.cancel()
        await asyncio.gather(*call_tasks, return_exceptions=True)
        await asyncio.gather(*self._detached_tasks, return_exceptions=True)
        await close_resources()


class SGLangEngine:
    """Samples from the policy of shape `config` on SGLang servers: those at `urls`, or `servers` that `launch` starts.

    `settings` are those of the section `sglang`. With its `router`, an address in front of `urls`, completion requests
    go to the router; all other requests go to the servers. Without `urls` the servers are those behind the router at
    any time. Weights are written as its `dtype` ("": the parameters' own) to `folder`/weights/VERSION/, a path that
    every server must see. With `follow`, servers watch that folder and load new weights by themselves (`python -m
    experiments.serve`); otherwise they are sent a request to load them. With `sync` "orbax", all processes of the
    trainer write a version together, each its part, if the weights have a `save`. If weights change during a
    completion, `mixed` keeps it with its spans; otherwise it is sampled again.

    A conversation has at most `max_length` tokens. One `generate` takes at most `timeout_s` seconds and `max_attempts`
    requests, to any servers. With `wants_routes`, completions report which experts tokens went through. `busy_seconds`
    is the wall time with at least one completion running, `served` counts completions, their `prompt_tokens` and, of
    these, the `cached_tokens` that a prefix cache had, `fleet` are the servers.

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
        settings: SGLangSettings = _DEFAULT_SETTINGS,
        timeout_s: float = 600.0,
        max_attempts: int = 6,
        wants_routes: bool = False,
    ) -> None:
        if bool(urls or settings.router) == (launch is not None):
            raise ValueError("give urls of running servers, or a router, or launch, which says how to start some")
        _check_follow_settings(settings)
        check_length(max_length, config.max_position_embeddings)
        shape = client.find_route_shape(config, wants_routes, settings.mixed)
        self._config, self._length, self._settings, self.tells_routes = config, max_length, settings, shape is not None
        self._run_id = uuid.uuid4().hex[:8]  # part of every label, so that labels of two runs on one server differ
        self._version_by_label: dict[str, int] = {}  # label → version
        self._kept_folders: list[Path] = []
        self._loaded_identity: tuple[int, str] | None = None  # version and fingerprint of the last loaded weights
        self._load_lock = threading.Lock()
        self._weights_folder = WeightsFolder(folder)
        self._connections = client.Connections()
        # Its state belongs to the event loop: other threads may read it, not change it.
        self.fleet = Fleet(
            self._connections,
            [url.rstrip("/") for url in urls],
            [ServerProcess(launch, server_index) for server_index in range(settings.servers)] if launch else [],
            settings,
            memory_file=client.ReleasedMemoryFile(folder / client.MEMORY_FILE),
            wants_routes=wants_routes,
        )
        self._loop = LoopThread()
        self._timeout_s, self._max_attempts, self._route_shape = timeout_s, max_attempts, shape
        self._key_prefix = self._run_id if settings.router else ""
        self._busy, self.served = BusyTime(), collections.Counter[str]()
        # On the event loop: session → its call, and the tokens whose routes an earlier completion reported.
        self._task_by_session: dict[str, asyncio.Task[Any]] = {}
        self._reported_counts: dict[str, int] = {}

    @property
    def busy_seconds(self) -> float:
        return self._busy.total_seconds

    def load(self, weights: Weights) -> None:
        """Writes `weights` to disk, has the servers load them, and returns once every server that is up serves them.

        New completions wait meanwhile; running ones continue with the new weights. A server that fails to load them
        gets no request until it has loaded them. Weights with the version and fingerprint of the last load are not
        loaded again. Raises ValueError for arrays that do not fit or are not finite and for a damaged folder, OSError
        if writing fails or a folder is missing, EngineError if no server loads them.
        """
        with self._load_lock:
            self._loop.raise_if_closed()
            identity = (weights.version, weights.fingerprint()) if weights.fingerprint is not None else None
            target = self.fleet.target
            if target is None or identity is None or identity != self._loaded_identity:
                self._loaded_identity = None
                target = self._write_weights(weights)
            elif self.fleet.is_serving:
                return
            self._loop.call(self.fleet.sync(target))
            self._loaded_identity = identity
            # Kept: the previous version, for a server that was left out, and folders that servers are still reading.
            self._kept_folders = [*self._kept_folders, target.folder][-2:]
            self._weights_folder.prune([*self._kept_folders, *self.fleet.list_reading()])

    def _write_weights(self, weights: Weights) -> LabelledWeights:
        """Writes the weights to disk under a unique label."""
        label = f"{self._run_id}-{len(self._version_by_label)}-{weights.version}"
        # Registered before the folder exists: a following server may sample from it immediately.
        self._version_by_label[label] = weights.version
        is_joint = self._settings.sync == "orbax" and weights.save is not None
        if is_joint or weights.path is None or self._settings.follow:
            return self._weights_folder.write(weights, self._config, self._settings.dtype, label, is_joint)
        folder = Path(weights.path()).absolute()
        export.check_weights(folder)
        return LabelledWeights(folder, label)

    def generate(self, prompt: Sequence[int], sampling: Sampling, *, session: str, seed: tuple[int, ...]) -> Completion:
        """Continues `prompt`, the whole conversation so far.

        Raises OutOfContext if the prompt leaves no room for a token, ValueError for a wrong argument, EngineError if no
        server completes it in time or the session is released.
        """
        # A token outside the vocabulary would crash a server.
        tokens = check_prompt(prompt, self._config.vocab_size, self._length)
        self._loop.raise_if_closed()
        if self.fleet.target is None:
            raise EngineError("the engine has no weights; call load first")
        max_tokens = min(sampling.max_tokens, self._length - len(tokens))
        digest = hashlib.sha256(repr(tuple(int(number) for number in seed)).encode()).digest()
        seed_number = int.from_bytes(digest[:8], "little") >> 1
        completion_call = self._complete(tokens, sampling, max_tokens, session, seed_number)
        return self._loop.call(completion_call, f"session {session!r} was released while generating")

    def release(self, session: str) -> None:
        """Forgets the session, if known. A running call of the session raises EngineError."""
        self._loop.call_soon(self._forget_session, session)

    def rest(self) -> None:
        """With `release_memory`, has the servers release the memory of weights and cache until the next `load`."""
        with self._load_lock:
            self._loop.raise_if_closed()
            if self._settings.release_memory and self.fleet.target is not None:
                self._loop.call(self.fleet.rest())

    def close(self) -> None:
        """Ends the servers that this engine started; waiting callers get EngineError. May be called twice."""
        if self._loop.close(self._close):
            self._weights_folder.close()

    async def _close(self) -> None:
        await self.fleet.close()
        await self._connections.aclose()

    # --- on the event loop ---

    async def _complete(self, tokens: list[int], sampling: Sampling, room: int, session: str, seed: int) -> Completion:
        """Up to `room` tokens that continue `tokens`. Raises EngineError, ValueError for a session in use."""
        if session in self._task_by_session:
            raise ValueError(f"session {session!r} is still generating; one call at a time")
        task = asyncio.current_task()
        assert task is not None
        self._task_by_session[session] = task
        retrying = tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(self._max_attempts),
            wait=tenacity.wait_random_exponential(multiplier=0.2, max=10.0),
            retry=tenacity.retry_if_exception_type(RequestFailed),
            reraise=True,
        )
        try:
            with self._busy:
                async with asyncio.timeout(self._timeout_s):
                    return await retrying(self._try, tokens, sampling, room, session, seed)
        except TimeoutError as error:
            faults = self.fleet.list_faults()
            raise EngineError(
                f"no completion within {self._timeout_s:g} s" + (f"; servers left out: {faults}" if faults else "")
            ) from error
        except RequestFailed as error:
            raise EngineError(f"no completion in {self._max_attempts} attempts, the last: {error}") from error
        except RequestRefused as error:
            raise EngineError(str(error)) from error
        finally:
            del self._task_by_session[session]

    def _forget_session(self, session: str) -> None:
        """Ends the session, if known, and cancels its call."""
        if session in self._task_by_session:
            self._task_by_session[session].cancel()
        self._reported_counts.pop(session, None)
        self.fleet.forget(session)

    async def _try(self, tokens: list[int], sampling: Sampling, room: int, session: str, seed: int) -> Completion:
        """One request to one server. Raises RequestFailed if another may succeed."""
        server = await self.fleet.route(session)
        assert self.fleet.target is not None
        label, request_id = self.fleet.target.label, uuid.uuid4().hex
        key_text = hashlib.sha256(f"{self._key_prefix}-{session}".encode()).hexdigest()[:32] if self._key_prefix else ""
        routes = None if self._route_shape is None else (self._route_shape, self._reported_counts.get(session, 0))
        request = asyncio.create_task(
            server.client.generate(tokens, sampling, room, self._config.vocab_size, request_id, seed, key_text, routes)
        )
        server.requests.add(request)
        try:
            reply = await request
            server.reply_count += 1
            cached_count = min(max(0, reply.cached_tokens), len(tokens))
            self.served.update(completions=1, prompt_tokens=len(tokens), cached_tokens=cached_count)
            completion = self._to_completion(reply, server, label, sampling)
            if routes is not None:
                self._reported_counts[session] = len(tokens) + len(reply.tokens) - 1
            return completion
        except ServerFailed as error:
            self.fleet.mark_down(server, str(error))
            raise
        except asyncio.CancelledError:
            request.cancel()
            self._loop.run_detached(self.fleet.abort(server, request_id))
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise RequestFailed(f"a server was left out: {server.fault or self.fleet.list_faults()}") from None
        finally:
            server.requests.discard(request)

    def _to_completion(self, reply: client.ServerReply, server: Server, label: str, sampling: Sampling) -> Completion:
        """The completion in a reply. Raises RequestFailed if it was not sampled from the weights asked for, `label`."""
        assert self.fleet.target is not None
        labels = [span_label for span_label, _ in reply.spans]
        if unknown_labels := [span_label for span_label in labels if span_label not in self._version_by_label]:
            fault = f"sampled from weights {unknown_labels[0]!r}, which are not of this run"
            self.fleet.mark_down(server, f"it {fault}")
            raise RequestFailed(f"{server.name} {fault}")
        # Even a mixed completion must end with current weights: a router may choose a server that is left out.
        is_stale = labels[-1] not in (label, self.fleet.target.label)
        if is_stale or (len(labels) > 1 and not self._settings.mixed):
            raise RequestFailed(f"{server.name} sampled from weights {' and '.join(labels)}, asked for {label}")
        spans_by_version = itertools.groupby(reply.spans, key=lambda span: self._version_by_label[span[0]])
        spans = [(version, sum(count for _, count in spans)) for version, spans in spans_by_version]
        at_stop = reply.at_stop or reply.tokens[-1] in sampling.stop_tokens
        finish_reason: Literal["stop", "length"] = "stop" if at_stop else "length"
        mixed_spans = tuple(spans) if len(spans) > 1 else ()
        return Completion(reply.tokens, reply.logprobs, spans[-1][0], finish_reason, mixed_spans, reply.routes)


def _check_follow_settings(settings: SGLangSettings) -> None:
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
