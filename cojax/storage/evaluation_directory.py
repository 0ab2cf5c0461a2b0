"""The folder of one evaluation: its configuration, every episode as it finishes, and how it goes on when stopped.

config.json       what is evaluated, on what, and versions, commit and hardware
episodes.jsonl    appended to, one line an episode with its checksum; of an episode played again the last one counts
result.json       the figures
report.html       the same with the episodes, offline; report-2.html … where one page does not hold them all
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cojax.storage.checksums import CHECKSUM, is_signed, signed
from cojax.storage.differences import differences
from cojax.storage.files import Log, StorageError, write_json
from cojax.storage.run_directory import RunDirectoryError, locked
from cojax.types import Trajectory, from_json, to_json

_LOG = logging.getLogger("cojax")


class EvaluationDirectory:
    """Locked until it is left. Raises RunDirectoryError when another process is at work in the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = locked(folder, "--out")
        # What a crash of the whole machine may cost is played again.
        self.episodes = Log(folder / "episodes.jsonl", sync=False)

    def __enter__(self) -> EvaluationDirectory:
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.close()

    def claim(self, identity: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        """Writes config.json: what decides the result, with `facts` (versions, commit, hardware) beside it.

        A folder without an episode has nothing to lose and is taken over. Raises RunDirectoryError where another
        evaluation has begun there, and names what differs.
        """
        path = self.folder / "config.json"
        if self.episodes.length:
            try:
                record = json.loads(path.read_text(encoding="utf-8"))
                before = record["config"]
                if not isinstance(before, dict):
                    raise ValueError("it holds no settings")
                is_signed(record)
            except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
                raise RunDirectoryError(
                    f"{self.folder} holds episodes, but its config.json cannot be read ({error}). Restore it from a "
                    "copy, or choose another --out."
                ) from error
            if different := differences(before, identity):
                raise RunDirectoryError(
                    f"{self.folder} holds another evaluation: {different}. Use the same settings to go on with it, or "
                    "choose another --out."
                )
        elif (self.folder / "checkpoints").exists() or (self.folder / "metrics.jsonl").exists():
            raise RunDirectoryError(f"{self.folder} is the directory of a run. Choose another --out.")
        write_json(path, signed({"config": dict(identity), **facts}))

    def add(self, split: str, trajectory: Trajectory) -> None:
        """Stores an episode that has ended."""
        self.episodes.append([signed({"split": split, **to_json(trajectory)})])

    def known(self) -> dict[str, Trajectory]:
        """Episode id → what happened, but for those that were lost to the machinery: these are to be played again.

        Raises StorageError, which names the line, for an episode that is not what was written. Those that an older
        version wrote carry no checksum, which is said once.
        """
        found: dict[str, Trajectory] = {}
        bare = 0
        for line, record in enumerate(self.episodes.read(), 1):
            try:
                bare += not is_signed(record)
                told = {name: value for name, value in record.items() if name not in ("split", CHECKSUM)}
                episode = from_json(Trajectory, told)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise StorageError(
                    f"{self.episodes.path}, line {line}: {error}. Restore the file from a copy, or remove the line: "
                    "its episode is played again."
                ) from error
            found[episode.episode] = episode
        if bare:
            _LOG.warning("%s holds %d episodes without checksums, as an older version wrote them", self.folder, bare)
        return {name: episode for name, episode in found.items() if episode.valid}
