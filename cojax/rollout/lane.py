"""One lane of the local engine: a thread that owns a share of the slots, with their device arrays, and runs them."""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Callable

import numpy as np

from cojax.environment import EngineError
from cojax.policy.transformer import Params
from cojax.rollout.batching import Batcher, Request, Session
from cojax.rollout.busy_time import BusyTime
from cojax.rollout.engine import Completion, Sampling

_POLL_SECONDS = 1.0  # between two checks, by a waiting caller, of whether the thread is alive


@dataclasses.dataclass(eq=False)
class _Update:
    """New weights that the thread has not taken yet."""

    version: int
    params: Params
    taken: threading.Event = dataclasses.field(default_factory=threading.Event)


class Lane:
    """Serves sessions on the slots of one Batcher. The thread calls `on_failure` with the reason of a failure."""

    def __init__(self, make: Callable[[], Batcher], busy: BusyTime, on_failure: Callable[[str], None]) -> None:
        self._busy, self._on_failure = busy, on_failure
        self.batcher = make()  # the thread's own; others only read its counts
        # Shared with callers, under the lock.
        self._wake = threading.Condition()
        self._sessions: dict[str, Session] = {}
        self._queue: collections.deque[Request] = collections.deque()
        self._released: list[Session] = []
        self._update: _Update | None = None
        self._resting = self._idle = False
        self._down = ""
        self._thread = threading.Thread(target=self._run, name="LocalEngine", daemon=True)
        self._thread.start()

    # --- called from any thread ---

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def load(self, version: int, params: Params) -> Callable[[], None]:
        """Hands weights to the thread, which takes them once no request is running.

        Returns a function that waits for this. Both raise EngineError if the lane is down.
        """
        update = _Update(version, params)
        with self._wake:
            while self._update is not None and not self._down:
                self._wake.wait(_POLL_SECONDS)
            self._raise_if_down()
            self._update = update
            self._wake.notify_all()

        def wait() -> None:
            self._await(update.taken)
            if self._update is update:
                self._raise_if_down()

        return wait

    def rest(self) -> None:
        """Returns once the devices compute nothing for this lane; no forward begins until `resume`."""
        with self._wake:
            self._resting, self._idle = True, False
            self._wake.notify_all()
            while not self._idle and not self._down and self.alive:
                self._wake.wait(_POLL_SECONDS)

    def resume(self) -> None:
        """Ends a rest, if there is one."""
        with self._wake:
            self._resting = False
            self._wake.notify_all()

    def submit(self, prompt: list[int], sampling: Sampling, chances: np.ndarray, session: str) -> Request:
        """Queues a request to continue `prompt`, which must begin with all earlier tokens of the session.

        Raises ValueError, or EngineError when the lane is down.
        """
        with self._wake:
            self._raise_if_down()
            state = self._sessions.setdefault(session, Session())
            if state.request is not None:
                raise ValueError(f"session {session!r} is still generating; one call at a time")
            if prompt[: len(state.tokens)] != state.tokens:
                raise ValueError(
                    f"the prompt of session {session!r} does not extend its first {len(state.tokens)} tokens; "
                    "append to what was sampled, or release the session"
                )
            request = state.request = Request(state, prompt, sampling, chances)
            self._queue.append(request)
            self._wake.notify_all()
        return request

    def result(self, request: Request) -> Completion:
        """Waits for a request's completion. Raises EngineError when the session is released or the lane goes down."""
        self._await(request.done)
        if request.error or request.completion is None:
            raise EngineError(request.error)
        return request.completion

    def release(self, session: str) -> None:
        """Forgets the session, if known, and frees its slot. A running call of the session raises EngineError."""
        with self._wake:
            state = self._sessions.pop(session, None)
            if state is None:
                return
            if state.request is not None:
                self._abort(state.request, f"session {session!r} was released while generating")
            else:
                self._released.append(state)
            self._wake.notify_all()

    def stop(self, reason: str) -> None:
        """Stops the thread after its current forward; waiting callers get EngineError. May be called twice."""
        with self._wake:
            self._down = self._down or reason
            for session in self._sessions.values():
                if session.request is not None:
                    self._abort(session.request, self._down)
            if self._update is not None:
                self._update.taken.set()
            self._wake.notify_all()

    def join(self) -> None:
        """Returns once the thread has ended, after `stop`."""
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _raise_if_down(self) -> None:
        if self._down:
            raise EngineError(self._down)

    def _await(self, event: threading.Event) -> None:
        while not event.wait(_POLL_SECONDS):
            if not self.alive:
                self.stop("the engine thread died")

    def _abort(self, request: Request, reason: str) -> None:
        """Wakes the caller; the thread drops the request before its next forward. The lock must be held."""
        request.error = reason
        request.done.set()

    # --- the thread ---

    def _run(self) -> None:
        try:
            while self._admit():
                with self._busy:
                    finished = self.batcher.forward()
                if finished:
                    self._deliver(finished)
        except Exception as error:
            self._on_failure(f"the engine failed: {type(error).__name__}: {error}")

    def _admit(self) -> bool:
        """Admits queued requests and new weights, and waits until something can run. False once the lane is down."""
        with self._wake:
            while not self._down:
                if self._resting:
                    self.batcher.wait()
                    self._idle = True
                    self._wake.notify_all()
                    self._wake.wait()
                    continue
                self.batcher.drop_aborted()
                for session in self._released:
                    self.batcher.free(session)
                self._released.clear()
                if self._update is not None and not self.batcher.busy:
                    self._take(self._update)
                if self._update is None:
                    self._admit_requests()
                if self.batcher.busy:
                    return True
                self._wake.wait()
            return False

    def _take(self, update: _Update) -> None:
        self.batcher.use(update.version, update.params)
        self._update = None
        update.taken.set()
        self._wake.notify_all()

    def _admit_requests(self) -> None:
        """Admits queued requests in order of arrival; one without a free slot keeps its place in the queue."""
        waiting = collections.deque[Request]()
        for request in self._queue:
            if request.error:
                self.batcher.free(request.session)
            elif not self.batcher.admit(request):
                waiting.append(request)
        self._queue = waiting

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
