"""Processes of the suite: each leads a session, and gets SIGTERM when the suite ends, also where that is killed."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]  # of the code: commands run there, and find the experiments' files


def start_child(arguments: Sequence[str], **settings: Any) -> subprocess.Popen[Any]:
    """Starts Python with the arguments."""
    command = [sys.executable, "-m", "experiments.study.launch", "-", str(os.getpid()), *arguments]
    return subprocess.Popen(command, cwd=ROOT, start_new_session=True, **settings)


def end_child(child: subprocess.Popen[Any]) -> None:
    """Ends a process and all that it started in its session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
