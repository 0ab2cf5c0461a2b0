"""`open_run`: what a run directory holds, as records and as frames."""

import dataclasses
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cojax.storage.differences import flat
from cojax.storage.episodes import Episodes
from cojax.storage.files import Log, read_json

if TYPE_CHECKING:
    import pandas

    from cojax.policy.pretrained import Policy
    from cojax.report.lineage import TaskHistory


class Records(list[dict[str, Any]]):
    """Records of a run, each a dict of plain JSON."""

    def frame(self) -> "pandas.DataFrame":
        """A row a record; nested keys are joined with slashes. Raises ModuleNotFoundError without pandas."""
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("frames need pandas, which is an extra: pip install 'cojax[pandas]'") from error
        return pandas.DataFrame([flat(record, "/") for record in self])


@dataclasses.dataclass(frozen=True)
class OpenRun:
    """The directory of a run, which may still go on. Every call reads the files as they are then.

    Damaged files raise StorageError (cojax.storage.files), which names the line.
    """

    workdir: Path

    def metrics(self) -> Records:
        """What each step measured, as in metrics.jsonl."""
        return self._log("metrics")

    def tasks(self) -> Records:
        """The tasks of the pool, in the order of their arrival, each with its lineage where it was synthesized."""
        return self._log("tasks")

    def drafts(self) -> Records:
        """The proposed tasks of every evolution with their verdicts, accepted or not."""
        return self._log("drafts")

    def signals(self) -> Records:
        """Where the policy was weak: step, kind, task, episode and evidence."""
        return self._log("signals")

    def episodes(self, step: int | None = None) -> Records:
        """The episodes of a step that are stored, or of all steps: those are as large as the run's folder."""
        stored = Episodes(self.workdir / "episodes")
        return Records(
            record for one in ([step] if step is not None else stored.steps()) for record in stored.read(one)
        )

    def episode_steps(self) -> list[int]:
        """The steps whose episodes are stored."""
        return Episodes(self.workdir / "episodes").steps()

    def config(self) -> dict[str, Any]:
        """The settings of the run, in sections."""
        found: dict[str, Any] = read_json(self.workdir / "config.json")["config"]
        return found

    def summary(self) -> dict[str, Any]:
        """The result. Raises FileNotFoundError for a run that has not ended."""
        path = self.workdir / "summary.json"
        if not path.exists():
            raise FileNotFoundError(f"{self.workdir} has no summary: the run has not ended; train on to its end")
        return read_json(path)

    def lineage(self, task_id: str) -> "TaskHistory":
        """Why a task exists, and how it went since; a prefix of its id is enough. Raises KeyError."""
        from cojax.report.lineage import lineage

        return lineage(self.workdir, task_id)

    def policy(self, step: int | None = None, folder: str | os.PathLike[str] | None = None) -> "Policy":
        """The policy of a checkpoint: of `step`, or of the newest sound one. Adapters are summed into their base.

        It is exported to `folder`, which must be new or empty; without one, to a temporary folder. Raises RunFailed.
        """
        from cojax.api.training import finish
        from cojax.policy.pretrained import load

        chosen = [] if step is None else [f"--step={step}"]
        with tempfile.TemporaryDirectory(prefix="cojax-") as temporary:
            place = Path(temporary, "policy") if folder is None else Path(folder)
            finish(["export", f"--workdir={self.workdir}", *chosen, str(place)])
            return load(place)

    def _log(self, name: str) -> Records:
        return Records(Log(self.workdir / f"{name}.jsonl").read())


def open_run(workdir: str | os.PathLike[str]) -> OpenRun:
    """The run in a folder. Raises FileNotFoundError for a folder that holds none."""
    folder = Path(workdir)
    if not (folder / "config.json").exists() or not (folder / "metrics.jsonl").exists():
        missing = "is no folder" if not folder.is_dir() else "holds no run, or one that has not begun to train"
        raise FileNotFoundError(f"{folder} {missing}; expected the workdir of a run, such as runs/desk")
    return OpenRun(folder.absolute())
