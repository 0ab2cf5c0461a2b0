"""The in-process engine: a KV cache, continuous batching over fixed slots, results that depend on the request alone.

The slots are shared out to lanes, each a thread with arrays of its own: XLA runs the small forwards of decoding on one
core, so that a CPU is filled by several at a time. A session stays in its lane and keeps its slot and its cache from
its first `generate` to its `release`, so each call feeds only what is new. Requests join between any two forwards.

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
from cojax.policy.precision import computed_dtype
from cojax.policy.routes import RouteShape
from cojax.policy.transformer import unstack
from cojax.rollout.batching import Batcher
from cojax.rollout.engine import Completion, Sampling, Weights, check_request
from cojax.rollout.forwards import uniforms
from cojax.rollout.lane import Busy, Lane

_POLL_SECONDS = 1.0  # how often one who waits for a slot looks whether the threads still live


class LocalEngine:
    """Serves `config` from this process; `load` must come before the first `generate`.

    `slots` conversations are held at once, the same number in each of `lanes`; further ones wait for a release. One
    lane is right on an accelerator, one for each core or two on a CPU. A conversation holds up to `max_length` tokens,
    prompt and completion together. `prefill_rows` × each of `prefill_chunks` are the prefill shapes. With `routes`
    completions tell which experts tokens went through.

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
        self._busy = Busy()
        # Under the lock, which is taken before that of a lane.
        self._lock = threading.Lock()
        self._loaded, self._down = False, ""
        self._homes: dict[str, int] = {}  # session → its lane
        self._room = [slots // lanes] * lanes
        self._waiting: dict[str, threading.Event] = {}  # sessions without a lane, in order of arrival
        make = functools.partial(Batcher, config, slots // lanes, max_length, prefill_rows, prefill_chunks, routes)
        self._lanes = [Lane(make, self._busy, self._shut) for _ in range(lanes)]

    @property
    def busy_seconds(self) -> float:
        """Wall time spent in forwards so far."""
        return self._busy.seconds

    def load(self, weights: Weights) -> None:
        """Takes `weights` over and returns once they serve.

        A completion comes from one version: those under way finish first, new ones wait. Caches of open sessions are
        made anew on their next turn. Raises ValueError for arrays that do not fit or are not finite, EngineError when
        the engine is down.
        """
        params = parameters.from_hf(self._config, weights.arrays(), computed_dtype)
        for row in parameters.parameters(self._config):
            if not bool(jnp.isfinite(parameters.leaf_of(params, row)).all()):
                raise ValueError(f"weights version {weights.version}: {row.name} is not finite; training has diverged")
        params = jax.block_until_ready(unstack(self._config, params))
        # The lanes hold the same arrays, and one waits for its requests while the others go on.
        waits = [lane.load(weights.version, params) for lane in self._lanes]
        with self._lock:
            self._loaded = True
        for wait in waits:
            wait()

    def generate(self, prompt: Sequence[int], sampling: Sampling, *, session: str, seed: tuple[int, ...]) -> Completion:
        """Continues `prompt`, the whole conversation so far, which must extend what the session has seen and said.

        Raises OutOfContext when it leaves no room for a token, ValueError for a prompt that does not extend the
        session or another mistake of the caller, EngineError when the engine fails, is closed, or releases the session.
        """
        tokens = [int(token) for token in prompt]
        check_request(tokens, sampling, self._config.vocab_size, self._length)
        chances = uniforms(seed, min(sampling.max_tokens, self._length - len(tokens)))
        self._settle(session)
        with self._lock:
            # Under one lock with the look-up: a session released in between would never give its slot back.
            if session not in self._homes:
                raise EngineError(self._down or f"session {session!r} was released while it waited for a slot")
            lane = self._lanes[self._homes[session]]
            request = lane.submit(tokens, sampling, chances, session)
        return lane.result(request)

    def release(self, session: str) -> None:
        """Forgets the session and frees its slot; a call of it still running raises EngineError. Unknown is fine."""
        with self._lock:
            home = self._homes.pop(session, None)
            if home is not None:
                self._lanes[home].release(session)
                self._room[home] += 1
                self._seat()
            elif session in self._waiting:
                self._waiting.pop(session).set()

    def rest(self) -> None:
        """Nothing: the cache stays, as open sessions do."""

    def close(self) -> None:
        """Stops the threads; whoever waits gets EngineError. May be called twice."""
        self._shut("the engine was closed")
        for lane in self._lanes:
            lane.join()

    def _settle(self, session: str) -> None:
        """Returns once the session has a lane, or will not get one; a new one goes where most room is, or waits."""
        with self._lock:
            if self._down:
                raise EngineError(self._down)
            if not self._loaded:
                raise EngineError("the engine has no weights; call load first")
            if session in self._homes:
                return
            if session in self._waiting:
                raise ValueError(f"session {session!r} is still waiting for a slot; one call at a time")
            seated = self._waiting[session] = threading.Event()
            self._seat()
        while not seated.wait(_POLL_SECONDS):
            if not all(lane.alive for lane in self._lanes):
                self._shut("an engine thread died")

    def _seat(self) -> None:
        """Gives lanes to those who wait, in order of arrival, as far as there is room. Needs the lock."""
        while self._waiting and any(self._room):
            session, lane = next(iter(self._waiting)), self._room.index(max(self._room))
            self._homes[session] = lane
            self._room[lane] -= 1
            self._waiting.pop(session).set()

    def _shut(self, reason: str) -> None:
        with self._lock:
            self._down = self._down or reason
            for seated in self._waiting.values():
                seated.set()
            self._waiting.clear()
        for lane in self._lanes:
            lane.shut(self._down)
