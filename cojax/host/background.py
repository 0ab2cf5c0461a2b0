"""Work beside a block: on a thread of its own, whose result is asked for before the block is left."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TypeVar

_T = TypeVar("_T")
_BEGUN: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


@contextlib.contextmanager
def in_background(name: str, work: Callable[[Callable[[], bool]], _T]) -> Iterator[Future[_T]]:
    """Begins `work` on a thread called `name` and yields its result to come.

    The argument of `work` tells whether the result is still wanted: a block that fails does not wait for it, and what
    it finds then is lost. The result must be asked for within the block, or it is not wanted any more.
    """
    unwanted, found = threading.Event(), Future[_T]()

    def run() -> None:
        try:
            found.set_result(work(unwanted.is_set))
        except BaseException as error:
            found.set_exception(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    _BEGUN.add(thread)
    thread.start()
    try:
        yield found
    finally:
        unwanted.set()


def settle(seconds: float) -> bool:
    """Waits, for at most so long, until no work is under way that was begun here; whether that is so.

    What nobody waits for any more may still be in the middle of a call that is paid for: this lets it note the reply.
    """
    deadline = time.monotonic() + seconds
    for thread in list(_BEGUN):
        thread.join(max(0.0, deadline - time.monotonic()))
    return not any(thread.is_alive() for thread in _BEGUN)
