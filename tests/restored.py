"""What a run does with a checkpoint: finds the newest sound step, says which are damaged, and reads the arrays."""

import logging
from typing import Any

from cojax.storage.checkpoint import Checkpointer

_LOG = logging.getLogger("cojax.storage.checkpoint")


def restored(checkpointer: Checkpointer, like: Any) -> tuple[int, Any, dict[str, Any]] | None:
    """(step, arrays, host) of the newest sound step; None where nothing was ever saved."""
    if (newest := checkpointer.find_newest()) is None:
        return None
    step, host, faults = newest
    for fault in faults:
        _LOG.warning("%s", fault)
    return step, checkpointer.read_arrays(step, like), host
