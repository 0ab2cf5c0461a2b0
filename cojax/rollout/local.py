"""The in-process JAX engine: a KV cache, continuous batching over fixed slots, results fixed by the request alone.

The slots are divided among lanes, each a thread with arrays of its own. XLA runs the small forwards of decoding on one
core, so it takes several at a time to fill a CPU. A session stays in its lane and keeps its slot and its cache from its
first `generate` to its `release`, so each call feeds only new tokens. Requests join between any two forwards.

Every forward has one of a few shapes, slots × 1 or rows × chunk, padded and never shrunk to the live rows, and chunks
are cut by the request alone; a row's arithmetic never involves another row. So tokens and log-probabilities are the
same bits whatever else runs, on one machine type, number of threads and lanes, and set of versions.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from cojax.environment import EngineError
from cojax.policy import parameters
from cojax.policy.config import ModelConfig
from cojax.policy.precision import compute_dtype
from cojax.policy.routes import RouteShape
from cojax.policy.transformer import unstack
from cojax.rollout.batching import Batcher
from cojax.rollout.busy_time import BusyTime
from cojax.rollout.engine import Completion, Sampling, Weights, check_request
from cojax.rollout.forwards import uniforms
from cojax.rollout.lane import Lane

_POLL_SECONDS = 1.0  # between two looks of a caller that waits for a slot whether the threads are alive


class LocalEngine:
    """Serves `config` from this process; `load` must come before the first `generate`.

    It holds `slots` conversations at once, the same number in each of `lanes`; further ones wait for a release. On an
    accelerator one lane is right, on a CPU one for every core or every two. A conversation holds up to `max_length`
    tokens, prompt and completion together. `prefill_rows` × each of `prefill_chunks` are the prefill shapes. With
    `routes` completions report which experts tokens went through.

    At temperature 0 the most likely token is taken, and log-probabilities are those at temperature 1.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        slots: int = 128,
        lanes: int = 1,
        max_length: int = 320,
        prefill_rows: int = 16,
        prefill_chunks: Sequence[int] = (16,),
        routes: bool = False,
    ) -> None:
        if max_length > config.max_position_embeddings:
            raise ValueError(
                f"max_length {max_length} exceeds the model's max_position_embeddings {config.max_position_embeddings}"
            )
        if min(slots, lanes, prefill_rows, max_length - 1, *prefill_chunks) < 1:
            raise ValueError("slots, lanes, prefill_rows and prefill_chunks must be at least 1, max_length at least 2")
        if slots % lanes:
            raise ValueError(f"slots {slots} is no multiple of lanes {lanes}; every lane holds equally many")
        if routes:
            RouteShape.of(config)
        self._config, self._length, self.tells_routes = config, max_length, routes
        self._busy = BusyTime()
        # Guarded by the lock. Where a lane's lock is needed too, this one is taken first.
        self._lock = threading.Lock()
        self._loaded, self._down = False, ""
        self._lane_of: dict[str, int] = {}  # session → index of its lane
        self._free = [slots // lanes] * lanes
        self._waiting: dict[str, threading.Event] = {}  # sessions without a lane, in order of arrival
        make = functools.partial(Batcher, config, slots // lanes, max_length, prefill_rows, prefill_chunks, routes)
        self._lanes = [Lane(make, self._busy, self._stop) for _ in range(lanes)]

    @property
    def busy_seconds(self) -> float:
        """Wall time spent in forwards so far."""
        return self._busy.seconds

    def load(self, weights: Weights) -> None:
        """Takes `weights` and returns once they serve.

        A completion comes from one version: those under way finish first, new ones wait. Caches of open sessions are
        computed anew on their next turn. Raises ValueError for arrays that do not fit or are not finite, EngineError
        when the engine is down.
        """
        params = parameters.from_hf(self._config, weights.arrays(), compute_dtype)
        for row in parameters.parameters(self._config):
            if not bool(jnp.isfinite(parameters.leaf_of(params, row)).all()):
                raise ValueError(f"weights version {weights.version}: {row.name} is not finite; training has diverged")
        params = jax.block_until_ready(unstack(self._config, params))
        # The lanes share these arrays. Each takes them when its own requests are done, while others go on.
        waits = [lane.load(weights.version, params) for lane in self._lanes]
        with self._lock:
            self._loaded = True
        for wait in waits:
            wait()

    def generate(self, prompt: Sequence[int], sampling: Sampling, *, session: str, seed: tuple[int, ...]) -> Completion:
        """Continues `prompt`, the whole conversation so far: it must begin with all earlier tokens of the session.

        Raises OutOfContext when it leaves no room for a token, ValueError for a prompt that does not extend the
        session or another mistake of the caller, EngineError when the engine fails, is closed, or releases the session.
        """
        tokens = [int(token) for token in prompt]
        check_request(tokens, sampling, self._config.vocab_size, self._length)
        chances = uniforms(seed, min(sampling.max_tokens, self._length - len(tokens)))
        self._wait_for_slot(session)
        with self._lock:
            # Submitted under the same lock: a session released in between would never free its slot.
            if session not in self._lane_of:
                raise EngineError(self._down or f"session {session!r} was released while it waited for a slot")
            lane = self._lanes[self._lane_of[session]]
            request = lane.submit(tokens, sampling, chances, session)
        return lane.result(request)

    def release(self, session: str) -> None:
        """Forgets the session and frees its slot; a call of it still running raises EngineError. Unknown is fine."""
        with self._lock:
            lane = self._lane_of.pop(session, None)
            if lane is not None:
                self._lanes[lane].release(session)
                self._free[lane] += 1
                self._assign_lanes()
            elif session in self._waiting:
                self._waiting.pop(session).set()

    def rest(self) -> None:
        """Does nothing: open sessions keep their cache."""

    def close(self) -> None:
        """Stops the threads; callers that wait get EngineError. May be called twice."""
        self._stop("the engine was closed")
        for lane in self._lanes:
            lane.join()

    def _wait_for_slot(self, session: str) -> None:
        """Waits until the session has a lane, or will not get one. A new session gets the lane with most free slots."""
        with self._lock:
            if self._down:
                raise EngineError(self._down)
            if not self._loaded:
                raise EngineError("the engine has no weights; call load first")
            if session in self._lane_of:
                return
            if session in self._waiting:
                raise ValueError(f"session {session!r} is still waiting for a slot; one call at a time")
            assigned = self._waiting[session] = threading.Event()
            self._assign_lanes()
        while not assigned.wait(_POLL_SECONDS):
            if not all(lane.alive for lane in self._lanes):
                self._stop("an engine thread died")

    def _assign_lanes(self) -> None:
        """Gives waiting sessions lanes, in order of arrival, while slots are free. Needs the lock."""
        while self._waiting and any(self._free):
            session, lane = next(iter(self._waiting)), self._free.index(max(self._free))
            self._lane_of[session] = lane
            self._free[lane] -= 1
            self._waiting.pop(session).set()

    def _stop(self, reason: str) -> None:
        with self._lock:
            self._down = self._down or reason
            for assigned in self._waiting.values():
                assigned.set()
            self._waiting.clear()
        for lane in self._lanes:
            lane.stop(self._down)
