"""Runs work on its own thread: the result comes as a Future, and a block may run meanwhile.

The clock for deadlines counts the seconds in which this process could run, not those in which it was stopped.
"""

import contextlib
import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import Any, TypeVar

_T = TypeVar("_T")
_BACKGROUND_WORK: weakref.WeakSet[Future[Any]] = weakref.WeakSet()  # the futures of `in_background`
_CALL_INTERVAL_S = 0.2  # seconds between two calls of `seconds_left`
# Seconds between two readings of the clock, and the most seconds that such a gap counts. A longer gap means that the
# process was stopped.
_READ_INTERVAL_S, _MAX_GAP_S = 0.1, 0.5


class Interrupted(Exception):
    """Work was asked to stop. Its results so far are not used."""


def run_on_thread(thread_name: str, work: Callable[[], _T]) -> Future[_T]:
    """Starts `work` on a daemon thread called `thread_name`, and returns the future of its result or exception."""
    future = Future[_T]()

    def run_work() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run_work, name=thread_name, daemon=True).start()
    return future


def wait_until_done(future: Future[Any], seconds_left: Callable[[], float]) -> bool:
    """Waits for the result while `seconds_left()`, which is called repeatedly, returns seconds above 0.

    Returns whether the result came.
    """
    while not wait([future], max(0.0, min(_CALL_INTERVAL_S, seconds_left()))).done:
        if seconds_left() <= 0:
            return False
    return True


@contextlib.contextmanager
def in_background(thread_name: str, work: Callable[[Callable[[], bool]], _T]) -> Iterator[Future[_T]]:
    """Runs `work` on a thread called `thread_name` while the block runs, and yields the future of its result.

    The argument of `work` tells whether the result is no longer wanted. It turns true when the block ends, so ask for
    the result within the block. A block that fails does not wait for the work, and its result is lost.
    """
    cancel_event = threading.Event()
    future = run_on_thread(thread_name, lambda: work(cancel_event.is_set))
    _BACKGROUND_WORK.add(future)
    try:
        yield future
    finally:
        cancel_event.set()


def await_background(timeout_s: float) -> bool:
    """Waits at most `timeout_s` seconds for all work of `in_background` to end, and returns whether it has.

    Work that is no longer wanted may still be in the middle of a paid call: this lets it record the reply.
    """
    return not wait(list(_BACKGROUND_WORK), timeout_s).not_done


def make_clock() -> Callable[[], float]:
    """`time.monotonic` without the time in which the process was stopped: a long gap between two readings."""
    lock, last_reading, stopped_s = threading.Lock(), time.monotonic(), 0.0

    def read_clock() -> float:
        nonlocal last_reading, stopped_s
        with lock:
            previous_reading, last_reading = last_reading, time.monotonic()
            stopped_s += max(0.0, last_reading - previous_reading - _MAX_GAP_S)
            return last_reading - stopped_s

    return read_clock


@functools.cache
def _get_shared_clock() -> Callable[[], float]:
    """The clock of this process, which a thread reads often."""
    read_clock = make_clock()

    def keep_reading() -> None:
        while True:
            time.sleep(_READ_INTERVAL_S)
            read_clock()

    threading.Thread(target=keep_reading, name="clock", daemon=True).start()
    return read_clock


def running() -> float:
    """Seconds on a clock that stands still while this process is stopped, or so starved that no thread of it runs."""
    return _get_shared_clock()()


# In a forked process the thread is gone, and the lock may be held for ever.
os.register_at_fork(after_in_child=_get_shared_clock.cache_clear)
