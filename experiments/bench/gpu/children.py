"""Processes of the suite: each leads a session of its own, and ends with the suite, also where that is killed."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from environments.worker import kernel

ROOT = Path(__file__).parents[3]  # of the code: commands run there, and find the experiments' files


def start(command: Sequence[str], **settings: Any) -> subprocess.Popen[Any]:
    ends_with_us = functools.partial(kernel.prctl, kernel.PDEATHSIG, signal.SIGKILL)
    return subprocess.Popen(command, cwd=ROOT, start_new_session=True, preexec_fn=ends_with_us, **settings)


def end(child: subprocess.Popen[Any]) -> None:
    """Ends a process and all that it started in its session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
