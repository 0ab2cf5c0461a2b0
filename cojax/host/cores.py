"""The cores that this process may use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """How many there are; less than the machine has where a container or `taskset` confines the process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
