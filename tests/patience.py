"""How long a test waits for what must come, and what it may leave running: one place for both.

A wait of ten seconds on an idle machine is a wait of forty on one that is four times as slow.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from types import CodeType
from typing import Any

_REFERENCE_S = 0.02  # seconds of `_work` on an idle core of 2020
_MAX_FACTOR = 8.0
_GRACE_S = 5.0  # seconds in which a thread that was told to end does
_ROOT = Path(__file__).parents[1]
# Whoever starts a thread with a target here ends it. Others are of libraries, or of objects that tests share.
_OWN_FOLDERS = (str(_ROOT / "tests"), str(_ROOT / "cojax/distributed"))


def _do_work() -> int:
    return sum(number * number % 7 for number in range(200_000))


@functools.cache
def factor() -> float:
    """How many times as long as on an idle machine plain Python takes here, 1 to 8; measured once a session."""
    durations_s = []
    for _ in range(3):
        started_at = time.perf_counter()
        _do_work()
        durations_s.append(time.perf_counter() - started_at)
    return min(_MAX_FACTOR, max(1.0, max(durations_s) / _REFERENCE_S))


def patience(seconds: float) -> float:
    """The seconds to wait here for what takes at most so many on an idle machine."""
    return seconds * factor()


def outliving(before: Collection[threading.Thread]) -> list[threading.Thread]:
    """The threads of a test that still run once all had time to end; `before` are those that ran before the test."""
    own_threads = [thread for thread in threading.enumerate() if thread not in before and _is_own(thread)]
    deadline = time.monotonic() + (patience(_GRACE_S) if own_threads else 0.0)
    for thread in own_threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return [thread for thread in own_threads if thread.is_alive()]


def _is_own(thread: threading.Thread) -> bool:
    target = getattr(thread, "_target", None)
    code = _find_code(target)
    if code is None:  # a library's own kind of thread
        return False
    if code.co_filename.endswith(("concurrent/futures/thread.py", "socketserver.py")):
        return code.co_name == "serve_forever"  # not the workers of pools, nor the requests of a server
    return not thread.daemon or code.co_filename.startswith(_OWN_FOLDERS)


def _find_code(target: Any) -> CodeType | None:
    while isinstance(target, functools.partial):
        target = target.func
    return getattr(getattr(target, "__func__", target), "__code__", None)


def takes_linear_time(read: Callable[[str], object], said: str, length: int) -> bool:
    """Whether eight times the text takes at most 24 times as long and 0.2 s; quadratic time would be 64 times as long.

    The quickest of three long texts counts: the garbage collector may take longer than any of them.
    """

    def measure(length: int) -> float:
        text = (said * length)[:length]
        began = time.process_time()
        read(text)
        return time.process_time() - began

    max_s = 24 * measure(length) + 0.2
    return any(measure(8 * length - index) < max_s for index in range(3))
