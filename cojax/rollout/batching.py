"""Continuous batching over fixed slots: decides which requests share a forward. `Forwards` computes them.

A request's new prompt tokens, except the last, are prefilled in chunks, without logits. Decoding begins with the
prompt's last token, and feeds one token at a time for all slots together. Requests join and leave between any two
forwards. How requests are grouped depends on the load, but the shapes in which a request's own tokens are fed depend
only on the request. A batcher has no locks: only one thread calls it.

A chunk that another slot holds is copied instead of computed. A request waits for a chunk that another request is about
to compute. Both give the same bits: the keys and values of a whole chunk depend only on the tokens up to its end and on
how they are cut, and a chunk's name is a digest of both. A slot keeps its chunks after its session is released, until
another session overwrites them.
"""

import collections
import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable, Container, Sequence
from concurrent.futures import Future
from typing import Any, Literal

import numpy as np

from cojax.policy.config import ModelConfig
from cojax.policy.moe import RouteShape
from cojax.rollout.engine import Completion, Sampling
from cojax.rollout.forwards import Calls

_MIN_SPAN = 128  # the least number of positions that a prefill attends to, a power of two
_ALIGNMENT = 64  # positions; of rows of other lengths, an accelerator loads single numbers in place of vectors
STEPS_PER_CALL = 4  # of decoding, at most: a call takes a millisecond of the host
_DECODES_PER_PREFILL = 2  # decode steps after which a prefill runs although some of its rows are empty


@dataclasses.dataclass(eq=False)
class Session:
    """A growing conversation: its tokens, the first `cache_length` of which its slot caches, under weights `version`.

    `reported_count` is the number of tokens whose routes earlier completions reported.
    """

    tokens: list[int] = dataclasses.field(default_factory=list)
    slot_index: int = -1
    cache_length: int = 0
    version: int | None = None
    reported_count: int = 0
    batcher: "Batcher | None" = None  # whose slot it has
    request: "Request | None" = None


@dataclasses.dataclass(eq=False)
class Request:
    """One `generate` call. `uniforms` are its random numbers, one for each token that may be sampled.

    `chunk_names` name the prompt's whole chunks; they are () if part of the prompt is cached already. The chunks from
    index `chunk_index` on are still to be computed. Another thread may end `result` early, which aborts the request.
    """

    session: Session
    prompt: list[int]
    sampling: Sampling
    uniforms: np.ndarray
    chunks: collections.deque[int] = dataclasses.field(default_factory=collections.deque)
    chunk_names: tuple[bytes, ...] = ()
    chunk_index: int = 0
    new_tokens: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)
    routes: list[Any] = dataclasses.field(default_factory=list)  # (array, index) of tokens fed; read if reported
    completion: Completion | None = None
    result: Future[Completion] = dataclasses.field(default_factory=Future)


class Batcher:
    """Owns the slots of a replica and the running requests.

    `plan` names what is computed next, and `take` takes its result, one after the other. `computed` and `reused` count
    the prompt tokens that were prefilled, and those that were copied instead.
    """

    def __init__(
        self,
        config: ModelConfig,
        slot_count: int,
        cache_length: int,
        row_count: int,
        chunk_sizes: Sequence[int],
        with_routes: bool,
    ) -> None:
        self._config, self._slot_count, self._routes = config, slot_count, with_routes
        self._cache_length = align(cache_length)
        self._row_count, self._chunk_sizes = row_count, tuple(sorted(chunk_sizes))
        self._version: int | None = None
        self._take_result: Callable[[Any], list[Request]] = lambda result: []
        self._free_slots = list(range(slot_count))  # the one freed first comes first
        self._prefixes = Prefixes()
        self.computed = self.reused = 0
        self._copies: list[tuple[int, int, int]] = []  # (source, target, span), made in order before the next forward
        self._waiting_requests: list[Request] = []  # for chunks that a request in _prefilling computes
        self._prefilling: list[Request] = []
        self._decoding: list[Request] = []
        self._steps_since_prefill = 0

    @property
    def free_slot_count(self) -> int:
        return len(self._free_slots)

    @property
    def is_busy(self) -> bool:
        return bool(self._prefilling or self._decoding or self._waiting_requests)

    def begin_version(self, version: int) -> None:
        """Begins with other weights, between requests. Caches of old ones are dropped; their tokens are fed again."""
        self._version = version
        self._prefixes = Prefixes()

    def admit(self, request: Request) -> None:
        """Admits the request. If its session has no slot, one must be free."""
        session = request.session
        if session.version != self._version:
            session.version, session.cache_length = self._version, 0
        request.chunks.extend(split_chunks(len(request.prompt) - 1 - session.cache_length, self._chunk_sizes))
        if not session.cache_length:
            request.chunk_names = name_chunks(request.prompt[:-1], request.chunks)
            request.chunk_index = len(request.chunk_names)
        if session.slot_index < 0:
            session.slot_index = self._take_slot(request.chunk_names)
        self._start_request(request)

    def _take_slot(self, chunk_names: Sequence[bytes]) -> int:
        """Takes a free slot: one that holds the prompt's longest prefix in any slot, otherwise the one freed first."""
        held_count = count_leading(chunk_names, self._prefixes.holders)
        holders = self._prefixes.holders[chunk_names[held_count - 1]] if held_count else {}
        slot = next((slot for slot in self._free_slots if slot in holders), self._free_slots[0])
        self._prefixes.drop(slot, held_count if slot in holders else 0)
        return self._free_slots.pop(self._free_slots.index(slot))

    def _start_request(self, request: Request) -> None:
        """Starts the request: copies the chunks that some slot has, then prefills the rest.

        If another request is about to compute further chunks of the same prompt, this one waits for them instead.
        """
        held_count = count_leading(request.chunk_names, self._prefixes.holders)
        if count_leading(request.chunk_names, self._prefixes.pending) > held_count:
            self._waiting_requests.append(request)
            return
        request.chunk_index = held_count
        if held_count:
            self._reuse_chunks(request)
        self._prefixes.pending.update(request.chunk_names[held_count:])
        (self._prefilling if request.chunks else self._decoding).append(request)

    def _reuse_chunks(self, request: Request) -> None:
        """Gives the request's slot the chunks before `chunk_index`, which some slot holds."""
        session, digests, holders = request.session, request.chunk_names[: request.chunk_index], self._prefixes.holders
        source_slot = next(iter(holders[digests[-1]]))
        session.cache_length = sum(request.chunks.popleft() for _ in digests)
        self.reused += session.cache_length
        if session.slot_index not in holders[digests[-1]]:
            self._copies.append((source_slot, session.slot_index, self._choose_span(session.cache_length)))
        for chunk_name in digests:
            request.routes.append(holders[chunk_name][source_slot])
            self._prefixes.add(session.slot_index, chunk_name, holders[chunk_name][source_slot])

    def _start_waiting_requests(self) -> None:
        """Starts waiting requests whose chunks some slot has by now, or never will as the other request is gone."""
        requests, self._waiting_requests = self._waiting_requests, []
        for request in requests:
            self._start_request(request)

    def free_slot(self, session: Session) -> None:
        """Frees the session's slot."""
        if session.slot_index >= 0:
            self._free_slots.append(session.slot_index)
            session.slot_index = -1

    def drop_aborted(self) -> None:
        """Drops requests that were aborted."""
        for requests in (self._waiting_requests, self._prefilling, self._decoding):
            for request in [request for request in requests if request.result.done()]:
                requests.remove(request)
                self._prefixes.pending.difference_update(request.chunk_names[request.chunk_index :])
        self._start_waiting_requests()

    def plan(self) -> Calls:
        """What is computed next, () if nothing is to be computed. `take` must get its result before the next plan."""
        if not (self._prefilling or self._decoding):
            self._take_result = lambda result: []
            return ()
        return (*self._plan_copies(), self._plan_prefill() if self._prefill_is_due() else self._plan_decode())

    def take(self, result: Any) -> list[Request]:
        """Takes the result of the last plan; returns the requests that it completed.

        Raises FloatingPointError for log-probabilities that are not finite.
        """
        return self._take_result(result)

    def _plan_copies(self) -> Calls:
        """The copies that admitted requests need; each program makes at most as many as there are slots.

        A copy may be longer than needed: the rest of its target is stale anyway.
        """
        calls: Calls = ()
        while self._copies:
            due_copies, self._copies = self._copies[: self._slot_count], self._copies[self._slot_count :]
            slot_pairs = np.zeros((2, self._slot_count), np.int32)
            slot_pairs[:, : len(due_copies)] = np.array([copy[:2] for copy in due_copies], np.int32).T
            calls += (("copy", *slot_pairs, np.int32(len(due_copies)), max(span for *_, span in due_copies)),)
        return calls

    def _prefill_is_due(self) -> bool:
        """Whether a prefill runs next: a full one runs immediately, a partly filled one after some decode steps.

        This affects speed only, never a result.
        """
        if not self._prefilling or not self._decoding:
            return bool(self._prefilling)
        return len(self._prefilling) >= self._row_count or self._steps_since_prefill >= _DECODES_PER_PREFILL

    def _choose_shape(self, request: Request) -> tuple[int, int]:
        """Size of the next chunk, and the number of positions that it attends to; both depend on the request only."""
        position_count = min(request.session.cache_length + request.chunks[0], len(request.prompt) - 1)
        return request.chunks[0], self._choose_span(position_count)

    def _choose_span(self, position_count: int) -> int:
        """Positions to attend to for the first `position_count`: a power of two, or all. Each has its own program."""
        return min(max(_MIN_SPAN, 1 << (position_count - 1).bit_length()), self._cache_length)

    def _plan_prefill(self) -> tuple[Any, ...]:
        chunk, span = shape = self._choose_shape(self._prefilling[0])
        requests = [request for request in self._prefilling if self._choose_shape(request) == shape][: self._row_count]
        tokens = np.full((self._row_count, chunk), -1, np.int32)
        first_positions = np.zeros(self._row_count, np.int32)
        slots = np.full(self._row_count, self._slot_count, np.int32)
        for row, request in enumerate(requests):
            session = request.session
            ids = request.prompt[session.cache_length : min(session.cache_length + chunk, len(request.prompt) - 1)]
            tokens[row, : len(ids)] = ids
            first_positions[row], slots[row] = session.cache_length, session.slot_index
            session.cache_length += len(ids)
            self.computed += len(ids)
            request.chunks.popleft()
            if not request.chunks:
                self._decoding.append(request)
        self._prefilling = [request for request in self._prefilling if request.chunks]
        self._take_result = functools.partial(self._take_prefill, requests, tokens)
        return "prefill", tokens, first_positions, slots, span

    def _take_prefill(self, requests: Sequence[Request], tokens: np.ndarray, routes: Any) -> list[Request]:
        for row, request in enumerate(requests):
            # Of this row alone: a chunk that a slot holds keeps its routes in memory.
            row_routes = None if routes is None else (routes[row], np.s_[: int((tokens[row] >= 0).sum())])
            request.routes.append(row_routes)
            if request.chunk_index < len(request.chunk_names):
                self._prefixes.add(request.session.slot_index, request.chunk_names[request.chunk_index], row_routes)
                request.chunk_index += 1
        self._steps_since_prefill = 0
        self._start_waiting_requests()
        return []

    def _plan_decode(self) -> tuple[Any, ...]:
        inputs = np.zeros((2, self._slot_count), np.int32)
        inputs[1] = self._cache_length  # idle slots write nothing
        draw_settings = np.zeros((STEPS_PER_CALL, 2, self._slot_count), np.float32)
        for request in self._decoding:
            slot, count = request.session.slot_index, len(request.new_tokens)
            inputs[:, slot] = (request.new_tokens[-1] if count else request.prompt[-1]), request.session.cache_length
            next_uniforms = request.uniforms[count : count + STEPS_PER_CALL]
            draw_settings[: len(next_uniforms), 0, slot] = next_uniforms
            draw_settings[:, 1, slot] = request.sampling.temperature
        steps = min(STEPS_PER_CALL, max(len(request.uniforms) - len(request.new_tokens) for request in self._decoding))
        if self._prefilling:
            steps = min(steps, max(1, _DECODES_PER_PREFILL - self._steps_since_prefill))
        self._take_result = functools.partial(self._take_decode, steps)
        return "decode", inputs, draw_settings, np.int32(steps)

    def _take_decode(self, steps: int, result: tuple[Any, Any, Any]) -> list[Request]:
        (tokens, logprobs), routes = (np.asarray(array).tolist() for array in result[:2]), result[2]
        for request in self._decoding:
            for step in range(steps):
                self._take_token(request, tokens[step], logprobs[step], (routes, step))
                if request.completion is not None:  # what its slot computed after that is dropped
                    break
        self._steps_since_prefill += steps
        requests, self._decoding = self._decoding, [request for request in self._decoding if request.completion is None]
        return [request for request in requests if request.completion is not None]

    def _take_token(self, request: Request, tokens: list[int], logprobs: list[float], routes: tuple[Any, int]) -> None:
        """Gives the request the token that one step sampled in its slot."""
        slot, (array, step) = request.session.slot_index, routes
        if not math.isfinite(logprobs[slot]):
            raise FloatingPointError(f"log-probability {logprobs[slot]} with weights version {self._version}")
        request.session.cache_length += 1
        request.new_tokens.append(tokens[slot])
        request.logprobs.append(logprobs[slot])
        request.routes.append((array, np.s_[step, slot : slot + 1]))
        request.completion = self._make_completion(request)

    def _make_completion(self, request: Request) -> Completion | None:
        """The completion, or None while more tokens are to be sampled."""
        at_stop = request.new_tokens[-1] in request.sampling.stop_tokens
        if not at_stop and len(request.new_tokens) < len(request.uniforms):
            return None
        assert self._version is not None
        finish_reason: Literal["stop", "length"] = "stop" if at_stop else "length"
        tokens, logprobs = tuple(request.new_tokens), tuple(request.logprobs)
        return Completion(tokens, logprobs, self._version, finish_reason, routes=self._read_new_routes(request))

    def _read_new_routes(self, request: Request) -> str:
        """The routes of tokens not reported before. After new weights, tokens reported earlier were fed again."""
        if not self._routes:
            return ""
        routes = np.concatenate([np.asarray(array)[index] for array, index in request.routes])
        session = request.session
        reported_count, session.reported_count = session.reported_count, session.cache_length
        return RouteShape.of(self._config).encode(routes[len(routes) - (session.cache_length - reported_count) :])


def align(length: int) -> int:
    """The length of a cache for conversations of `length` tokens."""
    return -(-length // _ALIGNMENT) * _ALIGNMENT


def name_chunks(tokens: Sequence[int], chunk_sizes: Sequence[int]) -> tuple[bytes, ...]:
    """The names of the whole chunks among those of `chunk_sizes` into which `tokens` are cut, from the first one on."""
    digests: list[bytes] = []
    digest, end = b"", 0
    for chunk_size in chunk_sizes:
        chunk, end = tokens[end : end + chunk_size], end + chunk_size
        if end <= len(tokens):
            digest = hashlib.sha256(digest + np.asarray(chunk, np.int32).tobytes()).digest()
            digests.append(digest)
    return tuple(digests)


def count_leading(chunk_names: Sequence[bytes], held_names: Container[bytes]) -> int:
    """The number of leading chunks of a prompt up to the last whose name is in `held_names`; 0 if none is."""
    return next((count for count in range(len(chunk_names), 0, -1) if chunk_names[count - 1] in held_names), 0)


class Prefixes:
    """Which slots hold which chunks (`holders`), and which chunks some request is about to compute (`pending`).

    `holders` maps a chunk to its slots and these to its routes, None for a model without routes. A slot that holds a
    chunk holds all before it in the prompt.
    """

    def __init__(self) -> None:
        self.pending: set[bytes] = set()
        self.holders: dict[bytes, dict[int, Any]] = {}
        self._chunks_by_slot: dict[int, list[bytes]] = collections.defaultdict(list)

    def add(self, slot_index: int, chunk_name: bytes, routes: Any) -> None:
        """The slot now holds the next chunk of its prompt."""
        self.pending.discard(chunk_name)
        if slot_index not in self.holders.setdefault(chunk_name, {}):
            self.holders[chunk_name][slot_index] = routes
            self._chunks_by_slot[slot_index].append(chunk_name)

    def drop(self, slot_index: int, kept_count: int = 0) -> None:
        """The slot will be overwritten, except for its first `kept_count` chunks."""
        for chunk_name in self._chunks_by_slot[slot_index][kept_count:]:
            del self.holders[chunk_name][slot_index]
            if not self.holders[chunk_name]:
                del self.holders[chunk_name]
        del self._chunks_by_slot[slot_index][kept_count:]


def draw_uniforms(seed: Sequence[int], token_count: int) -> np.ndarray:
    """float32[count] in [0, 1): the request's random numbers, one per token, from the SHA-256 of `seed`.

    A larger `token_count` appends numbers; the first ones stay the same.
    """
    digest = hashlib.sha256(repr(tuple(int(number) for number in seed)).encode()).digest()
    random_bits = np.random.Philox(key=int.from_bytes(digest[:16], "little")).random_raw(token_count)
    return ((random_bits >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)).astype(np.float32)


def split_chunks(token_count: int, sizes: Sequence[int]) -> list[int]:
    """Sizes of chunks for `token_count` tokens: each is the largest size that is filled, or else the smallest."""
    chunk_sizes: list[int] = []
    while token_count > 0:
        chunk_size = max((size for size in sizes if size <= token_count), default=min(sizes))
        chunk_sizes.append(chunk_size)
        token_count -= chunk_size
    return chunk_sizes
