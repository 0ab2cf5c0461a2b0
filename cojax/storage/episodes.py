"""The episodes of a run in compressed files, and the trajectories that are read back from them."""

import dataclasses
import gzip
import io
import os
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from cojax.storage import files
from cojax.types import Trajectory, from_json, to_json

# Episodes of some evaluation tasks, before training and after it.
ZERO_SHOT_EPISODES, FINAL_EPISODES = "zero_shot_episodes.jsonl.gz", "final_episodes.jsonl.gz"
# A file may expand to this many bytes, or to this many times its size if that is more. Episodes expand 35 times.
_MAX_CONTENT_BYTES, _MAX_EXPANSION = 2**28, 100
_MAX_LINES = 1_000_000
_CHUNK_BYTES = 2**20  # bytes


@dataclasses.dataclass(frozen=True)
class Episodes:
    """One compressed JSONL file per step, `000012.jsonl.gz`; the newest `kept_count` steps stay, 0 keeps all.

    A record's key `episode` is its id, "STEP-TASK-SAMPLE". Equal records give equal bytes.
    """

    folder: Path
    kept_count: int = 0

    def write(self, step: int, records: Iterable[Mapping[str, Any]]) -> bytes:
        """Stores the episodes of a step and returns the content of its file."""
        return write_episodes(self.path(step), records)

    def find_first_kept(self, pending_step: int) -> int:
        """The first step whose episodes stay: of the newest `kept_count` the first, or `pending_step` if it is earlier.

        Signals that no evolution has used yet point to the steps from `pending_step` on.
        """
        if not self.kept_count:
            return 0  # without listing the folder, which holds a file for every step
        newest_steps = self.list_steps()[-self.kept_count :]
        return min(pending_step, newest_steps[0] if newest_steps else 0)

    def drop_before(self, first_kept_step: int) -> None:
        """Drops the episodes of every step before `find_first_kept`. Costs nothing if there can be none."""
        if first_kept_step > 0:
            self.drop(lambda step: step < first_kept_step)

    def read(self, step: int) -> list[dict[str, Any]]:
        """The episodes of a step in the order written; none for a step that is not kept.

        Raises StorageError for a damaged file.
        """
        return read_episodes(self.path(step))

    def drop(self, is_unwanted: Callable[[int], bool]) -> None:
        """Drops the episodes of every step that is unwanted."""
        for step in filter(is_unwanted, self.list_steps()):
            with files.explain_os_errors(self.path(step)):
                self.path(step).unlink(missing_ok=True)

    def list_steps(self) -> list[int]:
        """The steps kept, ascending."""
        step_names = (path.name.partition(".")[0] for path in self.folder.glob("*.jsonl.gz"))
        return sorted(int(step_name) for step_name in step_names if files.is_number(step_name))

    def path(self, step: int) -> Path:
        return self.folder / f"{step:06d}.jsonl.gz"


def write_episodes(path: Path, records: Iterable[Mapping[str, Any]]) -> bytes:
    """Writes a compressed JSONL file and returns its content. Equal records give equal bytes."""
    buffer = io.BytesIO()
    # The header holds neither a time nor a file name.
    with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, compresslevel=6, mtime=0) as file:
        file.writelines(files.encode_record(record, path) for record in records)
    content = buffer.getvalue()
    files.replace_file(path, content)
    return content


def read_episodes(path: Path) -> list[dict[str, Any]]:
    """The records of a compressed JSONL file, none for one that is missing. Raises StorageError for a damaged one."""
    if not path.exists():
        return []
    try:
        return [files.parse_record(line) for line in io.BytesIO(decompress(path))]
    except files.StorageError:
        raise
    # zlib raises an error of its own for a damaged stream.
    except (EOFError, ValueError, OSError, zlib.error) as error:
        raise files.StorageError(f"{path} cannot be read: {error}. Restore it from a copy.") from error


def decompress(path: Path) -> bytes:
    """The content of a compressed file. Raises ValueError for one that holds far more than episodes do.

    A damaged one raises EOFError, OSError or zlib.error.
    """
    with files.open_file(path) as raw_file, gzip.open(raw_file, "rb") as file:
        max_bytes = max(_MAX_CONTENT_BYTES, _MAX_EXPANSION * os.fstat(raw_file.fileno()).st_size)
        content = bytearray()
        # In pieces: reading everything at once would allocate memory for everything.
        while len(content) <= max_bytes and (piece := file.read(_CHUNK_BYTES)):
            content += piece
    if len(content) > max_bytes or content.count(b"\n") > _MAX_LINES:
        raise ValueError(f"it expands to more than {max_bytes:,} bytes or {_MAX_LINES:,} lines")
    return bytes(content)


def make_record(trajectory: Trajectory, *, with_times: bool = True) -> dict[str, Any]:
    """The trajectory as it is stored: without the routes of experts, which nothing reads after the step's update.

    If `with_times` is false, equal episodes give equal records.
    """
    record: dict[str, Any] = to_json(trajectory)
    if not with_times:
        record["opening_seconds"] = record["verdict_seconds"] = 0.0
    for turn in record["turns"]:
        turn["routes"] = ""
        if not with_times:
            turn["engine_seconds"] = turn["environment_seconds"] = 0.0
    return record


def make_trajectory(record: Mapping[str, Any]) -> Trajectory:
    """The trajectory of a stored episode."""
    trajectory: Trajectory = from_json(Trajectory, {name: value for name, value in record.items() if name != "signals"})
    return trajectory


def read_by_policy(episodes: Episodes, steps: Iterable[int]) -> dict[str, dict[str, Any]]:
    """Id → episode of the policy in these steps, by step, task and sample, without those of a second agent.

    Raises StorageError if the episodes of a step are missing.
    """
    steps = list(steps)
    for step in steps:
        if not episodes.path(step).exists():
            raise files.StorageError(
                f"{episodes.path(step)} is missing; signals that are still to be explored point to its "
                "episodes. Restore it from a copy, then run the same command again."
            )
    records = (record for step in steps for record in episodes.read(step))
    return {record["episode"]: record for record in records if "agent" not in record}
