"""Makes the helpers beside the tests importable from every folder, and keeps tests from changing one another."""

import ctypes
import logging
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _the_process_stays_as_it_was() -> Iterator[None]:
    """A command that is called in this process takes back what it set for the whole of it."""
    before = _settings()
    yield
    assert _settings() == before


_GET_CHILD_SUBREAPER = 37


def _settings() -> dict[str, object]:
    adopts = ctypes.c_int()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_GET_CHILD_SUBREAPER, ctypes.byref(adopts), 0, 0, 0)
    return {
        "adopts orphans": adopts.value,
        "SIGTERM": signal.getsignal(signal.SIGTERM),
        "SIGINT": signal.getsignal(signal.SIGINT),
        "warnings": [logging.getLogger(name).level <= logging.WARNING for name in ("cojax", "environments")],
    }
