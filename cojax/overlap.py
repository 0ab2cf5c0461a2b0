"""Work beside a block: on a thread of its own, waited for when the block is left."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TypeVar

_T = TypeVar("_T")


@contextlib.contextmanager
def beside(name: str, work: Callable[[Callable[[], bool]], _T]) -> Iterator[Future[_T]]:
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

    threading.Thread(target=run, name=name, daemon=True).start()
    try:
        yield found
    finally:
        unwanted.set()
