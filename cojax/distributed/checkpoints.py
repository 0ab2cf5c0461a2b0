"""Arrays of checkpoints that all processes write and read together, into a folder that process 0 names."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cojax.distributed.lead import Lead
from cojax.learner.train_state import TrainState
from cojax.storage.checkpoint import ArrayFiles

_SECOND = "second"


@dataclasses.dataclass(frozen=True)
class LeadArrayFiles:
    """`ArrayFiles` of process 0: of a state, or of one and the second agent's under its own name."""

    lead: Lead

    def save(self, folder: Path, arrays: Any) -> None:
        target, second = divided(arrays)
        self.lead.run("save", lambda *_: ArrayFiles().save(folder, arrays), str(folder), target, second)

    def restore(self, folder: Path, like: Any) -> Any:
        target, second = divided(like)

        def restored(*_: Any) -> tuple[TrainState, TrainState | None]:
            return divided(ArrayFiles().restore(folder, like))

        target, second = self.lead.run("restore", restored, str(folder), second is not None)
        return united(target, second)


def united(target: TrainState, second: TrainState | None) -> Any:
    """What a checkpoint holds of these states."""
    return target if second is None else {**vars(target), _SECOND: second}


def divided(arrays: Any) -> tuple[TrainState, TrainState | None]:
    """The states of what a checkpoint holds."""
    if not isinstance(arrays, Mapping):
        return arrays, None
    return TrainState(**{name: value for name, value in arrays.items() if name != _SECOND}), arrays[_SECOND]
