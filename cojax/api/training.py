"""`train`, `steps` and `evaluate`: the commands of these names as functions. `open_run`: what a run directory holds."""

import contextlib
import dataclasses
import json
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from cojax import imports
from cojax.api.process import Child, RunFailed
from cojax.storage.episodes import Episodes
from cojax.storage.files import Log, flat, open_file, parse_record, read_json, read_lines

if TYPE_CHECKING:
    import pandas

    from cojax.policy.pretrained import Policy
    from cojax.report.lineage import TaskHistory

Config: TypeAlias = str | os.PathLike[str] | Mapping[str, Any]
StepRecord: TypeAlias = dict[str, Any]
Callback: TypeAlias = Callable[[StepRecord], object]
_GIVEN_CONFIG = imports.FOLDERS["experiments"] / "given.py"
_POLL_S = 0.1  # how often the records are read


class Records(list[dict[str, Any]]):
    """Records of a run, each a dict of plain JSON."""

    def frame(self) -> "pandas.DataFrame":
        """One row for each record; nested keys are joined with slashes. Raises ModuleNotFoundError without pandas."""
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("frames need pandas, which is an extra: pip install 'cojax[pandas]'") from error
        return pandas.DataFrame([flat(record, "/") for record in self])


@dataclasses.dataclass(frozen=True)
class OpenRun:
    """The directory of a run, which may still be running. Every call reads the files as they are at that time.

    Damaged files raise StorageError (cojax.storage.files), which names the line.
    """

    workdir: Path

    def metrics(self) -> Records:
        """What each step measured, as in metrics.jsonl."""
        return self._read_log("metrics")

    def tasks(self) -> Records:
        """The tasks of the pool, in the order of their arrival, each with its lineage where it was synthesized."""
        return self._read_log("tasks")

    def drafts(self) -> Records:
        """The proposed tasks of every evolution with their verdicts, accepted or not."""
        return self._read_log("drafts")

    def signals(self) -> Records:
        """Where the policy was weak: step, kind, task, episode and evidence."""
        return self._read_log("signals")

    def episodes(self, step: int | None = None) -> Records:
        """The stored episodes of a step, or of all steps, which may be as large as the run's folder."""
        episodes = Episodes(self.workdir / "episodes")
        step_numbers = episodes.list_steps() if step is None else [step]
        return Records(record for step_number in step_numbers for record in episodes.read(step_number))

    def episode_steps(self) -> list[int]:
        """The steps whose episodes are stored."""
        return Episodes(self.workdir / "episodes").list_steps()

    def config(self) -> dict[str, Any]:
        """The settings of the run, in sections."""
        settings: dict[str, Any] = read_json(self.workdir / "config.json")["config"]
        return settings

    def summary(self) -> dict[str, Any]:
        """The result. Raises FileNotFoundError for a run that has not ended."""
        summary_path = self.workdir / "summary.json"
        if not summary_path.exists():
            raise FileNotFoundError(f"{self.workdir} has no summary: the run has not ended; train on to its end")
        return read_json(summary_path)

    def lineage(self, task_id: str) -> "TaskHistory":
        """Why a task exists, and how it has fared since; a prefix of its id is enough. Raises KeyError."""
        from cojax.report.lineage import read_lineage

        return read_lineage(self.workdir, task_id)

    def policy(self, step: int | None = None, folder: str | os.PathLike[str] | None = None) -> "Policy":
        """The policy of a checkpoint: of `step`, or of the newest sound one. Adapters are summed into their base.

        It is exported to `folder`, which must be new or empty; without one, to a temporary folder. Raises RunFailed.
        """
        from cojax.policy.pretrained import load

        step_flag = [] if step is None else [f"--step={step}"]
        with tempfile.TemporaryDirectory(prefix="cojax-") as temporary_folder:
            model_folder = Path(temporary_folder, "policy") if folder is None else Path(folder)
            finish(["export", f"--workdir={self.workdir}", *step_flag, str(model_folder)])
            return load(model_folder)

    def _read_log(self, log_name: str) -> Records:
        return Records(Log(self.workdir / f"{log_name}.jsonl").read())


def open_run(workdir: str | os.PathLike[str]) -> OpenRun:
    """The run in a folder. Raises FileNotFoundError for a folder that holds none."""
    run_folder = Path(workdir)
    if not (run_folder / "config.json").exists() or not (run_folder / "metrics.jsonl").exists():
        problem = "is not a folder" if not run_folder.is_dir() else "holds no run, or one that has not begun to train"
        raise FileNotFoundError(f"{run_folder} {problem}; expected the workdir of a run, such as runs/desk")
    return OpenRun(run_folder.absolute())


def train(
    config: Config | None = None,
    *,
    steps: int | None = None,
    workdir: str | os.PathLike[str] | None = None,
    callbacks: Callback | Iterable[Callback] = (),
    show: bool = False,
    **settings: Any,
) -> OpenRun:
    """Trains to the end and returns the run; each callback is called with the record of every step.

    The arguments are those of `steps`. An exception of a callback stops the run in order and is raised here. Raises
    RunFailed if the command fails.
    """
    callback_list = [callbacks] if callable(callbacks) else list(callbacks)
    with _start_run(config, steps, workdir, show, settings) as training:
        for record in training:
            for callback in callback_list:
                callback(record)
        return open_run(training.workdir)


def steps(
    config: Config | None = None,
    *,
    steps: int | None = None,
    workdir: str | os.PathLike[str] | None = None,
    show: bool = False,
    **settings: Any,
) -> "Training":
    """Starts a run in a child process: an iterator over the records of its steps, as metrics.jsonl holds them.

    `config` is a file with get_config(), a ConfigDict, or a dict of settings over the paper's. Without it the run in
    `workdir` goes on with its own settings. `settings` have the names that `cojax settings` lists; a section is a dict,
    and **{"learner.loss": …} is one setting. They override the configuration and its preset, as flags do. A run that is
    in `workdir` already goes on, and the records are those of its further steps. `show` prints what the command prints.
    """
    return _start_run(config, steps, workdir, show, settings)


class Training:
    """A run in a child process. Iterating gives the records of its steps, and raises RunFailed if the command fails.

    `stop` has it finish its step and save a checkpoint. Leaving a `with` block stops it too, as do an exception while
    waiting for a record, the end of this process, and losing the last reference. One thread may iterate at a time.
    """

    def __init__(
        self, arguments: Iterable[str], *, show: bool = False, resources: contextlib.ExitStack | None = None
    ) -> None:
        self._resources = resources or contextlib.ExitStack()
        self._child = Child(["run", *arguments], is_shown=show)
        self._records: deque[StepRecord] = deque()
        self._workdir: Path | None = None
        self._last_step, self._bytes_read = 0, 0

    @property
    def workdir(self) -> Path:
        """The run's folder. Raises RuntimeError while the command has not yet said which it is."""
        if self._workdir is None:
            self._read_progress()
        if self._workdir is None:
            raise RuntimeError("the run has not begun: its folder is known once the first record is there")
        return self._workdir

    def __iter__(self) -> Iterator[StepRecord]:
        return self

    def __next__(self) -> StepRecord:
        try:
            while not self._records:
                has_ended = self._child.wait(_POLL_S)
                self._read_progress()
                if has_ended and not self._records:
                    self._resources.close()
                    self._child.stop_and_raise_if_failed()
                    raise StopIteration
        except StopIteration:
            raise
        except BaseException:
            self.stop()
            raise
        return self._records.popleft()

    def stop(self) -> None:
        """Stops the run after its step, with a checkpoint; does nothing if it has ended."""
        self._child.stop()
        self._resources.close()

    def __enter__(self) -> "Training":
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _read_progress(self) -> None:
        """Reads what the command has reported and written since the last call."""
        self._child.show_output()
        for status_report in self._child.read_reports():
            self._workdir, self._last_step, self._bytes_read = Path(status_report["workdir"]), status_report["step"], 0
        if self._workdir is None:
            return
        with contextlib.suppress(FileNotFoundError), open_file(self._workdir / "metrics.jsonl") as metrics_file:
            metrics_file.seek(self._bytes_read)
            for line in read_lines(metrics_file):
                if not line.endswith(b"\n"):
                    break
                self._bytes_read += len(line)
                record = parse_record(line)
                if record["step"] > self._last_step:
                    self._last_step = record["step"]
                    self._records.append(record)


def evaluate(
    config: Config,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    model: str | os.PathLike[str] | None = None,
    endpoint: str | None = None,
    endpoint_model: str | None = None,
    splits: str | Iterable[str] | None = None,
    samples: int = 1,
    out: str | os.PathLike[str] | None = None,
    show: bool = False,
    **settings: Any,
) -> dict[str, Any]:
    """Evaluates a checkpoint of a run, a model folder or an endpoint; returns the content of result.json.

    The arguments are the flags of `cojax evaluate`, and `settings` those of `steps`. An evaluation that was stopped is
    resumed. Raises RunFailed if the command fails.
    """
    options = {
        "checkpoint": checkpoint, "model": model, "endpoint": endpoint, "endpoint_model": endpoint_model, "out": out,
        "splits": splits if splits is None or isinstance(splits, str) else ",".join(splits), "samples": samples,
    }  # fmt: skip
    flags = [f"--{flag_name}={value}" for flag_name, value in options.items() if value is not None]
    with config_flag(config) as config_flags:
        report = finish(["evaluate", *config_flags, *flags, *flags_of(settings)], show=show)
    return read_json(Path(report["out"], "result.json"))


def finish(arguments: list[str], *, show: bool = False) -> Mapping[str, Any]:
    """Runs a command to its end and returns what it reported. Raises RunFailed if it fails."""
    child, report = Child(arguments, is_shown=show), dict[str, Any]()
    try:
        has_ended = False
        while not has_ended:
            has_ended = child.wait(_POLL_S)
            child.show_output()
            for status_report in child.read_reports():
                report |= status_report
        child.stop_and_raise_if_failed()
    finally:
        child.stop()
    return report


def _start_run(
    config: Config | None,
    step_count: int | None,
    workdir: str | os.PathLike[str] | None,
    show: bool,
    settings: Mapping[str, Any],
) -> Training:
    if config is None and workdir is None:
        raise TypeError("no configuration and no run: give config, or the workdir of a run to go on with")
    steps_setting = {} if step_count is None else {"steps": step_count}
    workdir_flag = [] if workdir is None else [f"--workdir={os.fspath(workdir)}"]
    with contextlib.ExitStack() as resources:
        flags = resources.enter_context(config_flag(config))
        return Training(
            [*flags, *workdir_flag, *flags_of({**settings, **steps_setting})], show=show, resources=resources.pop_all()
        )


def flags_of(settings: Mapping[str, Any]) -> list[str]:
    """The flag --config.NAME=VALUE of each setting. A mapping is a section: {"learner": {"loss": "ppo"}}."""
    return [f"--config.{setting}={_format_value(value)}" for setting, value in _flatten_settings(settings).items()]


@contextlib.contextmanager
def config_flag(config: Config | None) -> Iterator[list[str]]:
    """Yields --config=… for a file, or for an object, which is kept in a file until the block ends; nothing for None.

    Raises TypeError for an object that is not a configuration.
    """
    if config is None or isinstance(config, (str, os.PathLike)):
        yield [] if config is None else [f"--config={os.fspath(config)}"]
        return
    resolved_config = config.copy_and_resolve_references() if hasattr(config, "copy_and_resolve_references") else config
    plain_settings = resolved_config.to_dict() if hasattr(resolved_config, "to_dict") else resolved_config
    if not isinstance(plain_settings, Mapping):
        raise TypeError(
            f"config is of type {type(config).__name__}; expected a file, a ConfigDict or a dict of settings"
        )
    try:
        json_text = json.dumps(_flatten_settings(plain_settings), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TypeError(f"config holds an invalid value: {error}; expected numbers, text, tuples and None") from error
    with tempfile.TemporaryDirectory(prefix="cojax-") as temporary_folder:
        config_file = Path(temporary_folder, "config.json")
        config_file.write_text(json_text, encoding="utf-8")
        yield [f"--config={_GIVEN_CONFIG}:{config_file}"]


def _flatten_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings by their dotted names."""
    return {setting: value for setting, value in flat(settings).items() if not isinstance(value, Mapping)}


def _format_value(value: Any) -> str:
    if isinstance(value, (str, os.PathLike)):
        return os.fspath(value)
    if hasattr(value, "item"):  # a NumPy scalar
        value = value.item()
    return repr(tuple(value) if isinstance(value, list) else value)


__all__ = [
    "Callback", "OpenRun", "Records", "RunFailed", "StepRecord", "Training", "evaluate", "finish", "open_run", "steps",
    "train",
]  # fmt: skip
