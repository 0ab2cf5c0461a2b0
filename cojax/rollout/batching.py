"""Continuous batching over fixed slots: decides which requests share a forward. `Forwards` computes them.

A request's new prompt tokens, except the last, are prefilled in chunks, without logits. Decoding begins with the
prompt's last token, and feeds one token at a time for all slots together. Requests join and leave between any two
forwards. How requests are grouped depends on the load, but the shapes in which a request's own tokens are fed depend
only on the request. A batcher has no locks: only one thread calls it.

A conversation takes pages of the cache as it grows, and shares those of its prompt's beginning (`cojax.rollout.pages`).
If no page is free, conversations between two requests make room first, then the requests that began last: their pages
are copied to the host and back, which changes no bit. A request waits for pages in the order of arrival, and for a
chunk that another request is about to compute.
"""

import collections
import dataclasses
import functools
import hashlib
import itertools
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Literal

import numpy as np

from cojax.policy.config import ModelConfig
from cojax.policy.moe import RouteShape
from cojax.rollout.engine import Completion, Sampling
from cojax.rollout.forwards import Calls
from cojax.rollout.pages import CacheShape, Pages, Prefix, count_leading, name_chunks

_MIN_SPAN = 128  # the least number of positions that a prefill attends to, a power of two
STEPS_PER_CALL = 4  # of decoding, at most: a call takes a millisecond of the host
_DECODES_PER_PREFILL = 2  # decode steps after which a prefill runs although some of its rows are empty


@dataclasses.dataclass(eq=False)
class Session:
    """A growing conversation: its tokens, the first `cache_length` of which its pages cache, under weights `version`.

    `saved_key` names the content of the pages on the host if they had to make room. `reported_count` is the number of
    tokens whose routes earlier completions reported.
    """

    tokens: list[int] = dataclasses.field(default_factory=list)
    slot_index: int = -1
    pages: list[int] = dataclasses.field(default_factory=list)
    saved_key: int | None = None
    cache_length: int = 0
    version: int | None = None
    reported_count: int = 0
    batcher: "Batcher | None" = None  # whose slot it has
    request: "Request | None" = None


@dataclasses.dataclass(eq=False)
class Request:
    """One `generate` call. `uniforms` are its random numbers, one for each token that may be sampled.

    `chunk_names` name the prompt's whole chunks, which end at `chunk_ends`; both are () if part of the prompt is cached
    already. The chunks from index `chunk_index` on are still to be computed. `start_number` counts the requests that
    began before. Another thread may end `result` early, which aborts the request.
    """

    session: Session
    prompt: list[int]
    sampling: Sampling
    uniforms: np.ndarray
    chunks: collections.deque[int] = dataclasses.field(default_factory=collections.deque)
    chunk_names: tuple[bytes, ...] = ()
    chunk_ends: tuple[int, ...] = ()
    chunk_index: int = 0
    start_number: int = -1
    started: threading.Event = dataclasses.field(default_factory=threading.Event)
    new_tokens: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)
    routes: list[Any] = dataclasses.field(default_factory=list)  # (array, index) of tokens fed; read if reported
    completion: Completion | None = None
    result: Future[Completion] = dataclasses.field(default_factory=Future)


class Batcher:
    """Owns the slots of a replica and the running requests.

    `plan` names what is computed next, and `take` takes its result, one after the other. `computed` and `reused` count
    the prompt tokens that were prefilled, and those that were shared instead; `saved` counts the times that a
    conversation made room for others.
    """

    def __init__(
        self,
        config: ModelConfig,
        slot_count: int,
        shape: CacheShape,
        row_count: int,
        chunk_sizes: Sequence[int],
        with_routes: bool,
    ) -> None:
        self._config, self._slot_count, self._shape, self._routes = config, slot_count, shape, with_routes
        self._row_count, self._chunk_sizes = row_count, tuple(sorted(chunk_sizes))
        self._version: int | None = None
        self._take_result: Callable[[Any], list[Request]] = lambda result: []
        self._sessions: set[Session] = set()
        self._free_slots = collections.deque(range(slot_count))  # if conversations have several pages
        self._pages = Pages(shape.page_count, shape.page_length)
        self._idle_sessions: dict[Session, None] = {}  # with pages but without a request; least recently used first
        self.computed = self.reused = self.saved = 0
        self._due_calls: list[tuple[Any, ...]] = []  # before the next forward, in this order
        self._queue: collections.deque[Request] = collections.deque()  # for pages
        self._waiting_requests: list[Request] = []  # for chunks that a request in _prefilling computes
        self._prefilling: list[Request] = []
        self._decoding: list[Request] = []
        self._start_count = 0
        self._steps_since_prefill = 0

    @property
    def free_slot_count(self) -> int:
        return self._slot_count - len(self._sessions)

    @property
    def is_busy(self) -> bool:
        return bool(self._prefilling or self._decoding or self._waiting_requests or self._queue)

    def begin_version(self, version: int) -> None:
        """Begins with other weights, between requests. Caches of old ones are dropped; their tokens are fed again."""
        self._version = version
        self._pages.forget_chunks()
        for session in self._idle_sessions:
            self._drop_cache(session)
        self._idle_sessions.clear()

    def admit(self, request: Request) -> None:
        """Admits the request. If its session has no slot, one must be free."""
        session = request.session
        self._sessions.add(session)
        self._idle_sessions.pop(session, None)
        if session.version != self._version:
            self._drop_cache(session)
            session.version = self._version
        request.chunks.extend(split_chunks(len(request.prompt) - 1 - session.cache_length, self._chunk_sizes))
        if not session.cache_length:
            request.chunk_names = name_chunks(request.prompt[:-1], request.chunks)
            request.chunk_ends = tuple(itertools.accumulate(request.chunks))[: len(request.chunk_names)]
            request.chunk_index = len(request.chunk_names)
        if self._shape.is_cut and session.slot_index < 0:
            session.slot_index = self._free_slots.popleft()
        self._queue.append(request)
        self._start_requests()

    def _start_requests(self) -> None:
        """Starts requests in order, until one finds no pages. Chunks that some page holds are shared.

        If another request is about to compute further chunks of the same prompt, a request waits for them instead.
        """
        pages = self._pages
        while self._queue:
            request = self._queue[0]
            self._idle_sessions.pop(request.session, None)
            names = () if request.session.cache_length else request.chunk_names
            held_count = count_leading(names, pages.holders)
            if held_count < len(names) and names[held_count] in pages.pending:
                self._waiting_requests.append(self._queue.popleft())
                continue
            if not self._take_pages(request, held_count):
                if request.session.pages:  # it may have to make room for those that began before
                    self._idle_sessions[request.session] = None
                return
            self._queue.popleft()
            if request.start_number < 0:
                request.start_number, self._start_count = self._start_count, self._start_count + 1
            pages.pending.update(request.chunk_names[request.chunk_index :])
            (self._prefilling if request.chunks else self._decoding).append(request)
            request.started.set()

    def _take_pages(self, request: Request, held_count: int) -> bool:
        """Gives the request's session pages for its prompt, and what is held of it; False if there are not enough."""
        session, pages = request.session, self._pages
        names, ends = request.chunk_names[:held_count], request.chunk_ends[:held_count]
        prefix = pages.find_prefix(names, ends) if held_count else Prefix()
        shared_pages = list(prefix.full_pages)
        takes_last = prefix.last_page >= 0 and pages.is_free(prefix.last_page)
        if takes_last:
            shared_pages.append(prefix.last_page)
        for page in shared_pages:
            pages.share(page)
        position_count = max(len(request.prompt), session.cache_length + 1)
        new_count = max(0, pages.count_for(position_count) - len(shared_pages) - len(session.pages))
        if not self._make_room(new_count):
            pages.release(shared_pages)
            return False
        if takes_last:
            pages.drop(prefix.last_page, names)
        session.pages += shared_pages + (new_pages := pages.take(new_count))
        if prefix.last_page >= 0 and not takes_last:
            span = min(self._choose_span(ends[-1]), self._shape.page_length)
            self._due_calls.append(("copy", prefix.last_page, new_pages[0], span))
        if session.saved_key is not None:
            self._due_calls.append(("restore", session.saved_key, self._name_cached_pages(session)))
            session.saved_key = None
        if not self._shape.is_cut:
            session.slot_index = session.pages[0]
        if not session.cache_length:
            self._reuse_chunks(request, held_count, prefix)
        return True

    def _reuse_chunks(self, request: Request, held_count: int, prefix: Prefix) -> None:
        """Notes that the session's pages hold the first chunks."""
        session, request.chunk_index = request.session, held_count
        for index, routes in enumerate(prefix.routes):
            request.chunks.popleft()
            request.routes.append(routes)
            self._pages.add(request.chunk_names[index], self._list_chunk_pages(request, index), routes)
            session.cache_length = request.chunk_ends[index]
        self.reused += session.cache_length

    def _list_chunk_pages(self, request: Request, index: int) -> tuple[int, ...]:
        """The session's pages in which a chunk lies."""
        start, end = request.chunk_ends[index - 1] if index else 0, request.chunk_ends[index]
        length = self._shape.page_length
        return tuple(request.session.pages[start // length : (end - 1) // length + 1])

    def _make_room(self, page_count: int) -> bool:
        """Whether so many pages are free, if need be after idle conversations have made room."""
        while self._pages.free_count < page_count and self._idle_sessions:
            session = next(iter(self._idle_sessions))
            del self._idle_sessions[session]
            self._save(session)
        return self._pages.free_count >= page_count

    def _save(self, session: Session) -> None:
        """Has the content of the session's pages copied to the host, and frees them."""
        if session.cache_length:
            session.saved_key = self.saved
            self._due_calls.append(("save", session.saved_key, self._name_cached_pages(session)))
            self.saved += 1
        self._pages.release(session.pages)
        session.pages.clear()

    def _name_cached_pages(self, session: Session) -> np.ndarray:
        """The session's pages that hold its cache, int32[N], filled up with no page to a power of two."""
        pages = session.pages[: self._pages.count_for(session.cache_length)]
        padding_count = (1 << (len(pages) - 1).bit_length()) - len(pages)
        return np.array(pages + [self._shape.page_count] * padding_count, np.int32)

    def _preempt(self, request: Request) -> None:
        """Stops a running request, which goes on when there are pages again."""
        (self._decoding if request in self._decoding else self._prefilling).remove(request)
        self._pages.pending.difference_update(request.chunk_names[request.chunk_index :])
        self._save(request.session)
        self._queue.appendleft(request)
        self._queue.extend(self._waiting_requests)  # it computes no chunk for them now
        self._waiting_requests.clear()

    def _start_waiting_requests(self) -> None:
        """Starts waiting requests whose chunks some page has by now, or never will as the other request is gone."""
        self._queue.extend(self._waiting_requests)
        self._waiting_requests.clear()
        self._start_requests()

    def _drop_cache(self, session: Session) -> None:
        """Frees the session's pages, and forgets what they hold of it."""
        if session.saved_key is not None:
            self._due_calls.append(("forget", session.saved_key))
        self._pages.release(session.pages)
        session.pages.clear()
        session.saved_key, session.cache_length = None, 0
        if not self._shape.is_cut:
            session.slot_index = -1

    def free_slot(self, session: Session) -> None:
        """Frees the session's slot and pages."""
        self._drop_cache(session)
        self._idle_sessions.pop(session, None)
        self._sessions.discard(session)
        if session.slot_index >= 0:
            self._free_slots.append(session.slot_index)
            session.slot_index = -1

    def drop_aborted(self) -> None:
        """Drops requests that were aborted."""
        for requests in (self._queue, self._waiting_requests, self._prefilling, self._decoding):
            for request in [request for request in requests if request.result.done()]:
                requests.remove(request)
                self._pages.pending.difference_update(request.chunk_names[request.chunk_index :])
                if request.session.pages:
                    self._idle_sessions[request.session] = None
        self._start_waiting_requests()

    def plan(self) -> Calls:
        """What is computed next, () if nothing is to be computed. `take` must get its result before the next plan."""
        self._start_requests()
        forward = None
        if self._decoding and not self._prefill_is_due():
            forward = self._plan_decode()
        if forward is None and self._prefilling:
            forward = self._plan_prefill()
        if forward is None:
            self._take_result = lambda result: []
        return (*self._plan_due_calls(), *([forward] if forward else []))

    def take(self, result: Any) -> list[Request]:
        """Takes the result of the last plan; returns the requests that it completed.

        Raises FloatingPointError for log-probabilities that are not finite.
        """
        return self._take_result(result)

    def _plan_due_calls(self) -> Calls:
        """What comes before the forward. Copies that follow one another are one call, of one for each slot at most.

        A copy may be longer than needed: the rest of its target is stale anyway.
        """
        calls: list[tuple[Any, ...]] = []
        copies: list[tuple[int, int, int]] = []

        def add_copies() -> None:
            if copies:
                pairs = np.zeros((2, self._slot_count), np.int32)
                pairs[:, : len(copies)] = np.array([copy[:2] for copy in copies], np.int32).T
                calls.append(("copy", *pairs, np.int32(len(copies)), max(span for *_, span in copies)))
                copies.clear()

        for name, *arguments in self._due_calls:
            if name == "copy":
                copies.append((arguments[0], arguments[1], arguments[2]))
            if name != "copy" or len(copies) == self._slot_count:
                add_copies()
            if name != "copy":
                calls.append((name, *arguments))
        add_copies()
        self._due_calls.clear()
        return tuple(calls)

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
        return min(max(_MIN_SPAN, 1 << (position_count - 1).bit_length()), self._shape.length)

    def _plan_prefill(self) -> tuple[Any, ...]:
        chunk, span = shape = self._choose_shape(self._prefilling[0])
        requests = [request for request in self._prefilling if self._choose_shape(request) == shape][: self._row_count]
        tokens = np.full((self._row_count, chunk), -1, np.int32)
        first_positions = np.zeros(self._row_count, np.int32)
        pages = np.full((self._row_count, -(-span // self._shape.page_length)), self._shape.page_count, np.int32)
        for row, request in enumerate(requests):
            session = request.session
            row_pages = session.pages[: pages.shape[1]]
            pages[row, : len(row_pages)] = row_pages
            ids = request.prompt[session.cache_length : min(session.cache_length + chunk, len(request.prompt) - 1)]
            tokens[row, : len(ids)] = ids
            first_positions[row] = session.cache_length
            session.cache_length += len(ids)
            self.computed += len(ids)
            request.chunks.popleft()
            if not request.chunks:
                self._decoding.append(request)
        self._prefilling = [request for request in self._prefilling if request.chunks]
        self._take_result = functools.partial(self._take_prefill, requests, tokens)
        return "prefill", tokens, first_positions, pages, span

    def _take_prefill(self, requests: Sequence[Request], tokens: np.ndarray, routes: Any) -> list[Request]:
        for row, request in enumerate(requests):
            # Of this row alone: a chunk that pages hold keeps its routes in memory.
            row_routes = None if routes is None else (routes[row], np.s_[: int((tokens[row] >= 0).sum())])
            request.routes.append(row_routes)
            if request.chunk_index < len(request.chunk_names):
                index, request.chunk_index = request.chunk_index, request.chunk_index + 1
                self._pages.add(request.chunk_names[index], self._list_chunk_pages(request, index), row_routes)
        self._steps_since_prefill = 0
        self._start_waiting_requests()
        return []

    def _plan_decode(self) -> tuple[Any, ...] | None:
        """A call of `decode` for all requests that find pages; None if none does."""
        steps = min(STEPS_PER_CALL, max(len(request.uniforms) - len(request.new_tokens) for request in self._decoding))
        if self._prefilling:
            steps = min(steps, max(1, _DECODES_PER_PREFILL - self._steps_since_prefill))
        self._grow(steps)
        if not self._decoding:
            return None
        inputs = np.zeros((2, self._slot_count), np.int32)
        inputs[1] = self._shape.length  # idle slots write nothing
        draw_settings = np.zeros((STEPS_PER_CALL, 2, self._slot_count), np.float32)
        pages = np.full((self._slot_count, self._shape.row_pages), self._shape.page_count, np.int32)
        for request in self._decoding:
            slot, count = request.session.slot_index, len(request.new_tokens)
            inputs[:, slot] = (request.new_tokens[-1] if count else request.prompt[-1]), request.session.cache_length
            next_uniforms = request.uniforms[count : count + STEPS_PER_CALL]
            draw_settings[: len(next_uniforms), 0, slot] = next_uniforms
            draw_settings[:, 1, slot] = request.sampling.temperature
            pages[slot, : len(request.session.pages)] = request.session.pages
        self._take_result = functools.partial(self._take_decode, steps)
        return "decode", inputs, draw_settings, np.int32(steps), pages if self._shape.is_cut else None

    def _grow(self, steps: int) -> None:
        """Gives all decoding requests pages for the next `steps`. Where none is free, those that began last stop."""
        for request in sorted(self._decoding, key=lambda request: request.start_number):
            session, length_limit = request.session, len(request.prompt) + len(request.uniforms)
            while request in self._decoding:
                end = min(session.cache_length + steps, length_limit)
                new_count = max(0, self._pages.count_for(end) - len(session.pages))
                if self._make_room(new_count):
                    session.pages += self._pages.take(new_count)
                    break
                self._preempt(max(self._decoding + self._prefilling, key=lambda other: other.start_number))

    def _take_decode(self, steps: int, result: tuple[Any, Any, Any]) -> list[Request]:
        (tokens, logprobs), routes = (np.asarray(array).tolist() for array in result[:2]), result[2]
        for request in self._decoding:
            for step in range(steps):
                self._take_token(request, tokens[step], logprobs[step], (routes, step))
                if request.completion is not None:  # what its slot computed after that is dropped
                    break
        self._steps_since_prefill += steps
        self._idle_sessions.update((request.session, None) for request in self._decoding if request.completion)
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
