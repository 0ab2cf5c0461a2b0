"""The folder of one evaluation: its configuration and every episode that has ended, from which it can be resumed.

config.json       the model, tasks and settings, and versions, commit and hardware
episodes.jsonl    append-only, one line per episode with its checksum; if an episode is played again, the last counts
engine.json       the number of slots of the in-process engine, if free memory decided it
result.json       the figures
report.html       the figures and the episodes, offline; report-2.html … if one page does not hold all episodes
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cojax.durable import sweep
from cojax.storage.checksums import CHECKSUM_KEY, add_checksum, has_valid_checksum
from cojax.storage.differences import list_differences, read_stored_config
from cojax.storage.files import Log, RunDirectoryError, StorageError, expect_no_links, lock_folder, write_json
from cojax.types import Trajectory, from_json, to_json

_LOG = logging.getLogger("cojax")


class EvaluationDirectory:
    """A context manager that locks the folder. Raises RunDirectoryError when another process is using it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = lock_folder(folder, "--out")
        # No fsync: episodes that a crash of the whole machine loses are played again.
        self.episodes = Log(folder / "episodes.jsonl", sync=False)

    def __enter__(self) -> "EvaluationDirectory":
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.close()

    def claim(self, identity: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        """Writes config.json: `identity`, which decides the result, and `facts` (versions, commit, hardware).

        A folder without an episode has nothing to lose and is reused. Raises RunDirectoryError, which names the
        difference, if another evaluation has begun there, and StorageError for a link in it.
        """
        expect_no_links(self.folder)
        path = self.folder / "config.json"
        if self.episodes.length:
            try:
                stored_identity = read_stored_config(path)["config"]
            except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
                raise RunDirectoryError(
                    f"{self.folder} holds episodes, but its config.json cannot be read ({error}). Restore it from a "
                    "copy, or choose another --out."
                ) from error
            if difference := list_differences(stored_identity, identity):
                raise RunDirectoryError(
                    f"{self.folder} holds another evaluation: {difference}. Use the same settings to go on with it, or "
                    "choose another --out."
                )
        elif (self.folder / "checkpoints").exists() or (self.folder / "metrics.jsonl").exists():
            raise RunDirectoryError(f"{self.folder} is the directory of a run. Choose another --out.")
        else:
            (self.folder / "engine.json").unlink(missing_ok=True)
        sweep(self.folder, *(path for path in self.folder.iterdir() if path.is_dir()))
        write_json(path, add_checksum({"config": dict(identity), **facts}))

    def add(self, split: str, trajectory: Trajectory) -> None:
        """Stores an episode that has ended."""
        self.episodes.append([add_checksum({"split": split, **to_json(trajectory)})])

    def valid_episodes(self) -> dict[str, Trajectory]:
        """Episode id → trajectory. Episodes lost to infrastructure failures are left out, to be played again.

        Raises StorageError, which names the line, for an episode that has changed since it was written.
        """
        episode_by_id: dict[str, Trajectory] = {}
        for line, record in enumerate(self.episodes.read(), 1):
            try:
                if not has_valid_checksum(record):
                    raise ValueError("it carries no checksum of itself")
                fields = {name: value for name, value in record.items() if name not in ("split", CHECKSUM_KEY)}
                episode = from_json(Trajectory, fields)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise StorageError(
                    f"{self.episodes.path}, line {line}: {error}. Restore the file from a copy, or remove the "
                    "line: its episode is played again."
                ) from error
            episode_by_id[episode.episode] = episode
        return {episode_id: episode for episode_id, episode in episode_by_id.items() if episode.valid}
