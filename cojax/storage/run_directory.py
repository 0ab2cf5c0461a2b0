"""A run directory: everything a run writes, so that it can be resumed after a stop at any moment.

Logs are append-only. A checkpoint stores their lengths, line counts and checksums together with the arrays. Resuming
verifies all files before it changes any, then truncates the logs to the checkpoint. The run then writes the later
records again, identically. Nothing else is lost.
"""

import dataclasses
import fcntl
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cojax.durable import sweep
from cojax.metrics import plain
from cojax.pool import make_task_record
from cojax.settings.tree import FREE_SETTINGS, Settings
from cojax.signals import Memory, apply
from cojax.storage.checkpoint import ORBAX_FILES, ArrayFiles
from cojax.storage.checksums import add_checksum, has_valid_checksum, hash_file
from cojax.storage.differences import check_facts, history, list_changed_code, list_differences, read_stored_config
from cojax.storage.episodes import FINAL_EPISODES, ZERO_SHOT_EPISODES, make_record, make_trajectory, read_by_policy
from cojax.storage.files import RunDirectoryError, explain_reading, lock_folder, read_json, write_json
from cojax.storage.run_files import FOLDER_NAMES, LOG_NAMES, REMADE, Checkpoint, RunFiles, verify_run
from cojax.synthesis import Synthesis
from cojax.types import Group, Signal, Task, Trajectory, to_json

_LOG = logging.getLogger(__name__)


class RunDirectory:
    """The folder of one run, locked until `close`. Raises RunDirectoryError if another process is using it."""

    def __init__(
        self,
        folder: Path,
        *,
        checkpoints_kept: int = Settings.checkpoints_kept,
        episodes_kept: int = Settings.episodes_kept,
        array_files: ArrayFiles = ORBAX_FILES,
    ):
        self.folder = folder
        # A stored configuration, perhaps of an older release → the same one with today's keys.
        self.in_todays_keys: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
        self._lock = lock_folder(folder, "--config.workdir")
        self.files = RunFiles(folder, checkpoints_kept, episodes_kept, array_files)
        self.logs = self.files.logs  # the append-only logs by name
        self.metrics, self.tasks, self.signals, self.drafts = (self.logs[log_name] for log_name in LOG_NAMES[:4])
        self.expeditions, self.quarantine, self.memory = (self.logs[log_name] for log_name in LOG_NAMES[4:])
        self.episodes, self.checkpointer = self.files.episodes, self.files.checkpointer
        self._verified_checkpoint: Checkpoint | None = None
        # The first step whose episodes retention has not dropped.
        self._first_step = 0

    def close(self) -> None:
        """Unlocks the folder."""
        # Closing the file is not enough: a forked child may hold a copy of it.
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        self._lock.close()

    def claim(
        self, config: Mapping[str, Any], facts: Mapping[str, Any], *, accept_changed_code: bool = False
    ) -> Checkpoint | None:
        """Verifies all files of the run, then writes config.json; returns the checkpoint to resume from, or None.

        `facts` are stored with the configuration: versions, commit, hardware, and the source files of user code under
        `code`. The entry `history` holds every change of settings between two starts, with its step. The folder of a
        run that never reached its first checkpoint has nothing to lose and is reused.

        Raises RunDirectoryError, which names the difference, if the folder holds a run with different settings (except
        those that may change) or, unless `accept_changed_code`, with other user code. Raises the errors of
        `verify_run`.
        """
        path = self.folder / "config.json"
        has_progress = bool(self.checkpointer.steps()) or self._has_steps
        old_record: Mapping[str, Any] = {}
        if has_progress:
            old_record = self._expect_same_config(path, config, {} if accept_changed_code else facts.get("code", {}))
        elif not path.exists() and (log_paths := [log.path for log in self.files.checked_logs.values() if log.length]):
            raise RunDirectoryError(
                f"{log_paths[0]} belongs to no run: config.json is missing. Choose another --config.workdir."
            )
        self._verified_checkpoint = verify_run(self.files)
        if self._verified_checkpoint is None:
            self._expect_no_steps()
        # A report or an evaluation may be writing at this moment: the latter has a lock of its own.
        sweep(self.folder, *(self.folder / name for name in FOLDER_NAMES if name != "evaluations"))
        if not has_progress:
            (self.folder / "zero_shot.json").unlink(missing_ok=True)
        step = self._verified_checkpoint.step if self._verified_checkpoint else 0
        write_json(
            path,
            add_checksum({"config": dict(config), **facts, **history(old_record, {"config": config, **facts}, step)}),
        )
        return self._verified_checkpoint

    def _expect_same_config(self, path: Path, config: Mapping[str, Any], code: Mapping[str, Any]) -> Mapping[str, Any]:
        """The content of config.json. Raises RunDirectoryError if it is unreadable, or its settings or code differ."""
        if not path.exists():
            raise RunDirectoryError(
                f"{self.folder} holds a run without config.json. Restore it from a copy, or choose another "
                "--config.workdir."
            )
        try:
            record = read_stored_config(path)
            check_facts(record)
            record["config"] = self.in_todays_keys(record["config"])
        except (OSError, ValueError, KeyError, RecursionError) as error:
            raise RunDirectoryError(
                f"{path} cannot be read ({error}). Restore it from a copy (one edited on purpose is taken without its "
                "last entry, `checksum`), or choose another --config.workdir."
            ) from error
        if differences_text := list_differences(record["config"], config, FREE_SETTINGS):
            raise RunDirectoryError(
                f"{self.folder} holds a run with other settings: {differences_text}. "
                "Use the same settings to go on with it, or choose another --config.workdir."
            )
        if changed_entries := list_changed_code(record.get("code", {}), code):
            raise RunDirectoryError(
                f"{self.folder} holds a run with other code: {changed_entries} has changed since. Restore it, add "
                "--config.accept_changed_code=True to go on with the new one, or choose another --config.workdir."
            )
        return record

    @property
    def _has_steps(self) -> bool:
        """Whether the folder holds any file that only a training step writes."""
        has_episodes = any(step > 0 for step in self.episodes.list_steps())
        has_records = any(log.length for log in (self.metrics, self.signals, self.memory))
        return has_episodes or has_records or (self.folder / "summary.json").exists()

    def _expect_no_steps(self) -> None:
        """Raises RunDirectoryError if the folder holds training steps, whose checkpoints are then missing."""
        if self._has_steps:
            raise RunDirectoryError(
                f"{self.folder} holds steps of a run, but no checkpoint to go on from. "
                "Restore checkpoints/ from a copy, or choose another --config.workdir."
            )

    def cut(self, checkpoint: Checkpoint) -> None:
        """Truncates the logs and episodes to the verified checkpoint."""
        for log in (*self.logs.values(), self.files.checksums.log):
            log.cut()
        self.episodes.drop(lambda step: step > checkpoint.step)

    def begin(self) -> None:
        """Clears the files of a run that never reached its first checkpoint.

        Raises RunDirectoryError if the run went further but its checkpoints are missing.
        """
        self._expect_no_steps()
        for log in (*self.logs.values(), self.files.checksums.log):
            log.clear()
        for episode_store in (self.episodes, self.files.waiting):
            episode_store.drop(lambda _: True)
        self.files.note(REMADE)

    def resume(self, like: Any, memory: Memory) -> Checkpoint | None:
        """The state of the newest sound checkpoint, or None if none was ever saved; truncates the logs to it.

        All files are verified before any is truncated. `like` are arrays, or their shapes, to restore into. `memory` is
        the detectors' memory at the start of a run; the logged changes are applied to it.
        """
        checkpoint, self._verified_checkpoint = self._verified_checkpoint or verify_run(self.files), None
        if checkpoint is None:
            return None
        arrays = self.checkpointer.read_arrays(checkpoint.step, like)
        self.cut(checkpoint)
        self._first_step = checkpoint.host.get("first_episodes", 0)
        # They may have been made again by an engine that gives other bits.
        self.files.note(["zero_shot.json", ZERO_SHOT_EPISODES])
        for changes in checkpoint.changes:
            apply(memory, changes)
        return dataclasses.replace(checkpoint, arrays=arrays, memory=memory)

    def add_tasks(self, tasks: Sequence[Task]) -> None:
        self.tasks.append(make_task_record(task) for task in tasks)

    def add_evolution(self, evolution: Synthesis) -> None:
        """Stores the tasks, drafts, expeditions and quarantined drafts of an evolution."""
        self.add_tasks(evolution.tasks)
        self.drafts.append(evolution.drafts)
        self.expeditions.append(evolution.expeditions)
        self.quarantine.append(evolution.quarantined_drafts)

    def add_episodes(
        self, step: int, groups: Sequence[Group], signals: Iterable[Signal], second: Sequence[Group] = ()
    ) -> None:
        """Stores the signals of a step, and its episodes, each with the kinds of its signals.

        Those of the groups of a `second` agent are marked as such.
        """
        kinds_by_episode: dict[str, list[str]] = {}
        signals = list(signals)
        for signal in signals:
            kinds_by_episode.setdefault(signal.episode, []).append(signal.kind)
        records = (
            {**make_record(trajectory), "signals": kinds_by_episode.get(trajectory.episode, []), **agent_field}
            for agent_groups, agent_field in ((groups, {}), (second, {"agent": "second"}))
            for group in agent_groups
            for trajectory in group.trajectories
        )
        self.files.checksums.add_file(self.episodes.path(step), self.episodes.write(step, records))
        self.signals.append({"step": step, **to_json(signal)} for signal in signals)

    def read_episodes(self, steps: Iterable[int]) -> tuple[dict[str, dict[str, Any]], Callable[[str], Trajectory]]:
        """The episodes of these steps by id, and a function from an id to its trajectory, which is built then.

        Raises StorageError if the episodes of a step are missing.
        """
        episode_records = read_by_policy(self.episodes, steps)
        return episode_records, lambda episode: make_trajectory(episode_records[episode])

    def save(self, step: int, arrays: Any, host: Mapping[str, Any], waiting: Sequence[Sequence[Group]] = ()) -> None:
        """Checkpoints the arrays, the host state, the extents of all logs, and the groups that wait for later steps."""
        groups = [group for step_groups in waiting for group in step_groups]
        trajectories = [to_json(trajectory) for group in groups for trajectory in group.trajectories]
        if trajectories:
            self.files.checksums.add_file(self.files.waiting.path(step), self.files.waiting.write(step, trajectories))
        # The run may be resumed from any checkpoint kept, and its next evolution reads the episodes since the last one.
        last_steps = [state["evolved"] for state in self.checkpointer.hosts(self.checkpointer.steps_to_keep(step)[:-1])]
        first_step = self.episodes.find_first_kept(1 + min([*last_steps, host["evolved"]]))
        self._first_step = max(self._first_step, first_step)
        file_state = {"first_episodes": self._first_step, "waiting": len(trajectories), "ahead": len(waiting)}
        self.checkpointer.save(step, arrays, {**plain(host), **file_state, "logs": self._measure_extents()})
        self.episodes.drop_before(self._first_step)
        checkpoint_steps = self.checkpointer.steps()
        self.files.waiting.drop(lambda step: step not in checkpoint_steps)

    def _measure_extents(self) -> dict[str, list[Any]]:
        """The extents of all logs, once checksums.jsonl holds the checksum of every line."""
        logs = {**self.logs, **self.files.paid}
        extents = {log_name: log.measure_extent() for log_name, log in logs.items()}
        self.files.checksums.add_lines({log_name: log.take_new_sums() for log_name, log in logs.items()})
        extents["checksums"] = self.files.checksums.log.measure_extent()
        return {log_name: list(extent) for log_name, extent in extents.items()}

    def summary(self, latest: Checkpoint | None) -> dict[str, Any] | None:
        """The content of summary.json if the run with the checkpoint `latest` has finished; else None.

        A run counts as unfinished while summary.json, final.json, the final episodes or a file that every start writes
        is missing or changed.
        """
        try:
            summary, final_record = (read_json(self.folder / file_name) for file_name in ("summary.json", "final.json"))
            is_sound = has_valid_checksum(summary) and has_valid_checksum(final_record)
            if "episodes" in final_record and hash_file(self.folder / FINAL_EPISODES) != final_record["episodes"]:
                raise ValueError(f"{FINAL_EPISODES} differs")
            is_complete = latest is None or (latest.step >= summary["steps"] and not any(map(self.files.lacks, REMADE)))
            return summary if is_sound and is_complete else None
        except FileNotFoundError:
            return None
        except OSError as error:
            raise explain_reading(error, self.folder) from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            _LOG.info("summary.json or final.json is not what the run wrote (%s): they are made again", error)
            return None
