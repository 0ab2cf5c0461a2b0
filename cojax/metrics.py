"""Writes the metrics of a run to metrics.jsonl, TensorBoard and, when configured, W&B.

Nothing here influences training: a run without this file would learn the same.
"""

import contextlib
import logging
import math
import numbers
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cojax.host.stopwatch import TIME_PARTS, Stopwatch
from cojax.storage.checksums import CheckedLog
from cojax.storage.files import Log, flat, open_file, write_text

if TYPE_CHECKING:
    from tensorboardX.event_file_writer import EventsWriter

__all__ = ["TIME_PARTS", "Metrics", "Stopwatch", "plain", "select_scalars"]

_LOG = logging.getLogger(__name__)


class Metrics:
    """Writes one record per step to metrics.jsonl, TensorBoard and, when configured, W&B.

    On a resume, `step` is the step of the checkpoint, and the caller has cut metrics.jsonl back to it; TensorBoard's
    file is rebuilt from it, with times as if the run had never stopped. If the disk refuses that file, a warning is
    logged and the run goes on without it. `log` writes metrics.jsonl. `wandb` is the project of W&B, "" for none; the
    variables WANDB_NAME and WANDB_MODE name the run and its mode, as W&B reads them.

    Raises ModuleNotFoundError when W&B is configured and not installed.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        step: int = 0,
        wandb: str = "",
        config: Mapping[str, Any] | None = None,
        log: Log | CheckedLog | None = None,
    ):
        folder = Path(folder)
        self.log = log or Log(folder / "metrics.jsonl")
        self._wandb_run = _start_wandb(folder, wandb, config or {}) if wandb else None
        # tensorboardX's own writing thread is not used: a full disk ends it, and its caller then waits for ever.
        self._board_writer: EventsWriter | None = None
        records = [record for record in self.log.read() if record["step"] <= step]
        with self._catch_board_errors():
            self._board_writer = _open_board(folder / "tensorboard", records)

    def write(self, record: Mapping[str, Any]) -> None:
        """Appends a record, which must hold `step`. On the boards, nested keys become names such as signals/rare.

        A number that is not finite is null in metrics.jsonl and missing on the boards.
        """
        step = record["step"]
        record = plain(record)
        self.log.append([record])
        with self._catch_board_errors():
            if self._board_writer is not None:
                _write_event(self._board_writer, record, time.time())
                self._board_writer.flush()
        if self._wandb_run is not None:
            self._wandb_run.log(select_scalars(record), step=step)

    def close(self) -> None:
        with self._catch_board_errors():
            if self._board_writer is not None:
                self._board_writer.close()
        if self._wandb_run is not None:
            self._wandb_run.finish()

    @contextlib.contextmanager
    def _catch_board_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._board_writer = None
            _LOG.warning("TensorBoard's files are not written any more: %s", error)


def plain(value: Any) -> Any:
    """A record as strict JSON: NumPy scalars become numbers, and numbers that are not finite become None."""
    if isinstance(value, Mapping):
        return {key: plain(element) for key, element in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(element) for element in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def select_scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a record of metrics.jsonl except its step, by name: the keys joined with slashes."""
    flat_items = flat(record, "/").items()
    return {name: float(value) for name, value in flat_items if name != "step" and isinstance(value, numbers.Real)}


def _open_board(folder: Path, records: Sequence[Mapping[str, Any]]) -> "EventsWriter":
    """The writer of TensorBoard's file, which holds these records and replaces earlier files. Raises OSError."""
    # Imported here: it imports torch if that is installed, which takes seconds.
    from tensorboardX.event_file_writer import EventsWriter

    end_time = time.time() - sum(map(_read_total_seconds, records))
    folder.mkdir(parents=True, exist_ok=True)
    for old_file in folder.glob("events.out.tfevents.*"):
        old_file.unlink()
    writer = EventsWriter(str(folder / "events"))
    for record in records:
        _write_event(writer, record, end_time := end_time + _read_total_seconds(record))
    writer.flush()
    return writer


def _write_event(writer: "EventsWriter", record: Mapping[str, Any], wall_time: float) -> None:
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary

    summary_values = [Summary.Value(tag=name, simple_value=value) for name, value in select_scalars(record).items()]
    writer.write_event(Event(wall_time=wall_time, step=record["step"], summary=Summary(value=summary_values)))


def _read_total_seconds(record: Mapping[str, Any]) -> float:
    return record.get("seconds", {}).get("total", 0.0)


def _start_wandb(folder: Path, project: str, config: Mapping[str, Any]) -> Any:
    """Starts the W&B run, or continues it on a resume: its id is drawn once and kept in the folder."""
    try:
        import wandb
    except ImportError as error:
        raise ModuleNotFoundError(
            "W&B is configured but the package wandb is not installed. "
            "Run `pip install wandb`, or leave the wandb settings out."
        ) from error
    id_path = folder / "wandb_id"
    if not id_path.exists():
        write_text(id_path, uuid.uuid4().hex[:16])
    with open_file(id_path) as id_file:
        run_id = id_file.read(64).decode().strip()
    return wandb.init(project=project, id=run_id, resume="allow", dir=str(folder), config=dict(config))
