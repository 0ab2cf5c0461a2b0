"""The stopwatch charges each moment once; metrics reach every log they are written to."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from patience import patience
from tensorboardX.proto.event_pb2 import Event

from cojax.metrics import TIME_PARTS, Metrics, Stopwatch, plain, select_scalars
from cojax.storage.files import Log

ROOT = Path(__file__).parents[1]


class Time:
    """A time source that only moves when it is advanced."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds

    def pass_by(self, seconds: float) -> None:
        self.seconds += seconds


def test_a_nested_part_stops_the_outer_one() -> None:
    time = Time()
    clock = Stopwatch(read_clock=time)
    with clock("feedback"):
        time.pass_by(2.0)
        with clock("environment"):
            time.pass_by(5.0)
            with clock("feedback"):
                time.pass_by(0.5)
        time.pass_by(1.0)
    time.pass_by(0.25)  # charged to nobody
    summary = clock.summary()
    assert (summary["feedback"], summary["environment"], summary["total"]) == (3.5, 5.0, 8.75)


def test_the_total_leaves_the_warm_start_out() -> None:
    time = Time()
    clock = Stopwatch(read_clock=time)
    with clock("warm_start"):
        time.pass_by(150.0)
    with clock("update"):
        time.pass_by(3.0)
    assert clock.summary() == {**dict.fromkeys(TIME_PARTS, 0.0), "warm_start": 150.0, "update": 3.0, "total": 3.0}
    assert clock.summary(outside=())["total"] == 153.0


def test_an_exception_closes_the_part() -> None:
    time = Time()
    clock = Stopwatch(read_clock=time)

    def fail() -> None:
        with clock("update"):
            time.pass_by(1.0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    time.pass_by(4.0)
    assert clock.summary()["update"] == 1.0


def test_move_splits_a_part_and_never_takes_more_than_there_is() -> None:
    time = Time()
    clock = Stopwatch(read_clock=time)
    with clock("generation"):
        time.pass_by(10.0)
    clock.move("generation", "environment", 4.0)
    assert (clock.summary()["generation"], clock.summary()["environment"]) == (6.0, 4.0)
    clock.move("generation", "environment", 100.0)
    assert (clock.summary()["generation"], clock.summary()["environment"]) == (0.0, 10.0)
    assert clock.summary()["total"] == 10.0


def test_a_lap_holds_what_passed_since_the_last_one() -> None:
    time = Time()
    clock = Stopwatch(read_clock=time)
    with clock("update"):
        time.pass_by(2.0)
    assert clock.lap() == {"update": 2.0, "total": 2.0}
    with clock("sync"):
        time.pass_by(1.0)
    assert clock.lap() == {"sync": 1.0, "total": 1.0}
    assert clock.lap() == {"total": 0.0}


def test_state_survives_a_resume_and_the_time_between_does_not_count() -> None:
    time = Time()
    clock = Stopwatch(read_clock=time)
    with clock("update"):
        time.pass_by(2.0)
        state = json.loads(json.dumps(clock.state()))  # saved while a part is open
    time.pass_by(1000.0)
    resumed = Stopwatch(read_clock=time)
    with resumed("sync"):
        time.pass_by(1.0)  # what it took to get there again counts
    resumed.restore(state)
    with resumed("update"):
        time.pass_by(3.0)
    assert resumed.lap() == {"update": 3.0, "total": 3.0}
    summary = resumed.summary()
    assert (summary["update"], summary["sync"], summary["total"]) == (5.0, 1.0, 6.0)


def test_an_unknown_part_is_named_with_the_known_ones() -> None:
    with pytest.raises(KeyError, match="no part 'updat'; it has warm_start, generation"), Stopwatch()("updat"):
        pass


def test_records_are_strict_json_and_numpy_numbers_become_numbers() -> None:
    record = {"loss": float("nan"), "kl": np.float32(0.5), "tasks": np.int64(3), "deep": {"x": [np.inf, 1]}}
    assert plain(record) == {"loss": None, "kl": 0.5, "tasks": 3, "deep": {"x": [None, 1]}}


def test_scalars_join_names_and_keeps_numbers_only() -> None:
    record = {"step": 3, "success": 0.5, "signals": {"rare": 3}, "note": "text", "loss": None, "deep": {"a": {"b": 1}}}
    assert select_scalars(record) == {"success": 0.5, "signals/rare": 3.0, "deep/a/b": 1.0}


def events(folder: Path) -> list[Event]:
    """All TensorBoard events, read by their published frame: length, its checksum, the event, its checksum."""
    found = []
    for path in sorted(folder.glob("events.*"), key=lambda path: path.stat().st_mtime_ns):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            found.append(Event.FromString(data[12 : 12 + length]))
            data = data[16 + length :]
    return found


def test_a_record_reaches_metrics_jsonl_and_tensorboard(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path)
    metrics.write({"step": 1, "success": 0.25, "signals": {"rare": 3}, "loss": float("inf")})
    metrics.close()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"step": 1, "success": 0.25, "signals": {"rare": 3}, "loss": None}]
    values = {(e.step, v.tag): v.simple_value for e in events(tmp_path / "tensorboard") for v in e.summary.value}
    assert values == {(1, "success"): 0.25, (1, "signals/rare"): 3.0}


def test_tensorboard_drops_the_steps_after_the_resume(tmp_path: Path) -> None:
    first = Metrics(tmp_path)
    for step in (1, 2, 3):
        first.write({"step": step, "success": 0.0})
    first.close()
    resumed = Metrics(tmp_path, step=2)
    resumed.write({"step": 3, "success": 1.0})
    resumed.close()
    shown = [(e.step, v.simple_value) for e in events(tmp_path / "tensorboard") for v in e.summary.value]
    assert shown == [(1, 0.0), (2, 0.0), (3, 1.0)]


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-40] + b"x" * 40)])
def test_tensorboard_is_made_again_where_it_does_not_show_the_log(tmp_path: Path, damage) -> None:
    first = Metrics(tmp_path)
    for step in (1, 2, 3):
        first.write({"step": step, "success": step / 8, "seconds": {"total": 2.0}})
    first.close()
    damage(next((tmp_path / "tensorboard").iterdir()))
    Metrics(tmp_path, step=3).close()
    values = {(e.step, v.tag): v.simple_value for e in events(tmp_path / "tensorboard") for v in e.summary.value}
    assert values == {(s, tag): v for s in (1, 2, 3) for tag, v in (("success", s / 8), ("seconds/total", 2.0))}


def test_a_board_that_no_run_wrote_is_made_again_unread(tmp_path: Path) -> None:
    first = Metrics(tmp_path)
    first.write({"step": 1, "success": 0.5})
    first.close()
    large = tmp_path / "tensorboard" / "events.out.tfevents.9"
    with open(large, "wb") as file:
        file.truncate(2**40)
    Metrics(tmp_path, step=1).close()
    assert not large.exists()
    assert [v.simple_value for e in events(tmp_path / "tensorboard") for v in e.summary.value] == [0.5]


FULL = """
import resource, signal, sys
from cojax.metrics import Metrics
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
Metrics(sys.argv[1], step=300).close()
"""


def test_a_disk_that_takes_no_board_stops_no_run(tmp_path: Path) -> None:
    Log(tmp_path / "metrics.jsonl").append([{"step": step, "success": step / 512} for step in range(1, 301)])
    done = subprocess.run(
        [sys.executable, "-c", FULL, tmp_path], cwd=ROOT, capture_output=True, text=True, timeout=patience(60)
    )
    assert done.returncode == 0, done.stderr
    assert "TensorBoard's files are not written any more" in done.stderr


def test_what_stands_in_the_place_of_a_board_stops_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "tensorboard/events.out.tfevents.1").mkdir(parents=True)
    metrics = Metrics(tmp_path)
    metrics.write({"step": 1, "success": 0.5})
    metrics.close()
    assert "TensorBoard's files are not written any more" in caplog.text
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"step": 1, "success": 0.5}


def test_time_spent_is_never_negative_when_the_clock_is_set_back() -> None:
    now = 10.0
    clock = Stopwatch(read_clock=lambda: now)
    with clock("update"):
        now = 12.0
    with clock("sync"):
        now = 5.0
        clock.summary()
        now = 6.0
    assert clock.lap() == {"update": 2.0, "sync": 1.0, "total": 3.0}


def test_wandb_configured_but_missing_names_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ModuleNotFoundError, match="pip install wandb"):
        Metrics(tmp_path, wandb="cojax")


def test_wandb_run_is_continued_under_the_same_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    for step in (0, 1):
        metrics = Metrics(tmp_path, step=step, wandb="cojax", config={"seed": 0})
        metrics.write({"step": step + 1, "success": 0.5})
        metrics.close()
    identity = (tmp_path / "wandb_id").read_text()
    runs = {path.name.rsplit("-", 1)[1] for path in tmp_path.glob("wandb/offline-run-*")}
    assert runs == {identity}
