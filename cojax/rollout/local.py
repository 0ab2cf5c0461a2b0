"""The in-process engine: a KV cache, continuous batching over fixed slots, results that depend on the request alone.

One thread owns the device arrays. A session keeps its slot and its cache from its first `generate` to its `release`, so
each call feeds only what is new: first, in chunks, all new tokens but the last (no logits), then one token at a time
for every slot at once, starting with the prompt's last. New requests join between any two forwards.

Every forward has one of a few shapes, slots × 1 or rows × chunk, padded and never shrunk to the live rows, and chunks
are cut by the request alone; a row's arithmetic never involves another row. So tokens and log-probabilities are the
same bits whatever else runs, on one machine type, number of threads and set of versions.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import threading
import time
from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from cojax.environment import EngineError, OutOfContext
from cojax.policy import parameters
from cojax.policy.config import ModelConfig
from cojax.policy.transformer import Params, make_cache, unstack
from cojax.rollout.engine import Completion, Sampling, Weights
from cojax.rollout.forwards import cut, decode, prefill, uniforms

_POLL_SECONDS = 1.0  # how often a waiter looks whether the engine thread still lives
_SPAN = 128  # a prefill looks at a multiple of so many positions
_PATIENCE = 2  # decode steps that may pass before a prefill runs with rows to spare


@dataclasses.dataclass
class _Session:
    """A growing conversation: its tokens, how many of them its slot's cache holds, and the request being served."""

    tokens: list[int] = dataclasses.field(default_factory=list)
    cached: int = 0
    slot: int = -1
    request: _Request | None = None


@dataclasses.dataclass(eq=False)
class _Request:
    """One `generate` call. Changed by the engine thread alone, except `error`, once, under the lock."""

    session: _Session
    prompt: list[int]
    sampling: Sampling
    uniforms: np.ndarray
    stops: frozenset[int]
    limit: int
    chunks: collections.deque[int] = dataclasses.field(default_factory=collections.deque)
    logprobs: list[float] = dataclasses.field(default_factory=list)
    sampled: list[int] = dataclasses.field(default_factory=list)
    completion: Completion | None = None
    error: str = ""
    done: threading.Event = dataclasses.field(default_factory=threading.Event)


class LocalEngine:
    """Serves `config` from this process; `load` must come before the first `generate`.

    `slots` conversations are held at once, further ones wait for a release. A conversation holds up to `max_length`
    tokens, prompt and completion together. `prefill_rows` × each of `prefill_chunks` are the prefill shapes.
    `busy_seconds` is the wall time spent in forwards so far.

    At temperature 0 the most likely token is taken, and log-probabilities are those at temperature 1.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        slots: int = 128,
        max_length: int = 320,
        prefill_rows: int = 16,
        prefill_chunks: Sequence[int] = (16,),
    ) -> None:
        if max_length > config.max_position_embeddings:
            raise ValueError(
                f"max_length {max_length} exceeds the model's max_position_embeddings {config.max_position_embeddings}"
            )
        if min(slots, prefill_rows, max_length - 1, *prefill_chunks) < 1:
            raise ValueError("slots, prefill_rows and prefill_chunks must be at least 1, max_length at least 2")
        self.busy_seconds = 0.0
        self._config, self._slots, self._length = config, slots, max_length
        self._rows, self._chunk_sizes = prefill_rows, tuple(sorted(prefill_chunks))
        self._version: int | None = None
        self._params: Params = {}
        self._cache = make_cache(config, slots, max_length)
        self._sessions: dict[str, _Session] = {}
        self._free = list(reversed(range(slots)))
        self._arrived: collections.deque[_Request] = collections.deque()
        self._prefilling: list[_Request] = []
        self._decoding: list[_Request] = []
        self._steps_since_prefill = 0
        self._new_weights: tuple[int, Params, threading.Event] | None = None
        self._down = ""
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="LocalEngine", daemon=True)
        self._thread.start()

    # --- called from any thread ---

    def load(self, weights: Weights) -> None:
        """Takes `weights` over and returns once they serve.

        A completion comes from one version: those under way finish first, new ones wait. Caches of open sessions are
        made anew on their next turn. Raises ValueError for arrays that do not fit or are not finite.
        """
        params = parameters.from_hf(self._config, weights.arrays())
        for row in parameters.parameters(self._config):
            if not bool(jnp.isfinite(parameters.leaf_of(params, row)).all()):
                raise ValueError(f"weights version {weights.version}: {row.name} is not finite; training has diverged")
        params = jax.block_until_ready(unstack(self._config, params))
        taken = threading.Event()
        with self._wake:
            while self._new_weights is not None and not self._down:
                self._wake.wait(_POLL_SECONDS)
            self._raise_if_down()
            self._new_weights = (weights.version, params, taken)
            self._wake.notify_all()
        self._await(taken)
        if self._version != weights.version:
            self._raise_if_down()

    def generate(self, prompt: Sequence[int], sampling: Sampling, *, session: str, seed: tuple[int, ...]) -> Completion:
        """Continues `prompt`, the whole conversation so far, which must extend what the session has seen and said.

        Raises OutOfContext when it leaves no room for a token, ValueError for a prompt that does not extend the
        session or another mistake of the caller, EngineError when the engine fails, is closed, or releases the session.
        """
        tokens = [int(token) for token in prompt]
        self._check(tokens, sampling)
        limit = min(sampling.max_tokens, self._length - len(tokens))
        chances = uniforms(seed, limit)
        with self._wake:
            self._raise_if_down()
            if self._version is None and self._new_weights is None:
                raise EngineError("the engine has no weights; call load first")
            state = self._sessions.setdefault(session, _Session())
            if state.request is not None:
                raise ValueError(f"session {session!r} is still generating; one call at a time")
            if tokens[: len(state.tokens)] != state.tokens:
                raise ValueError(
                    f"the prompt of session {session!r} does not extend its first {len(state.tokens)} tokens; "
                    "append to what was sampled, or release the session"
                )
            request = _Request(state, tokens, sampling, chances, frozenset(sampling.stop_tokens), limit)
            state.request = request
            self._arrived.append(request)
            self._wake.notify_all()
        self._await(request.done)
        if request.completion is None:
            raise EngineError(request.error)
        return request.completion

    def release(self, session: str) -> None:
        """Forgets the session and frees its slot; a call of it still running raises EngineError. Unknown is fine."""
        with self._wake:
            state = self._sessions.pop(session, None)
            if state is None:
                return
            if state.request is not None:
                self._abort(state.request, f"session {session!r} was released while generating")
            elif state.slot >= 0:
                self._free.append(state.slot)
            self._wake.notify_all()

    def close(self) -> None:
        """Stops the thread; whoever waits gets EngineError. May be called twice."""
        self._shut("the engine was closed")
        self._thread.join()

    def _check(self, tokens: list[int], sampling: Sampling) -> None:
        if not tokens:
            raise ValueError("the prompt is empty; give at least one token")
        if min(tokens) < 0 or max(tokens) >= self._config.vocab_size:
            raise ValueError(
                f"prompt tokens span {min(tokens)}–{max(tokens)}; the vocabulary has 0–{self._config.vocab_size - 1}"
            )
        if sampling.max_tokens < 1 or sampling.temperature < 0:
            raise ValueError(f"{sampling}: max_tokens must be at least 1 and temperature at least 0")
        if len(tokens) + 1 > self._length:
            raise OutOfContext(f"prompt of {len(tokens)} tokens leaves no room; the engine holds {self._length}")

    def _raise_if_down(self) -> None:
        if self._down:
            raise EngineError(self._down)

    def _await(self, event: threading.Event) -> None:
        while not event.wait(_POLL_SECONDS):
            if not self._thread.is_alive():
                self._shut("the engine thread died")

    def _abort(self, request: _Request, reason: str) -> None:
        """Wakes the waiter; the engine thread drops the request before its next forward. Needs the lock."""
        request.error = reason
        request.done.set()

    def _shut(self, reason: str) -> None:
        with self._wake:
            self._down = self._down or reason
            for request in (*self._arrived, *self._prefilling, *self._decoding):
                if not request.done.is_set():
                    self._abort(request, self._down)
            if self._new_weights is not None:
                self._new_weights[2].set()
            self._wake.notify_all()

    # --- the engine thread ---

    def _run(self) -> None:
        try:
            while self._admit():
                began = time.perf_counter()
                if self._prefill_is_due():
                    self._prefill()
                else:
                    self._decode()
                self.busy_seconds += time.perf_counter() - began
        except Exception as error:
            self._shut(f"the engine failed: {type(error).__name__}: {error}")

    def _admit(self) -> bool:
        """Waits until there is something to run; takes in what came meanwhile. False once the engine is down."""
        with self._wake:
            while not self._down:
                self._drop_aborted()
                if self._new_weights is not None and not (self._prefilling or self._decoding):
                    self._take_weights()
                if self._new_weights is None:
                    self._seat_arrivals()
                if self._prefilling or self._decoding:
                    return True
                self._wake.wait()
            return False

    def _drop_aborted(self) -> None:
        for queue in (self._arrived, self._prefilling, self._decoding):
            for request in [request for request in queue if request.error]:
                queue.remove(request)
                if request.session.slot >= 0:
                    self._free.append(request.session.slot)

    def _take_weights(self) -> None:
        assert self._new_weights is not None
        self._version, self._params, taken = self._new_weights
        self._new_weights = None
        for session in self._sessions.values():
            session.cached = 0
        taken.set()
        self._wake.notify_all()

    def _seat_arrivals(self) -> None:
        waiting = collections.deque[_Request]()
        while self._arrived:
            request = self._arrived.popleft()
            session = request.session
            if session.slot < 0 and not self._free:
                waiting.append(request)
                continue
            if session.slot < 0:
                session.slot = self._free.pop()
            request.chunks.extend(cut(len(request.prompt) - 1 - session.cached, self._chunk_sizes))
            (self._prefilling if request.chunks else self._decoding).append(request)
        self._arrived = waiting

    def _prefill_is_due(self) -> bool:
        """Full prefills at once; partly filled ones not before every decode step. Never changes a result."""
        if not self._prefilling or not self._decoding:
            return bool(self._prefilling)
        return len(self._prefilling) >= self._rows or self._steps_since_prefill >= _PATIENCE

    def _prefill_shape(self, request: _Request) -> tuple[int, int]:
        """Chunk, and how far it looks: both from the request alone, never from its company."""
        end = min(request.session.cached + request.chunks[0], len(request.prompt) - 1)
        return request.chunks[0], min(-(-end // _SPAN) * _SPAN, self._length)

    def _prefill(self) -> None:
        size, span = shape = self._prefill_shape(self._prefilling[0])
        batch = [request for request in self._prefilling if self._prefill_shape(request) == shape][: self._rows]
        tokens = np.full((self._rows, size), -1, np.int32)
        start = np.zeros(self._rows, np.int32)
        slots = np.full(self._rows, self._slots, np.int32)
        for row, request in enumerate(batch):
            session = request.session
            piece = request.prompt[session.cached : min(session.cached + size, len(request.prompt) - 1)]
            tokens[row, : len(piece)] = piece
            start[row], slots[row] = session.cached, session.slot
        self._cache = prefill(self._config, self._params, self._cache, tokens, start, slots, span)
        for request in batch:
            session = request.session
            session.cached = min(session.cached + request.chunks.popleft(), len(request.prompt) - 1)
            if not request.chunks:
                self._decoding.append(request)
        self._prefilling = [request for request in self._prefilling if request.chunks]
        self._steps_since_prefill = 0

    def _decode(self) -> None:
        fed = np.zeros((2, self._slots), np.int32)
        fed[1] = self._length
        chance = np.zeros((2, self._slots), np.float32)
        for request in self._decoding:
            slot, index = request.session.slot, len(request.sampled)
            fed[:, slot] = (request.sampled[-1] if index else request.prompt[-1]), request.session.cached
            chance[:, slot] = request.uniforms[index], request.sampling.temperature
        sampled, scores, self._cache = decode(self._config, self._params, self._cache, fed, chance)
        tokens, logprobs = np.asarray(sampled).tolist(), np.asarray(scores).tolist()
        going = []
        for request in self._decoding:
            slot = request.session.slot
            request.session.cached += 1
            request.sampled.append(tokens[slot])
            request.logprobs.append(logprobs[slot])
            if not math.isfinite(logprobs[slot]):
                raise FloatingPointError(f"log-probability {logprobs[slot]} with weights version {self._version}")
            if tokens[slot] in request.stops or len(request.sampled) == request.limit:
                self._finish(request)
            else:
                going.append(request)
        self._decoding = going
        self._steps_since_prefill += 1

    def _finish(self, request: _Request) -> None:
        assert self._version is not None
        reason: Literal["stop", "length"] = "stop" if request.sampled[-1] in request.stops else "length"
        completion = Completion(tuple(request.sampled), tuple(request.logprobs), self._version, reason)
        with self._wake:
            if request.error:
                self._free.append(request.session.slot)
                return
            request.session.tokens = request.prompt + request.sampled
            request.session.request = None
            request.completion = completion
            request.done.set()
