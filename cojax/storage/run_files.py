"""The files of a run directory by name, and their verification: it reads all of them and changes nothing on disk."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from cojax.pool import TaskPool, read_task_record
from cojax.signals import Memory
from cojax.storage.checkpoint import ORBAX_FILES, ArrayFiles, Checkpointer, CheckpointError, SoundCheckpoint
from cojax.storage.checksums import CheckedLog, Checksums, add_checksum, hash_file
from cojax.storage.episodes import FINAL_EPISODES, ZERO_SHOT_EPISODES, Episodes, make_record, write_episodes
from cojax.storage.files import StorageError, expect_no_links, explain_reading, is_number, write_json
from cojax.types import Group, Signal, Task, Trajectory, from_json

# The append-only logs, which resuming cuts back to a checkpoint. Nothing is read back from quarantine.jsonl.
LOG_NAMES = ("metrics", "tasks", "signals", "drafts", "expeditions", "quarantine", "memory")
# The logs that are never cut: their records were paid for.
PAID_LOGS = ("journal", "embeddings")
# Files and folders that every start makes again, equal to the bit, if they are missing.
REMADE = ("tokenizer", "model.json", "base", "zero_shot.json", ZERO_SHOT_EPISODES)
# Files, and all outputs, that are derived from the rest and made again without a warning.
DERIVED_FILES = ("summary.json", "final.json", FINAL_EPISODES, "report.html", "run.log")
DERIVED_NAMES = (*DERIVED_FILES, "report_files", "tensorboard")
FOLDER_NAMES = ("checkpoints", "episodes", "waiting", "tokenizer", "base", "report_files", "tensorboard", "evaluations")
RESTORE = "Restore it from a copy, or start in a new workdir."
_FILE_NAMES = (
    "config.json", "initial.json", "held_out.json", "model.json", "zero_shot.json", ZERO_SHOT_EPISODES, *DERIVED_FILES,
)  # fmt: skip
# The errors that reading a record from damaged JSON may raise.
_MALFORMED_ERRORS = (ValueError, KeyError, TypeError, AttributeError)


class RunFiles:
    """The logs, episodes and checkpoints of one run."""

    def __init__(
        self, folder: Path, checkpoints_kept: int = 3, episodes_kept: int = 0, array_files: ArrayFiles = ORBAX_FILES
    ):
        self.folder = folder
        self.logs = {log_name: CheckedLog(folder / f"{log_name}.jsonl") for log_name in LOG_NAMES}
        self.paid = {log_name: CheckedLog(folder / f"{log_name}.jsonl", is_shared=True) for log_name in PAID_LOGS}
        self.checksums = Checksums(folder)
        self.episodes = Episodes(folder / "episodes", kept_count=episodes_kept)
        # The groups of later steps that were sampled when a step was checkpointed.
        self.waiting = Episodes(folder / "waiting")
        self.checkpointer = Checkpointer(folder / "checkpoints", checkpoints_kept, array_files)

    @property
    def checked_logs(self) -> dict[str, CheckedLog]:
        """Every log whose extent a checkpoint stores, by name."""
        return {**self.logs, **self.paid, "checksums": self.checksums.log}

    def note(self, file_names: Iterable[str]) -> None:
        """Stores the checksums of these files, and of all files in these folders, if they are new or changed."""
        fingerprint_by_file = self.checksums.read_files()
        for noted_path in (self.folder / file_name for file_name in file_names):
            for path in sorted(noted_path.rglob("*")) if noted_path.is_dir() else [noted_path]:
                if path.is_file() and fingerprint_by_file.get(str(path.relative_to(self.folder))) != hash_file(path):
                    self.checksums.add_file(path)

    def lacks(self, name: str) -> bool:
        """Whether a file whose checksum is stored is gone: that of this name, or one in the folder of this name."""
        return not all((self.folder / file_name).exists() for file_name in self._list_fingerprints(name))

    def check_remade(self, name: str) -> None:
        """Raises StorageError if the file of this name, or one in the folder of this name, differs after a remake."""
        for file_name, stored_fingerprint in self._list_fingerprints(name).items():
            if not (path := self.folder / file_name).is_file() or hash_file(path) != stored_fingerprint:
                raise StorageError(f"{path} was made again, and is not what this run began with. {RESTORE}")

    def _list_fingerprints(self, name: str) -> dict[str, str]:
        """File → fingerprint, for the file of this name or for all files in the folder of this name."""
        return {path: digest for path, digest in self.checksums.read_files().items() if path.partition("/")[0] == name}

    @property
    def has_zero_shot(self) -> bool:
        """Whether the evaluation before training is stored, with all its episodes that this run stored."""
        return (self.folder / "zero_shot.json").exists() and not self.lacks(ZERO_SHOT_EPISODES)

    def add_evaluation(
        self, name: Literal["zero_shot", "final"], record: Mapping[str, Any], episodes: Sequence[Trajectory]
    ) -> None:
        """Stores the evaluation before training or after it, and some of its episodes."""
        path = self.folder / {"zero_shot": ZERO_SHOT_EPISODES, "final": FINAL_EPISODES}[name]
        write_episodes(path, (make_record(episode, with_times=False) for episode in episodes))
        write_json(self.folder / f"{name}.json", add_checksum({**record, "episodes": hash_file(path)}))


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint, after every file of the run was verified.

    `changes` are those of the detectors' memory, oldest first. `pending` are the signals that no evolution has used
    yet. `RunDirectory.resume` adds the `arrays`, and the `memory` with the changes.
    """

    step: int
    host: Mapping[str, Any]
    pool: TaskPool
    changes: tuple[Mapping[str, Any], ...]
    pending: tuple[Signal, ...]
    waiting: tuple[tuple[Group, ...], ...]
    warnings: tuple[str, ...]
    arrays: Any = None
    memory: Memory = dataclasses.field(default_factory=dict)


def verify_run(files: RunFiles | Path) -> Checkpoint | None:
    """The newest sound checkpoint, from which the run can be resumed; None if no checkpoint was ever saved.

    Changes nothing. Raises StorageError or CheckpointError, which name the file and what to do, for any file that has
    changed since it was written.
    """
    files = RunFiles(files) if isinstance(files, Path) else files
    try:
        _check_kinds(files.folder)
        checkpoint = files.checkpointer.find_newest()
        verified_checkpoint = None if checkpoint is None else _verify_checkpoint(files, checkpoint)
        # Later lines of the paid logs are verified by the checksums that they carry.
        for log in files.paid.values():
            log.count_new_lines()
        return verified_checkpoint
    except (StorageError, CheckpointError):
        raise
    except OSError as error:
        raise explain_reading(error, files.folder) from error


def _verify_checkpoint(files: RunFiles, checkpoint: SoundCheckpoint) -> Checkpoint:
    """Verifies the logs first, then the files whose checksums they hold, then the records."""
    step, host, faults = checkpoint
    path = files.checkpointer.folder / str(step) / "host.json"
    _check_host(host, path)
    _check_logs(files, host["logs"], path)
    _check_files(files, checkpoint)
    tasks = _read_tasks(files.logs["tasks"])
    if host["fresh"] > len(tasks):
        raise CheckpointError(f"{path} counts {host['fresh']} fresh tasks, but there are {len(tasks)} tasks. {RESTORE}")
    return Checkpoint(
        step,
        host,
        TaskPool.of(tasks, fresh_count=host["fresh"]),
        tuple(_read_changes(files.logs["memory"])),
        tuple(_read_pending_signals(files.logs["signals"], host["evolved"])),
        _read_waiting_groups(files.waiting, step, host.get("waiting", 0), host.get("ahead", 0)),
        faults,
    )


def _check_kinds(folder: Path) -> None:
    """Raises StorageError if a folder is in place of a file, or a file in place of a folder, or if there is a link."""
    expect_no_links(folder)
    for name in (*_FILE_NAMES, *FOLDER_NAMES):
        path, kind = folder / name, "folder" if name in FOLDER_NAMES else "file"
        if path.exists() and (path.is_dir() if kind == "file" else not path.is_dir()):
            fix = ": it is made again" if name in (*DERIVED_NAMES, *REMADE) else ", and restore it from a copy"
            raise StorageError(f"{path} is not a {kind}. Move it away{fix}.")
    for name, kind in (("checkpoints", "folder"), ("episodes", "file"), ("waiting", "file")):
        for path in sorted((folder / name).glob("*")):
            if is_number(path.name.partition(".")[0]) and path.is_dir() is (kind == "file"):
                raise StorageError(f"{path} is not the {kind} of a step. Move it away.")


def _check_host(host: Mapping[str, Any], path: Path) -> None:
    """Raises CheckpointError if the host state, read from `path`, does not have the form that a run writes."""
    host_counts = [host.get("evolved"), host.get("fresh"), host.get("waiting", 0), host.get("ahead", 0)]
    clock = host.get("clock", {"parts": {}, "total": 0.0})
    try:
        seconds = [*clock["parts"].values(), clock["total"]]
    except _MALFORMED_ERRORS as error:
        raise CheckpointError(f"{path} is not the host state of a run: {error}. {RESTORE}") from error
    are_counts = all(isinstance(count, int) and not isinstance(count, bool) and count >= 0 for count in host_counts)
    if not are_counts or not all(isinstance(number, (int, float)) for number in seconds) or "logs" not in host:
        raise CheckpointError(
            f"{path} is not the host state of a run: expected counts, extents of logs and seconds. {RESTORE}"
        )


def _check_logs(files: RunFiles, extents: Mapping[str, list[Any]], path: Path) -> None:
    """Raises StorageError for the first line of a log that differs from what the checkpoint at `path` stores.

    Raises CheckpointError for the name of a log that this version does not have.
    """
    if unknown_logs := sorted(extents.keys() - files.checked_logs.keys()):
        raise CheckpointError(
            f"{path} names a log {unknown_logs[0]!r}, which this version does not have. Use the version that wrote it."
        )
    files.checksums.verify(tuple(extents["checksums"]))
    for name, log in files.checked_logs.items():
        if name in extents and name != "checksums":
            log.verify(tuple(extents[name]), lambda name=name: files.checksums.read_lines(name))  # type: ignore[misc]


def _check_files(files: RunFiles, checkpoint: SoundCheckpoint) -> None:
    """Raises StorageError for a file that is missing, or differs from the fingerprint taken when it was written."""
    checkpoint_step, host_state, faults = checkpoint
    host_states = [host_state] if faults else files.checkpointer.hosts(files.checkpointer.steps())
    # If a later checkpoint cannot be read, it is not known which episodes it had dropped.
    first_step = host_state["evolved"] + 1 if faults else max(host.get("first_episodes", 0) for host in host_states)
    for file_name, stored_fingerprint in files.checksums.read_files().items():
        path, (top_folder, _, path_in_folder) = files.folder / file_name, file_name.partition("/")
        step = int(path_in_folder.partition(".")[0]) if top_folder in ("episodes", "waiting") else None
        if top_folder == "waiting" and (step != checkpoint_step or not host_state["waiting"]):
            continue
        if not path.exists():
            if top_folder in REMADE or (top_folder == "episodes" and step is not None and step < first_step):
                continue
            raise StorageError(f"{path} is missing; {_why_needed(top_folder, step, host_state['evolved'])}. {RESTORE}")
        if hash_file(path) != stored_fingerprint:
            fix = "Restore it from a copy, or delete it: it is made again." if top_folder in REMADE else RESTORE
            raise StorageError(f"{path} is not what the run wrote: its size or checksum differs. {fix}")


def _why_needed(folder: str, file_step: int | None, evolution_step: int) -> str:
    """Why a file in this folder of the run is needed."""
    if folder == "episodes" and file_step is not None and file_step > evolution_step:
        return "signals that are still to be explored point to its episodes"
    return "the next steps learn from its episodes" if folder == "waiting" else "the run wrote it"


def _read_tasks(log: CheckedLog) -> list[Task]:
    """The tasks of the pool in order. Raises StorageError for a line that is not a task, or for a repeated task."""
    task_by_id: dict[str, Task] = {}
    for line_number, record in enumerate(log.records(), 1):
        try:
            task = read_task_record(record)
        except _MALFORMED_ERRORS as error:
            raise StorageError(f"{log.path}, line {line_number}: {str(error).removeprefix('tasks.jsonl: ')}") from error
        if task.id in task_by_id:
            raise StorageError(f"{log.path}, line {line_number}: task {task.id} occurs twice. {RESTORE}")
        task_by_id[task.id] = task
    return list(task_by_id.values())


def _read_changes(log: CheckedLog) -> Iterator[Mapping[str, Any]]:
    """The changes of the detectors' memory, oldest first. Raises StorageError for a line that holds none."""
    for line_number, record in enumerate(log.records(), 1):
        changes = record.get("changes")
        if not isinstance(changes, dict) or not all(isinstance(kind_values, dict) for kind_values in changes.values()):
            raise StorageError(f"{log.path}, line {line_number}: it is not a change of a memory. {RESTORE}")
        yield changes


def _read_pending_signals(log: CheckedLog, evolution_step: int) -> Iterator[Signal]:
    """The signals that no evolution has used yet. Raises StorageError for a line that is not a signal."""
    for line_number, record in enumerate(log.records(), 1):
        try:
            signal = from_json(Signal, {field: value for field, value in record.items() if field != "step"})
            if record["step"] > evolution_step:
                yield signal
        except _MALFORMED_ERRORS as error:
            raise StorageError(f"{log.path}, line {line_number}: it is not a signal: {error}. {RESTORE}") from error


def _read_waiting_groups(episodes: Episodes, step: int, count: int, ahead: int) -> tuple[tuple[Group, ...], ...]:
    """The groups of the `ahead` later steps that were sampled when `step` was checkpointed: `count` episodes in all.

    Raises StorageError if they are not all there, or cannot be read.
    """
    episode_records, path = episodes.read(step) if count else [], episodes.path(step)
    if len(episode_records) != count:
        raise StorageError(
            f"{path} holds {len(episode_records)} of the {count} episodes that were sampled for later steps. {RESTORE}"
        )
    groups_by_step = dict[int, list[Group]]()
    try:
        trajectories = [from_json(Trajectory, record) for record in episode_records]
        # An episode is called STEP-TASK-SAMPLE.
        for name, group in itertools.groupby(trajectories, lambda played: played.episode.rpartition("-")[0]):
            episodes_of_group = tuple(group)
            groups_by_step.setdefault(int(name.partition("-")[0]), []).append(
                Group(episodes_of_group[0].task, episodes_of_group)
            )
    except _MALFORMED_ERRORS as error:
        raise StorageError(f"{path} does not hold episodes: {error}. {RESTORE}") from error
    # Older checkpoints do not name the number of steps.
    last_step = max([step + ahead, *groups_by_step])
    return tuple(tuple(groups_by_step.get(later, ())) for later in range(step + 1, last_step + 1))
