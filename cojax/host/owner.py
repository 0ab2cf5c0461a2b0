"""A command and the process that owns it: what it tells its owner, and that it ends with it.

Only a command that cojax/api started has an owner; for all others `tell` does nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from typing import Any

_TOLD: list[int] = []


def end_with_owner(owner: int, told: int) -> None:
    """Sends this process SIGTERM once the other end of the pipe `owner` is closed; `tell` writes to the pipe `told`."""
    for pipe in (owner, told):
        os.set_inheritable(pipe, False)
    _TOLD[:] = [told]
    threading.Thread(target=_wait, args=(owner,), name="owner", daemon=True).start()


def tell(**facts: Any) -> None:
    """Tells the owner facts about this command, as one line of JSON. An owner that is gone hears nothing."""
    for pipe in _TOLD:
        with contextlib.suppress(OSError):
            os.write(pipe, (json.dumps(facts) + "\n").encode())


def _wait(owner: int) -> None:
    with contextlib.suppress(OSError):
        while os.read(owner, 1):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
