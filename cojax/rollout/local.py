"""The in-process engine: a KV cache, continuous batching over fixed slots, results that depend on the request alone.

One thread owns the device arrays. A session keeps its slot and its cache from its first `generate` to its `release`, so
each call feeds only what is new. Requests join between any two forwards.

Every forward has one of a few shapes, slots × 1 or rows × chunk, padded and never shrunk to the live rows, and chunks
are cut by the request alone; a row's arithmetic never involves another row. So tokens and log-probabilities are the
same bits whatever else runs, on one machine type, number of threads and set of versions.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from cojax.environment import EngineError, OutOfContext
from cojax.policy import parameters
from cojax.policy.config import ModelConfig
from cojax.policy.transformer import Params, unstack
from cojax.rollout.batching import Batcher, Request, Session
from cojax.rollout.engine import Completion, Sampling, Weights
from cojax.rollout.forwards import uniforms

_POLL_SECONDS = 1.0  # how often a waiter looks whether the engine thread still lives


@dataclasses.dataclass(eq=False)
class _Update:
    """Weights on their way to the engine thread."""

    version: int
    params: Params
    taken: threading.Event = dataclasses.field(default_factory=threading.Event)


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
        self._config, self._length = config, max_length
        self._batcher = Batcher(config, slots, max_length, prefill_rows, prefill_chunks)  # the engine thread's own
        # Shared with callers, under the lock.
        self._wake = threading.Condition()
        self._sessions: dict[str, Session] = {}
        self._arrived: collections.deque[Request] = collections.deque()
        self._released: list[Session] = []
        self._update: _Update | None = None
        self._loaded = False
        self._down = ""
        self._thread = threading.Thread(target=self._run, name="LocalEngine", daemon=True)
        self._thread.start()

    # --- called from any thread ---

    def load(self, weights: Weights) -> None:
        """Takes `weights` over and returns once they serve.

        A completion comes from one version: those under way finish first, new ones wait. Caches of open sessions are
        made anew on their next turn. Raises ValueError for arrays that do not fit or are not finite, EngineError when
        the engine is down.
        """
        params = parameters.from_hf(self._config, weights.arrays())
        for row in parameters.parameters(self._config):
            if not bool(jnp.isfinite(parameters.leaf_of(params, row)).all()):
                raise ValueError(f"weights version {weights.version}: {row.name} is not finite; training has diverged")
        update = _Update(weights.version, jax.block_until_ready(unstack(self._config, params)))
        with self._wake:
            while self._update is not None and not self._down:
                self._wake.wait(_POLL_SECONDS)
            self._raise_if_down()
            self._update = update
            self._wake.notify_all()
        self._await(update.taken)
        if self._update is update:
            self._raise_if_down()

    def generate(self, prompt: Sequence[int], sampling: Sampling, *, session: str, seed: tuple[int, ...]) -> Completion:
        """Continues `prompt`, the whole conversation so far, which must extend what the session has seen and said.

        Raises OutOfContext when it leaves no room for a token, ValueError for a prompt that does not extend the
        session or another mistake of the caller, EngineError when the engine fails, is closed, or releases the session.
        """
        tokens = [int(token) for token in prompt]
        self._check(tokens, sampling)
        chances = uniforms(seed, min(sampling.max_tokens, self._length - len(tokens)))
        with self._wake:
            self._raise_if_down()
            if not self._loaded and self._update is None:
                raise EngineError("the engine has no weights; call load first")
            state = self._sessions.setdefault(session, Session())
            if state.request is not None:
                raise ValueError(f"session {session!r} is still generating; one call at a time")
            if tokens[: len(state.tokens)] != state.tokens:
                raise ValueError(
                    f"the prompt of session {session!r} does not extend its first {len(state.tokens)} tokens; "
                    "append to what was sampled, or release the session"
                )
            request = state.request = Request(state, tokens, sampling, chances)
            self._arrived.append(request)
            self._wake.notify_all()
        self._await(request.done)
        if request.error or request.completion is None:
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
            else:
                self._released.append(state)
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

    def _abort(self, request: Request, reason: str) -> None:
        """Wakes the waiter; the engine thread drops the request before its next forward. Needs the lock."""
        request.error = reason
        request.done.set()

    def _shut(self, reason: str) -> None:
        with self._wake:
            self._down = self._down or reason
            for session in self._sessions.values():
                if session.request is not None:
                    self._abort(session.request, self._down)
            if self._update is not None:
                self._update.taken.set()
            self._wake.notify_all()

    # --- the engine thread ---

    def _run(self) -> None:
        try:
            while self._admit():
                began = time.perf_counter()
                finished = self._batcher.forward()
                self.busy_seconds += time.perf_counter() - began
                if finished:
                    self._deliver(finished)
        except Exception as error:
            self._shut(f"the engine failed: {type(error).__name__}: {error}")

    def _admit(self) -> bool:
        """Takes in what came, and waits until there is something to run. False once the engine is down."""
        with self._wake:
            while not self._down:
                self._batcher.drop_aborted()
                for session in self._released:
                    self._batcher.free(session)
                self._released.clear()
                if self._update is not None and not self._batcher.busy:
                    self._take(self._update)
                if self._update is None:
                    self._seat_arrivals()
                if self._batcher.busy:
                    return True
                self._wake.wait()
            return False

    def _take(self, update: _Update) -> None:
        self._batcher.use(update.version, update.params)
        self._update, self._loaded = None, True
        update.taken.set()
        self._wake.notify_all()

    def _seat_arrivals(self) -> None:
        """In order of arrival; who finds no slot keeps its place in the queue."""
        waiting = collections.deque[Request]()
        for request in self._arrived:
            if request.error:
                self._batcher.free(request.session)
            elif not self._batcher.seat(request):
                waiting.append(request)
        self._arrived = waiting

    def _deliver(self, finished: list[Request]) -> None:
        with self._wake:
            for request in finished:
                session = request.session
                if request.error:
                    self._released.append(session)
                    continue
                session.tokens = request.prompt + request.sampled
                session.request = None
                request.done.set()
