"""Runs an event loop in its own thread, for coroutines that hundreds of other threads call."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from cojax.environment import EngineError

_T = TypeVar("_T")


class LoopThread:
    """Runs coroutines for other threads until `close`. From then on all callers, also waiting ones, get EngineError.

    `closed` is the message of that error.
    """

    def __init__(self, name: str, closed: str) -> None:
        self._entry = threading.Lock()  # no call enters the event loop once `_down` is set
        self._down, self._closed = "", closed
        self._calls: set[asyncio.Task[Any]] = set()
        self._detached: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def raise_if_closed(self) -> None:
        """Raises EngineError if the loop is closed."""
        if self._down:
            raise EngineError(self._down)

    def call(self, coroutine: Coroutine[Any, Any, _T], cancelled: str = "") -> _T:
        """The coroutine's result. Raises EngineError if the loop is closed, or, with the message `cancelled`, if the
        coroutine is cancelled."""
        with self._entry:
            if self._down:
                coroutine.close()
                raise EngineError(self._down)
            future = asyncio.run_coroutine_threadsafe(self._tracked(coroutine), self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise EngineError(self._down or cancelled) from None

    def call_soon(self, function: Callable[[str], None], argument: str) -> None:
        """Calls the function on the loop without waiting for it; does nothing once the loop is closed."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, argument)

    def run_detached(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Runs a coroutine that nothing but `close` waits for. Must be called on the loop."""
        task = self._loop.create_task(coroutine)
        self._detached.add(task)
        task.add_done_callback(self._detached.discard)

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Cancels all calls, runs `last`, and ends loop and thread. Returns False if it was closed before."""
        with self._entry:
            if self._down:
                return False
            self._down = self._closed
        asyncio.run_coroutine_threadsafe(self._cancel_and_run(last), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        return True

    async def _tracked(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        try:
            return await coroutine
        finally:
            self._calls.discard(task)

    async def _cancel_and_run(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        # These are all calls: every call that entered before has registered itself on the loop by now.
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await asyncio.gather(*self._detached, return_exceptions=True)
        await last()
