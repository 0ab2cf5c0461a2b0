"""The files of a run directory, by name."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cojax.storage.checkpoint import Checkpointer
from cojax.storage.checksums import CheckedLog, Checksums, stamp
from cojax.storage.files import Episodes, StorageError

# The append-only logs, which resuming cuts back to a checkpoint; of quarantine.jsonl nothing is read back.
LOGS = ("metrics", "tasks", "signals", "drafts", "expeditions", "quarantine", "memory")
# Those that are never cut: what stands in them was paid for.
PAID = ("journal", "embeddings")
# What every start makes again where it is missing, equal to the bit.
REMADE = ("tokenizer", "model.json", "base", "zero_shot.json")
# What is derived from the rest, and made again without a word: files, and all of it.
DERIVED_FILES = ("summary.json", "final.json", "report.html", "run.log")
DERIVED = (*DERIVED_FILES, "tensorboard")
FOLDERS = ("checkpoints", "episodes", "waiting", "tokenizer", "base", "tensorboard", "evaluations")
COPY = "Restore it from a copy, or start in a new workdir."


class RunFiles:
    """The logs, episodes and checkpoints of one run."""

    def __init__(self, folder: Path, *, checkpoints_kept: int = 3, episodes_kept: int = 0):
        self.folder = folder
        self.logs = {name: CheckedLog(folder / f"{name}.jsonl") for name in LOGS}
        self.paid = {name: CheckedLog(folder / f"{name}.jsonl", shared=True) for name in PAID}
        self.checksums = Checksums(folder)
        self.episodes = Episodes(folder / "episodes", keep=episodes_kept)
        # The groups that a checkpoint's next step begins with, where they were sampled ahead.
        self.waiting = Episodes(folder / "waiting")
        self.checkpointer = Checkpointer(folder / "checkpoints", keep=checkpoints_kept)

    @property
    def summed(self) -> dict[str, CheckedLog]:
        """Every log that a checkpoint knows the extent of, by name."""
        return {**self.logs, **self.paid, "checksums": self.checksums.log}

    def note(self, names: Iterable[str]) -> None:
        """Notes the files at or in `names` as they are now, but for those that are noted so."""
        noted = self.checksums.files()
        for place in (self.folder / name for name in names):
            for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
                if path.is_file() and noted.get(str(path.relative_to(self.folder))) != stamp(path):
                    self.checksums.add_file(path)

    def lacks(self, name: str) -> bool:
        """Whether a file that was noted at or in `name` is gone."""
        return not all((self.folder / file).exists() for file in self._noted(name))

    def prove(self, name: str) -> None:
        """Raises StorageError where a file at or in `name`, which was made again, is not what was noted."""
        for file, expected in self._noted(name).items():
            if not (path := self.folder / file).is_file() or stamp(path) != expected:
                raise StorageError(f"{path} was made again, and is not what this run began with. {COPY}")

    def _noted(self, name: str) -> dict[str, str]:
        return {file: told for file, told in self.checksums.files().items() if file.partition("/")[0] == name}
