"""The in-process JAX engine: a paged KV cache and continuous batching; results depend on the request only.

The slots are divided among lanes. Each lane is a thread with its own arrays. XLA runs the small forwards of decoding on
one core, so several lanes are needed to use a whole CPU. A session stays in its lane. It keeps its slot from its first
`generate` to its `release`, and its cache in pages, so each call feeds only new tokens. Requests join between any two
forwards.

The prefix that prompts share (system message, tools, the group's query) is computed once in each lane, and shared in
whole prefill chunks. It stays as long as any page holds it, even a free one.

Every forward has one of a few padded shapes: slots × 1 or rows × chunk. How a prompt is cut into chunks depends on the
request only, and rows do not interact. So tokens and log-probabilities are the same bits regardless of other requests,
on one machine type, one mesh, one number of threads, lanes and slots, and one set of versions.

On a mesh each replica (`sharding.list_replicas`) has a copy of the weights, spread over its devices by the
rules of training, and its own lanes. Lanes of different replicas share no device. Several processes have one lane, in
process 0, which has all of them compute its forwards together (`cojax.rollout.replicas`). All this was measured on CPU
devices only. Accelerators may add the parts of three devices or more in an order that follows the slot; results would
then be the same to rounding only.
"""

import collections
import dataclasses
import functools
import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cojax.environment import EngineError, waiting
from cojax.learner.placement import ONE_PROCESS, Hosts, to_host
from cojax.policy import parameters
from cojax.policy.cached import unstack
from cojax.policy.config import ModelConfig
from cojax.policy.moe import RouteShape
from cojax.policy.parameters import Parameter, choose_dtype
from cojax.policy.sharding import check_divides, list_replicas, partition
from cojax.policy.transformer import Params
from cojax.rollout.batching import Batcher, Request, Session, draw_uniforms
from cojax.rollout.engine import BusyTime, Completion, Sampling, Weights, check_length, check_prompt
from cojax.rollout.forwards import Calls, Forwards
from cojax.rollout.pages import CacheShape
from cojax.rollout.replicas import LedForwards, ReplicaForwards, is_on, spread, spread_leaves, view
from cojax.settings.tree import Settings

_PATIENCE_S = 10.0  # seconds without any forward, after which a waiting request's clock runs again


class LaneForwards(Protocol):
    """Computes for the batchers of a lane, with weights `params`. Only the lane's thread uses it."""

    params: Params

    def run_all(self, plans: Sequence[Calls]) -> Sequence[Any]:
        """Runs the plan of each batcher, and returns its result."""

    def wait(self) -> None:
        """Waits until the devices have finished their work."""


class Lane:
    """Serves sessions on the slots of its batchers. The thread calls `on_failure` with the reason of a failure."""

    def __init__(
        self,
        batchers: Sequence[Batcher],
        forwards: LaneForwards,
        busy_time: BusyTime,
        on_failure: Callable[[str], None],
    ) -> None:
        self._busy, self._on_failure = busy_time, on_failure
        self._forward_count = 0
        # Used by the thread; others only read the counts.
        self.batchers, self.forwards = batchers, forwards
        # Shared with callers, under the lock.
        self._condition = threading.Condition()
        self._sessions: dict[str, Session] = {}
        self._queue: collections.deque[Request] = collections.deque()
        self._released_sessions: list[Session] = []
        # Weights that the thread has not taken yet: their version, the parameters, and the future that it sets.
        self._pending_weights: tuple[int, Params, Future[None]] | None = None
        self._is_resting = self._is_idle = False
        self._failure = ""
        self._thread = threading.Thread(target=self._run, name="LocalEngine", daemon=True)
        self._thread.start()

    # --- called from any thread ---

    def load(self, version: int, params: Params) -> Future[None]:
        """Hands weights to the thread, which takes them once no request is running and then sets the future.

        Both this call and the future raise EngineError if the lane is down.
        """
        with self._condition:
            self._condition.wait_for(lambda: self._pending_weights is None or self._failure)
            self._raise_if_down()
            future = Future[None]()
            self._pending_weights = version, params, future
            self._condition.notify_all()
            return future

    def pause(self) -> None:
        """Returns once the devices compute nothing for this lane; no forward begins until `resume`."""
        with self._condition:
            self._is_resting, self._is_idle = True, False
            self._condition.notify_all()
            self._condition.wait_for(lambda: self._is_idle or self._failure)

    def resume(self) -> None:
        """Ends a rest, if there is one."""
        with self._condition:
            self._is_resting = False
            self._condition.notify_all()

    def submit(self, prompt: list[int], sampling: Sampling, uniforms: np.ndarray, session: str) -> Request:
        """Queues a request to continue `prompt`, which must begin with all earlier tokens of the session.

        Raises ValueError, or EngineError when the lane is down; the request's future raises it when the session is
        released or the lane goes down.
        """
        with self._condition:
            self._raise_if_down()
            session_state = self._sessions.setdefault(session, Session())
            if session_state.request is not None:
                raise ValueError(f"session {session!r} is still generating; one call at a time")
            if prompt[: len(session_state.tokens)] != session_state.tokens:
                raise ValueError(
                    f"the prompt of session {session!r} does not extend its first {len(session_state.tokens)} tokens; "
                    "append to what was sampled, or release the session"
                )
            request = session_state.request = Request(session_state, prompt, sampling, uniforms)
            self._queue.append(request)
            self._condition.notify_all()
        return request

    def wait_for_start(self, request: Request) -> None:
        """Waits while others run before the request, which may find no page; their deadlines bound this."""
        is_moving = True
        while is_moving and not request.started.is_set():
            forward_count = self._forward_count
            with waiting():
                request.started.wait(_PATIENCE_S)
            is_moving = self._forward_count > forward_count

    def release(self, session: str) -> None:
        """Forgets the session, if known, and frees its slot. A running call of the session raises EngineError."""
        with self._condition:
            session_state = self._sessions.pop(session, None)
            if session_state is None:
                return
            if session_state.request is not None:
                _abort_request(session_state.request, f"session {session!r} was released while generating")
            self._released_sessions.append(session_state)
            self._condition.notify_all()

    def stop(self, reason: str) -> None:
        """Stops the thread after its current forward; waiting callers get EngineError. May be called twice."""
        with self._condition:
            self._failure = self._failure or reason
            for session_state in self._sessions.values():
                if session_state.request is not None:
                    _abort_request(session_state.request, self._failure)
            if self._pending_weights is not None and not self._pending_weights[-1].done():
                self._pending_weights[-1].set_exception(EngineError(self._failure))
            self._condition.notify_all()

    def join(self) -> None:
        """Returns once the thread has ended, after `stop`."""
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _raise_if_down(self) -> None:
        if self._failure:
            raise EngineError(self._failure)

    # --- the thread ---

    def _run(self) -> None:
        try:
            while self._admit_requests():
                with self._busy:
                    results = self.forwards.run_all([batcher.plan() for batcher in self.batchers])
                    requests = [
                        request
                        for batcher, result in zip(self.batchers, results, strict=True)
                        for request in batcher.take(result)
                    ]
                self._forward_count += 1
                if requests:
                    self._deliver(requests)
        except BaseException as error:  # of any type: callers would wait for ever
            self._on_failure(f"the engine failed: {type(error).__name__}: {error}")

    def _admit_requests(self) -> bool:
        """Admits queued requests and new weights, and waits until something can run. False once the lane is down."""
        with self._condition:
            while not self._failure:
                if self._is_resting:
                    self.forwards.wait()
                    self._is_idle = True
                    self._condition.notify_all()
                    self._condition.wait()
                    continue
                for batcher in self.batchers:
                    batcher.drop_aborted()
                for session in self._released_sessions:
                    if session.batcher is not None:
                        session.batcher.free_slot(session)
                self._released_sessions.clear()
                if self._pending_weights is not None and not self._is_busy:
                    version, self.forwards.params, future = self._pending_weights
                    for batcher in self.batchers:
                        batcher.begin_version(version)
                    self._pending_weights = None
                    future.set_result(None)
                    self._condition.notify_all()
                while self._queue and self._pending_weights is None:
                    if not (request := self._queue.popleft()).result.done():
                        self._admit(request)
                if self._is_busy:
                    return True
                self._condition.wait()
            return False

    @property
    def _is_busy(self) -> bool:
        return any(batcher.is_busy for batcher in self.batchers)

    def _admit(self, request: Request) -> None:
        """Admits the request to its session's batcher, which is the one with most free slots at the first request."""
        session = request.session
        if session.batcher is None:
            session.batcher = max(self.batchers, key=lambda batcher: batcher.free_slot_count)
        session.batcher.admit(request)

    def _deliver(self, requests: list[Request]) -> None:
        with self._condition:
            for request in requests:
                if request.result.done():
                    continue
                request.session.tokens = request.prompt + request.new_tokens
                request.session.request = None
                assert request.completion is not None
                request.result.set_result(request.completion)


def _abort_request(request: Request, reason: str) -> None:
    """Wakes the caller; the thread drops an aborted request before its next forward. The lock must be held."""
    if not request.result.done():
        request.result.set_exception(EngineError(reason))
    request.started.set()


class LocalEngine:
    """Serves `config` from this process; `load` must come before the first `generate`.

    It holds `slots` conversations, the same number in each lane; further ones wait for a release. Together they hold at
    most `cache_tokens` tokens, by default all that they can have; further requests wait for pages. There are `lanes`
    lanes, or as many for each replica of a `mesh`. Use one on an accelerator, and one for every core or two on
    a CPU. A conversation has at most `max_length` tokens, prompt and completion together. The prefill shapes are
    `prefill_rows` × each of `prefill_chunks`. With `routes`, completions report which experts tokens went through.

    Programs of several devices that two threads start may wait for each other for ever. So a replica of several devices
    has one lane, and other threads may start programs there only between `rest` and `load`, while the lane starts none.

    At temperature 0 the most likely token is chosen, and log-probabilities are those at temperature 1.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        slots: int = 128,
        lanes: int = Settings.engine.lanes,
        max_length: int = 320,
        cache_tokens: int | None = None,
        prefill_rows: int = Settings.engine.prefill_rows,
        prefill_chunks: Sequence[int] = (16,),
        routes: bool = False,
        mesh: Mesh | None = None,
        hosts: Hosts = ONE_PROCESS,
    ) -> None:
        check_length(max_length, config.max_position_embeddings)
        if min(slots, lanes, prefill_rows, max_length - 1, *prefill_chunks) < 1:
            raise ValueError("slots, lanes, prefill_rows and prefill_chunks must be at least 1, max_length at least 2")
        self._mesh, self._hosts = mesh, hosts
        self._replicas: Sequence[Mesh | None] = (None,) if mesh is None else list_replicas(mesh)
        self._is_spread = hosts is not ONE_PROCESS
        self._has_device_groups = self._is_spread or (mesh is not None and mesh.size > len(self._replicas))
        if self._has_device_groups and lanes > 1:
            raise ValueError(
                f"lanes is {lanes}; a replica of several devices (tensor × expert) has one, and so have several "
                "processes, so set it to 1"
            )
        batcher_count = lanes * len(self._replicas)
        if slots % batcher_count:
            replicas = f"{len(self._replicas)} replicas (data × fsdp × context)"
            on = "" if mesh is None else f", {lanes} on each of the mesh's {replicas}"
            raise ValueError(
                f"slots {slots} is no multiple of lanes {batcher_count}{on}; every lane holds equally many"
            )
        if mesh is not None:
            check_divides(config, mesh)
        if routes:
            RouteShape.of(config)
        if routes and self._is_spread:
            raise ValueError("several processes do not report which experts tokens went through; leave routes unset")
        self._config, self._max_length, self.tells_routes, self.slots = config, max_length, routes, slots
        self._busy = BusyTime()
        # Guarded by the lock. If a lane's lock is needed too, this one is taken first.
        self._lock = threading.Lock()
        self._has_weights, self._failure = False, ""
        self._lane_by_session: dict[str, int] = {}  # session → index of its lane
        self._waiting_events: dict[str, threading.Event] = {}  # sessions without a lane, in order of arrival
        own_slots = slots // batcher_count
        shape = CacheShape.of(own_slots, max_length, None if cache_tokens is None else cache_tokens // batcher_count)
        make = functools.partial(Batcher, config, own_slots, shape, prefill_rows, prefill_chunks, routes)
        self._lanes = self._make_lanes([make() for _ in range(batcher_count)], own_slots, shape)
        self._free_slots = [slots // len(self._lanes)] * len(self._lanes)

    def _make_lanes(self, batchers: Sequence[Batcher], slot_count: int, shape: CacheShape) -> list[Lane]:
        """A lane for each batcher, whose slots these are; several processes have one for all batchers."""
        sizes = shape.page_count, shape.page_length
        if self._is_spread:
            assert self._mesh is not None
            shape_text = json.dumps(dataclasses.asdict(self._config))
            with self._hosts.operation("build_engine", shape_text, slot_count, *sizes):
                own = ReplicaForwards(self._config, slot_count, *sizes, self._mesh)
            return [Lane(batchers, LedForwards(own, self._hosts), self._busy, self._stop)]
        make = functools.partial(Forwards, self._config, *sizes, self.tells_routes)
        return [
            Lane([batcher], make(self._replicas[index % len(self._replicas)]), self._busy, self._stop)
            for index, batcher in enumerate(batchers)
        ]

    @property
    def busy_seconds(self) -> float:
        """Wall time spent in forwards so far."""
        return self._busy.total_seconds

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that were computed so far. The last token of each prompt does not count: it is decoded."""
        return sum(batcher.computed for lane in self._lanes for batcher in lane.batchers)

    @property
    def reused_tokens(self) -> int:
        """Prompt tokens whose keys and values another conversation has computed, in whole prefill chunks."""
        return sum(batcher.reused for lane in self._lanes for batcher in lane.batchers)

    def load(self, weights: Weights) -> None:
        """Takes `weights` and returns once they are in use.

        A completion is sampled by one version: running ones finish first, new ones wait. Caches of open sessions are
        recomputed on their next turn. Raises ValueError for arrays that do not fit or are not finite, EngineError if
        the engine is down.
        """
        self.rest()
        try:
            copies = jax.block_until_ready(self._make_copies(weights))
        finally:
            for lane in self._lanes:
                lane.resume()
        # The lanes of a replica share its arrays. Each takes them when its own requests are done, without waiting for
        # the others.
        futures = [lane.load(weights.version, copies[index % len(copies)]) for index, lane in enumerate(self._lanes)]
        with self._lock:
            self._has_weights = True
        for future in futures:
            future.result()

    def _make_copies(self, weights: Weights) -> list[Params]:
        """A copy for each replica, as `unstack` returns it; several processes have one of all replicas.

        Arrays of the learner's mesh go from device to device, others straight from the host to the devices.
        """
        params = weights.params() if self._mesh is not None and weights.params is not None else None
        if self._mesh is not None and params is not None and is_on(params, self._mesh):
            with self._hosts.operation("spread", params) as record:
                copies, is_finite = record(spread(self._config, self._mesh, params))
        elif self._mesh is not None and self._is_spread:
            table = parameters.parameters(self._config)
            host_params = parameters.from_hf(self._config, weights.arrays(), choose_dtype, lambda row, leaf: leaf)
            leaves: Any = tuple(parameters.get_leaf(host_params, row) for row in table)
            with self._hosts.operation("spread_leaves", leaves) as record:
                copies, is_finite = record(spread_leaves(self._config, self._mesh, leaves))
        else:
            return self._place_copies(weights)
        if not to_host(is_finite):
            raise ValueError(f"weights version {weights.version} is not finite; training has diverged")
        if self._is_spread:
            return [copies]
        return [view(copies, replica) for replica in self._replicas if replica is not None]

    def _place_copies(self, weights: Weights) -> list[Params]:
        """A copy for each replica of weights that come as arrays on the host."""

        def place_array(row: Parameter, leaf: np.ndarray) -> tuple[jax.Array | list[jax.Array], ...]:
            has_layers = row.axes[0] == "layers"
            spec = PartitionSpec(*partition(row)[has_layers:])
            shardings = [None if replica is None else NamedSharding(replica, spec) for replica in self._replicas]
            copies = [jax.device_put(list(leaf) if has_layers else leaf, sharding) for sharding in shardings]
            if not all(bool(jnp.isfinite(array).all()) for array in jax.tree.leaves(copies[0])):
                raise ValueError(f"weights version {weights.version}: {row.name} is not finite; training has diverged")
            return tuple(copies)

        tree = parameters.from_hf(self._config, weights.arrays(), choose_dtype, place_array)
        map_copies = functools.partial(jax.tree.map, is_leaf=lambda leaf: isinstance(leaf, tuple))
        return [unstack(self._config, map_copies(lambda leaf, i=i: leaf[i], tree)) for i in range(len(self._replicas))]

    def generate(self, prompt: Sequence[int], sampling: Sampling, *, session: str, seed: tuple[int, ...]) -> Completion:
        """Continues `prompt`, the whole conversation so far: it must begin with all earlier tokens of the session.

        Raises OutOfContext if the prompt leaves no room for a token, ValueError for a prompt that does not extend the
        session or another wrong argument, EngineError if the engine fails, is closed, or the session is released.
        """
        tokens = check_prompt(prompt, self._config.vocab_size, self._max_length)
        uniforms = draw_uniforms(seed, min(sampling.max_tokens, self._max_length - len(tokens)))
        self._wait_for_slot(session)
        with self._lock:
            # Look-up and submission share the lock: a session released in between would never free its slot.
            if session not in self._lane_by_session:
                raise EngineError(self._failure or f"session {session!r} was released while it waited for a slot")
            lane = self._lanes[self._lane_by_session[session]]
            request = lane.submit(tokens, sampling, uniforms, session)
        lane.wait_for_start(request)
        return request.result.result()

    def release(self, session: str) -> None:
        """Forgets the session, if known, and frees its slot. A running call of the session raises EngineError."""
        with self._lock:
            lane_index = self._lane_by_session.pop(session, None)
            if lane_index is not None:
                self._lanes[lane_index].release(session)
                self._free_slots[lane_index] += 1
                self._assign_lanes()
            elif session in self._waiting_events:
                self._waiting_events.pop(session).set()

    def rest(self) -> None:
        """Does nothing, unless a replica has several devices: then it returns once no forward runs, and none begins
        until the next `load`. Open sessions keep their cache.
        """
        if self._has_device_groups:
            for lane in self._lanes:
                lane.pause()

    def close(self) -> None:
        """Stops the threads; waiting callers get EngineError. May be called twice."""
        self._stop("the engine was closed")
        for lane in self._lanes:
            lane.join()

    def _wait_for_slot(self, session: str) -> None:
        """Waits until the session has a lane, or is released. A new session gets the lane with the most free slots."""
        with self._lock:
            if self._failure:
                raise EngineError(self._failure)
            if not self._has_weights:
                raise EngineError("the engine has no weights; call load first")
            if session in self._lane_by_session:
                return
            if session in self._waiting_events:
                raise ValueError(f"session {session!r} is still waiting for a slot; one call at a time")
            slot_event = self._waiting_events[session] = threading.Event()
            self._assign_lanes()
        with waiting():  # for the sessions that have slots; their deadlines bound this
            slot_event.wait()

    def _assign_lanes(self) -> None:
        """Gives waiting sessions lanes, in order of arrival, while slots are free. The lock must be held."""
        while self._waiting_events and any(self._free_slots):
            session, lane_index = next(iter(self._waiting_events)), self._free_slots.index(max(self._free_slots))
            self._lane_by_session[session] = lane_index
            self._free_slots[lane_index] -= 1
            self._waiting_events.pop(session).set()

    def _stop(self, reason: str) -> None:
        with self._lock:
            self._failure = self._failure or reason
            for slot_event in self._waiting_events.values():
                slot_event.set()
            self._waiting_events.clear()
        for lane in self._lanes:
            lane.stop(self._failure)
