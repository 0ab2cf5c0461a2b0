"""Work on threads of its own: its result comes as a Future, and a block may run beside it."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TypeVar

_T = TypeVar("_T")
_BEGUN: weakref.WeakSet[threading.Thread] = weakref.WeakSet()  # the threads of `in_background`


def on_thread(name: str, work: Callable[[], _T]) -> Future[_T]:
    """Starts `work` on a daemon thread called `name`, and returns the future of its result or exception."""
    return _start(name, work)[0]


def _start(name: str, work: Callable[[], _T]) -> tuple[Future[_T], threading.Thread]:
    result = Future[_T]()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return result, thread


@contextlib.contextmanager
def in_background(name: str, work: Callable[[Callable[[], bool]], _T]) -> Iterator[Future[_T]]:
    """Runs `work` on a thread called `name` while the block runs, and yields the future of its result.

    The argument of `work` tells whether the result is no longer wanted. That turns true when the block ends: ask for
    the result within the block. A block that fails does not wait for the work, whose result is then lost.
    """
    unwanted = threading.Event()
    result, thread = _start(name, lambda: work(unwanted.is_set))
    _BEGUN.add(thread)
    try:
        yield result
    finally:
        unwanted.set()


def settle(seconds: float) -> bool:
    """Waits at most `seconds` for all work of `in_background` to end, and returns whether it has.

    Work that is no longer wanted may still be in the middle of a paid call: this lets it record the reply.
    """
    deadline = time.monotonic() + seconds
    for thread in list(_BEGUN):
        thread.join(max(0.0, deadline - time.monotonic()))
    return not any(thread.is_alive() for thread in _BEGUN)
