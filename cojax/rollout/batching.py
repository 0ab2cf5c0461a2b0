"""Continuous batching over fixed slots: which request runs in which forward. One thread alone calls this; no locks.

A request's new tokens but the last are prefilled in chunks, without logits; from the prompt's last token on, one token
at a time is decoded for every slot at once. Requests join and leave between any two forwards. How they are grouped
follows the load; the shape a request's own tokens pass through follows from the request alone.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import threading
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from cojax.policy.config import ModelConfig
from cojax.policy.routes import RouteShape
from cojax.policy.transformer import Params, make_cache
from cojax.rollout.engine import Completion, Sampling
from cojax.rollout.forwards import cut, decode, prefill

_SPAN = 128  # a prefill looks at a multiple of so many positions
_PATIENCE = 2  # decode steps that may pass before a prefill runs with rows to spare


@dataclasses.dataclass(eq=False)
class Session:
    """A growing conversation: its tokens, how many of them its slot's cache holds under which weights, and of how many
    the routes were told."""

    tokens: list[int] = dataclasses.field(default_factory=list)
    slot: int = -1
    cached: int = 0
    version: int | None = None
    told: int = 0
    request: Request | None = None


@dataclasses.dataclass(eq=False)
class Request:
    """One `generate` call; `uniforms` are its random numbers, as many as tokens may be sampled.

    `error` may be set from outside, once, to abort it.
    """

    session: Session
    prompt: list[int]
    sampling: Sampling
    uniforms: np.ndarray
    chunks: collections.deque[int] = dataclasses.field(default_factory=collections.deque)
    sampled: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)
    routes: list[tuple[Any, Any]] = dataclasses.field(default_factory=list)  # (array, where in it): of the tokens fed
    completion: Completion | None = None
    error: str = ""
    done: threading.Event = dataclasses.field(default_factory=threading.Event)


class Batcher:
    """The device arrays, the slots, and the requests under way."""

    def __init__(
        self, config: ModelConfig, slots: int, length: int, rows: int, chunk_sizes: Sequence[int], routed: bool
    ) -> None:
        self._config, self._slots, self._length, self._routed = config, slots, length, routed
        self._rows, self._chunk_sizes = rows, tuple(sorted(chunk_sizes))
        self._cache = make_cache(config, slots, length)
        self._params: Params = {}
        self._version: int | None = None
        self._free = list(reversed(range(slots)))
        self._prefilling: list[Request] = []
        self._decoding: list[Request] = []
        self._steps_since_prefill = 0

    @property
    def busy(self) -> bool:
        return bool(self._prefilling or self._decoding)

    def use(self, version: int, params: Params) -> None:
        """Other weights, between requests: what caches hold is of the old ones, so it is fed anew."""
        self._version, self._params = version, params

    def seat(self, request: Request) -> bool:
        """Takes the request in, unless its session has no slot and none is free."""
        session = request.session
        if session.slot < 0:
            if not self._free:
                return False
            session.slot = self._free.pop()
        if session.version != self._version:
            session.version, session.cached = self._version, 0
        request.chunks.extend(cut(len(request.prompt) - 1 - session.cached, self._chunk_sizes))
        (self._prefilling if request.chunks else self._decoding).append(request)
        return True

    def free(self, session: Session) -> None:
        """Gives the session's slot to whoever comes next."""
        if session.slot >= 0:
            self._free.append(session.slot)
            session.slot = -1

    def drop_aborted(self) -> None:
        """Forgets requests with an error, their sessions too."""
        for request in (*self._prefilling, *self._decoding):
            if request.error:
                self.free(request.session)
        self._prefilling = [request for request in self._prefilling if not request.error]
        self._decoding = [request for request in self._decoding if not request.error]

    def forward(self) -> list[Request]:
        """Runs one forward and returns the requests it completed. Raises FloatingPointError for what is not finite."""
        if self._prefill_is_due():
            self._prefill()
            return []
        return self._decode()

    def _prefill_is_due(self) -> bool:
        """Full prefills at once; partly filled ones not before every decode step. Never changes a result."""
        if not self._prefilling or not self._decoding:
            return bool(self._prefilling)
        return len(self._prefilling) >= self._rows or self._steps_since_prefill >= _PATIENCE

    def _prefill_shape(self, request: Request) -> tuple[int, int]:
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
            session.cached += len(piece)
            request.chunks.popleft()
            if not request.chunks:
                self._decoding.append(request)
        self._prefilling = [request for request in self._prefilling if request.chunks]
        self._cache, routes = prefill(self._config, self._params, self._cache, tokens, start, slots, span, self._routed)
        if routes is not None:
            for row, request in enumerate(batch):
                request.routes.append((routes, np.s_[row, : int((tokens[row] >= 0).sum())]))
        self._steps_since_prefill = 0

    def _decode(self) -> list[Request]:
        fed = np.zeros((2, self._slots), np.int32)
        fed[1] = self._length  # idle slots write nothing
        chance = np.zeros((2, self._slots), np.float32)
        for request in self._decoding:
            slot, index = request.session.slot, len(request.sampled)
            fed[:, slot] = (request.sampled[-1] if index else request.prompt[-1]), request.session.cached
            chance[:, slot] = request.uniforms[index], request.sampling.temperature
        sampled, scores, self._cache, told = decode(self._config, self._params, self._cache, fed, chance, self._routed)
        tokens, logprobs = np.asarray(sampled).tolist(), np.asarray(scores).tolist()
        for request in self._decoding:
            slot = request.session.slot
            if not math.isfinite(logprobs[slot]):
                raise FloatingPointError(f"log-probability {logprobs[slot]} with weights version {self._version}")
            request.session.cached += 1
            request.sampled.append(tokens[slot])
            request.logprobs.append(logprobs[slot])
            if told is not None:
                request.routes.append((told, np.s_[slot : slot + 1]))
            request.completion = self._completion(request)
        finished = [request for request in self._decoding if request.completion is not None]
        self._decoding = [request for request in self._decoding if request.completion is None]
        self._steps_since_prefill += 1
        return finished

    def _completion(self, request: Request) -> Completion | None:
        """What was sampled, if that is all."""
        stopped = request.sampled[-1] in request.sampling.stop_tokens
        if not stopped and len(request.sampled) < len(request.uniforms):
            return None
        assert self._version is not None
        reason: Literal["stop", "length"] = "stop" if stopped else "length"
        return Completion(
            tuple(request.sampled), tuple(request.logprobs), self._version, reason, routes=self._told(request)
        )

    def _told(self, request: Request) -> str:
        """The routes of what was fed and not told before; caches that are made anew feed tokens again."""
        if not self._routed:
            return ""
        fed = np.concatenate([np.asarray(array)[where] for array, where in request.routes])
        session = request.session
        told, session.told = session.told, session.cached
        return RouteShape.of(self._config).encode(fed[len(fed) - (session.cached - told) :])
