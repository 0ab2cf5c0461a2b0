"""Writes the metrics of a run to metrics.jsonl, TensorBoard and, when configured, W&B; measures where its time goes.

Nothing here influences training: a run without this file would learn the same.
"""

import contextlib
import logging
import math
import numbers
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cojax.storage.checksums import CheckedLog
from cojax.storage.files import Log, flat, open_file, write_text

_LOG = logging.getLogger(__name__)
# The parts of a run's time, in the order of summary.json. The total does not include the warm start.
PARTS = ("warm_start", "generation", "environment", "update", "sync", "feedback", "evaluation", "checkpoint")


class Stopwatch:
    """Charges wall time, in seconds, to the parts of a run; every moment to one part at most.

    Opening a part inside another one stops the outer one until the inner one closes. `total` is measured apart from the
    parts: the gap between it and their sum is time charged to none. For one thread only, that of the loop.
    """

    def __init__(self, parts: Sequence[str] = PARTS, now: Callable[[], float] = time.perf_counter):
        self._now = now
        self._parts: dict[str, float] = dict.fromkeys(parts, 0.0)
        self._total = 0.0
        self._open: list[str] = []
        self._mark = now()
        self._lap = self.summary()

    @contextlib.contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Charges the time inside the `with` block to `part`."""
        self._charge()
        self._open.append(self._expect_part(part))
        try:
            yield
        finally:
            self._charge()
            self._open.pop()

    def move(self, source: str, target: str, seconds: float) -> None:
        """Moves seconds that were charged to `source` to `target`, at most as many as `source` has."""
        self._charge()
        seconds = min(seconds, self._parts[self._expect_part(source)])
        self._parts[source] -= seconds
        self._parts[self._expect_part(target)] += seconds

    def summary(self, outside: Sequence[str] = ("warm_start",)) -> dict[str, float]:
        """Seconds of every part so far, and `total`, which does not include the parts in `outside`."""
        self._charge()
        return {**self._parts, "total": self._total - sum(self._parts.get(part, 0.0) for part in outside)}

    def lap(self) -> dict[str, float]:
        """Seconds of every part, and `total`, since the last lap or the start; parts of 0 seconds are left out."""
        summary = self.summary()
        spent = {part: seconds - self._lap[part] for part, seconds in summary.items()}
        self._lap = summary
        return {part: seconds for part, seconds in spent.items() if seconds > 0.0 or part == "total"}

    def state(self) -> dict[str, Any]:
        """All seconds so far as JSON, for a checkpoint."""
        self._charge()
        return {"parts": dict(self._parts), "total": self._total}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Adds the seconds of a `state()` saved before an interruption; the time in between does not count."""
        self._charge()
        for part, seconds in state["parts"].items():
            self._parts[self._expect_part(part)] += seconds
        self._total += state["total"]
        self._lap = self.summary()

    def _charge(self) -> None:
        now = self._now()
        # The system clock may be set back; time spent is never negative.
        spent = max(0.0, now - self._mark)
        if self._open:
            self._parts[self._open[-1]] += spent
        self._total += spent
        self._mark = now

    def _expect_part(self, part: str) -> str:
        if part not in self._parts:
            raise KeyError(f"the stopwatch has no part {part!r}; it has {', '.join(self._parts)}")
        return part


class Metrics:
    """Writes one record per step to metrics.jsonl, TensorBoard and, when configured, W&B.

    On a resume, `step` is the step of the checkpoint, and the caller has cut metrics.jsonl back to it; TensorBoard's
    files are made again from it. `log` writes metrics.jsonl. `wandb` is the project of W&B, "" for none; the variables
    WANDB_NAME and WANDB_MODE name the run and its mode, as W&B reads them.

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
        self._wandb = _start_wandb(folder, wandb, config or {}) if wandb else None
        self._board = Board(folder / "tensorboard", [record for record in self.log.read() if record["step"] <= step])

    def write(self, record: Mapping[str, Any]) -> None:
        """Appends a record, which must hold `step`. On the boards, nested keys become names such as signals/rare.

        A number that is not finite is null in metrics.jsonl and missing on the boards.
        """
        step = record["step"]
        record = plain(record)
        self.log.append([record])
        self._board.draw(record)
        if self._wandb is not None:
            self._wandb.log(scalars(record), step=step)

    def close(self) -> None:
        self._board.close()
        if self._wandb is not None:
            self._wandb.finish()


def plain(value: Any) -> Any:
    """A record as strict JSON: NumPy scalars become numbers, and numbers that are not finite become None."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a record of metrics.jsonl but its step, by name: the keys joined with slashes."""
    found = flat(record, "/").items()
    return {name: float(value) for name, value in found if name != "step" and isinstance(value, numbers.Real)}


class Board:
    """TensorBoard's file of a run, made anew from these records, to which `draw` adds.

    Times of the records are set as if the run had never stopped. What the disk refuses is told, and nothing more is
    drawn: the run goes on. No writing thread of tensorboardX is used, as a full disk ends it and its caller then waits
    for ever.
    """

    def __init__(self, folder: Path, records: Sequence[Mapping[str, Any]]) -> None:
        # It imports torch where that is installed, which takes seconds.
        from tensorboardX.event_file_writer import EventsWriter

        self._writer: EventsWriter | None = None
        end = time.time() - sum(map(_total, records))
        with self._told():
            folder.mkdir(parents=True, exist_ok=True)
            for old in folder.glob("events.out.tfevents.*"):
                old.unlink()
            self._writer = EventsWriter(str(folder / "events"))
            for record in records:
                self._add(record, end := end + _total(record))
            self._writer.flush()

    def draw(self, record: Mapping[str, Any]) -> None:
        """Adds a record, as of now."""
        with self._told():
            if self._writer is not None:
                self._add(record, time.time())
                self._writer.flush()

    def close(self) -> None:
        with self._told():
            if self._writer is not None:
                self._writer.close()

    def _add(self, record: Mapping[str, Any], end: float) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        assert self._writer is not None
        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars(record).items()]
        self._writer.write_event(Event(wall_time=end, step=record["step"], summary=Summary(value=values)))

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._writer = None
            _LOG.warning("TensorBoard's files are not written any more: %s", error)


def _total(record: Mapping[str, Any]) -> float:
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
    identity = folder / "wandb_id"
    if not identity.exists():
        write_text(identity, uuid.uuid4().hex[:16])
    with open_file(identity) as file:
        known = file.read(64).decode().strip()
    return wandb.init(project=project, id=known, resume="allow", dir=str(folder), config=dict(config))
