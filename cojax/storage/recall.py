"""Trajectories of earlier steps, read back from the episodes that a run keeps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from cojax.storage.files import Episodes, StorageError
from cojax.types import Trajectory, from_json


@dataclasses.dataclass(frozen=True)
class Recall:
    """Trajectories read back from episodes/, made into records only when they are asked for."""

    records: Mapping[str, Mapping[str, Any]]

    @property
    def ids(self) -> tuple[str, ...]:
        """Episode ids, by step, task and sample."""
        return tuple(self.records)

    def find(self, episode: str) -> Trajectory:
        """The trajectory of that id. Raises KeyError when it is not kept."""
        record = self.records[episode]
        return from_json(Trajectory, {name: value for name, value in record.items() if name != "signals"})


def recall(episodes: Episodes, steps: Iterable[int]) -> Recall:
    """The trajectories of these steps. Raises StorageError where those of one are gone."""
    steps = list(steps)
    for step in steps:
        if not episodes.path(step).exists():
            raise StorageError(
                f"{episodes.path(step)} is missing; signals that are still to be explored point to its "
                "episodes. Restore it from a copy, then run the same command again."
            )
    return Recall({record["episode"]: record for step in steps for record in episodes.read(step)})
