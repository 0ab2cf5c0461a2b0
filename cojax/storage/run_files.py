"""The files of a run directory, by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cojax.storage.array_files import ArrayFiles, ArrayStore
from cojax.storage.checkpoint import Checkpointer
from cojax.storage.checksums import CheckedLog, Checksums, fingerprint, with_checksum
from cojax.storage.episodes import FINAL_EPISODES, ZERO_SHOT_EPISODES, Episodes, record_of, write_episodes
from cojax.storage.files import StorageError, write_json
from cojax.types import Trajectory

# The append-only logs, which resuming cuts back to a checkpoint. Nothing is read back from quarantine.jsonl.
LOGS = ("metrics", "tasks", "signals", "drafts", "expeditions", "quarantine", "memory")
# The logs that are never cut: their records were paid for.
PAID = ("journal", "embeddings")
# Files and folders that every start makes again, equal to the bit, where they are missing.
REMADE = ("tokenizer", "model.json", "base", "zero_shot.json", ZERO_SHOT_EPISODES)
# Files, and all outputs, that are derived from the rest and made again without a warning.
DERIVED_FILES = ("summary.json", "final.json", FINAL_EPISODES, "report.html", "run.log")
DERIVED = (*DERIVED_FILES, "report_files", "tensorboard")
FOLDERS = ("checkpoints", "episodes", "waiting", "tokenizer", "base", "report_files", "tensorboard", "evaluations")
RESTORE = "Restore it from a copy, or start in a new workdir."


class RunFiles:
    """The logs, episodes and checkpoints of one run."""

    def __init__(
        self, folder: Path, checkpoints_kept: int = 3, episodes_kept: int = 0, array_files: ArrayStore | None = None
    ):  # fmt: skip
        self.folder = folder
        self.logs = {name: CheckedLog(folder / f"{name}.jsonl") for name in LOGS}
        self.paid = {name: CheckedLog(folder / f"{name}.jsonl", shared=True) for name in PAID}
        self.checksums = Checksums(folder)
        self.episodes = Episodes(folder / "episodes", keep=episodes_kept)
        # The groups sampled ahead, with which the step after a checkpoint begins.
        self.waiting = Episodes(folder / "waiting")
        self.checkpointer = Checkpointer(folder / "checkpoints", checkpoints_kept, array_files or ArrayFiles())

    @property
    def checksummed(self) -> dict[str, CheckedLog]:
        """Every log whose extent a checkpoint stores, by name."""
        return {**self.logs, **self.paid, "checksums": self.checksums.log}

    def note(self, names: Iterable[str]) -> None:
        """Stores the checksums of these files, and of all files in these folders, where they are new or changed."""
        known = self.checksums.files()
        for root in (self.folder / name for name in names):
            for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
                if path.is_file() and known.get(str(path.relative_to(self.folder))) != fingerprint(path):
                    self.checksums.add_file(path)

    def lacks(self, name: str) -> bool:
        """Whether the file, or any file of the folder, of that name is gone, of those whose checksum is stored."""
        return not all((self.folder / file).exists() for file in self._fingerprints(name))

    def prove(self, name: str) -> None:
        """Raises StorageError where the file, or a file of the folder, of that name was made again and differs."""
        for file, expected in self._fingerprints(name).items():
            if not (path := self.folder / file).is_file() or fingerprint(path) != expected:
                raise StorageError(f"{path} was made again, and is not what this run began with. {RESTORE}")

    def _fingerprints(self, name: str) -> dict[str, str]:
        """File → fingerprint of the file, or the files of the folder, of that name."""
        return {file: known for file, known in self.checksums.files().items() if file.partition("/")[0] == name}

    @property
    def has_zero_shot(self) -> bool:
        """Whether the evaluation before training is stored, with the episodes that this run stored of it."""
        return (self.folder / "zero_shot.json").exists() and not self.lacks(ZERO_SHOT_EPISODES)

    def add_zero_shot(self, record: Mapping[str, Any], episodes: Sequence[Trajectory]) -> None:
        """Stores the evaluation before training and some of its episodes."""
        self._add_evaluation("zero_shot.json", ZERO_SHOT_EPISODES, record, episodes)

    def add_final(self, record: Mapping[str, Any], episodes: Sequence[Trajectory]) -> None:
        """Stores the evaluation after training and some of its episodes."""
        self._add_evaluation("final.json", FINAL_EPISODES, record, episodes)

    def _add_evaluation(
        self, name: str, beside: str, record: Mapping[str, Any], episodes: Sequence[Trajectory]
    ) -> None:
        path = self.folder / beside
        write_episodes(path, (record_of(episode, times=False) for episode in episodes))
        write_json(self.folder / name, with_checksum({**record, "episodes": fingerprint(path)}))
